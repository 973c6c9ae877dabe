"""The matrices A that known consumers of past versions weigh the alignment error by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from evergram.compatibility.consumers.consumer_metric import consumer_metric
from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.features import SIDES
from evergram.errors import DataError, EvergramError, RecipeError, ShapeError
from evergram.lineage.consumers.record import Consumer
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.releasing.known_consumers.known_consumer import KnownConsumer
from evergram.releasing.known_consumers.probe_sensitivity import probe_sensitivity
from evergram.training.recipe.upgrade import UpgradeRecipe

# A(j) of each side, [D_j, D_j], by the step j of the chain.
Metrics = dict[str, dict[int, Tensor]]
# A consumer's version and its matrix at each side that it reads.
_Sensitivity = tuple[int, Mapping[str, Tensor]]
# What consumers of a version read now, [N, D_j] of each side.
_ReadAt = Callable[[int], dict[str, Tensor]]


@dataclass(frozen=True)
class PastObjects:
    """What version k-1 knows of the training corpus of version k.

    Args:
        corpus: of version k.
        vectors: z_{k-1} of each side, [N, D_{k-1}].
        used: bool [N] of each side, the objects that alignment may see.
    """

    corpus: Corpus
    vectors: Mapping[str, Tensor]
    used: Mapping[str, Tensor]

    @property
    def pairs(self) -> dict[str, Tensor]:
        """The interactions whose ends alignment may both see, int64 [m] of each side."""
        ends = {side: self.corpus.column(side) for side in SIDES}
        both = self.used["query"][ends["query"]] & self.used["candidate"][ends["candidate"]]
        return {side: rows[both] for side, rows in ends.items()}


@dataclass(frozen=True)
class ConsumerWeighing:
    """The matrices, and which consumers they are of.

    Args:
        metrics: by side, A(j) by the step j of the lineage's active chain.
        consumers: `name`, `version` and `sides` of each consumer that counts.
    """

    weight: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    consumers: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"weight": self.weight, "consumers": list(self.consumers)}


def weigh_consumers(
    settings: UpgradeRecipe, lineage: Lineage, past: PastObjects, extra: Sequence[KnownConsumer]
) -> ConsumerWeighing:
    """Return what the registered consumers with a probe and those of `extra` make of errors.

    A consumer that is pinned to "newest" reads another version after each upgrade, and does not
    count. With upgrade.steps = "single" only consumers of version k-1 do.

    Raises: RecipeError: consumers are named or given and do not count, or none is known. DataError:
        a model or its files cannot be used. LineageError: a name is no consumer.
    """
    if not (settings.consumer_weight and settings.weighs_consumers):
        _refuse_idle(settings, extra)
        return ConsumerWeighing()
    steps = {v.version: step for step, v in enumerate(lineage.versions)}
    chain = lineage.active_chain

    @cache
    def read_at(version: int) -> dict[str, Tensor]:
        source, target = chain.newest, steps[version]
        return {side: chain.apply(z, source, target) for side, z in past.vectors.items()}

    by_place: dict[tuple[str, int], list[Tensor]] = {}
    counted = []
    every = [*_registered(settings, lineage, past, read_at), *_extra(extra, lineage, past, read_at)]
    for name, (version, fishers) in every:
        if settings.steps == "single" and version != lineage.newest:
            continue
        for side, fisher in fishers.items():
            _check(name, fisher)
            by_place.setdefault((side, steps[version]), []).append(fisher)
        counted.append({"name": name, "version": version, "sides": list(fishers)})
    if not counted:
        _refuse_none(settings, every, lineage.newest)
    metrics: Metrics = {side: {} for side in SIDES}
    for (side, step), matrices in by_place.items():
        metrics[side][step] = consumer_metric(matrices, settings.consumer_weight)
    return ConsumerWeighing(settings.consumer_weight, metrics, tuple(counted))


def _refuse_idle(settings: UpgradeRecipe, extra: Sequence[KnownConsumer]) -> None:
    """Raises: RecipeError: consumers were given, and nothing is weighed by them."""
    if extra and not settings.consumer_weight:
        raise RecipeError(
            "consumers= were given, and upgrade.consumer_weight is 0, so that they would not "
            "count; set it above 0 (0.5, say), or leave them out."
        )
    if extra:
        raise RecipeError(
            f"consumers= were given, and upgrade.fit = {settings.fit!r} with upgrade.solver = "
            f"{settings.solver!r} weighs no errors by them; leave them out, or set upgrade.fit = "
            "'joint'."
        )


def _refuse_none(settings: UpgradeRecipe, every: Sequence[object], newest: int) -> NoReturn:
    """Raises: RecipeError: no consumer counts."""
    of_newest = settings.steps == "single" and every
    where = f"reads version {newest} (upgrade.steps = 'single')" if of_newest else "counts"
    raise RecipeError(
        f"upgrade.consumer_weight is {settings.consumer_weight:g}, and no consumer with a probe "
        f"{where}; add one by 'evergram consumer add' with --probe, pinned to a version by its "
        "number, or set upgrade.consumer_weight = 0."
    )


def _registered(
    settings: UpgradeRecipe, lineage: Lineage, past: PastObjects, read_at: _ReadAt
) -> Iterator[tuple[str, _Sensitivity]]:
    """Yield the consumers of the lineage that have a probe, or those that the recipe names."""
    registry = ConsumerRegistry.open(lineage.address)
    corpus = past.corpus
    ids = {"query": corpus.queries.vocabulary, "candidate": corpus.candidates.vocabulary}
    named = [registry.get(name) for name in settings.consumers]
    for consumer in named or registry.list():
        reason = _uncounted(consumer, ids)
        if reason is not None:
            if named:
                raise RecipeError(
                    f"upgrade.consumers names {consumer.name!r}, {reason}; leave it out."
                )
            continue
        probe = consumer.probe
        assert probe is not None
        try:
            version = lineage.resolve(consumer.pinned)
            side = probe.side
            vectors, used = read_at(version)[side], past.used[side]
            fisher = probe_sensitivity(registry, probe, ids[side], vectors, used)
        except EvergramError as error:
            raise DataError(
                f"The probe of {consumer.name} ({consumer.pinned}) cannot weigh errors: {error} "
                "Name the consumers that can in upgrade.consumers, or set upgrade.consumer_weight "
                "= 0."
            ) from error
        yield consumer.name, (version, {probe.side: fisher})


def _uncounted(consumer: Consumer, ids: Mapping[str, Vocabulary]) -> str | None:
    """Return the reason why a consumer cannot count; None if it can."""
    if consumer.probe is None:
        return "which has no probe"
    if consumer.pinned == "newest":
        return "which reads the newest version, whatever it is, so that no error reaches it"
    if consumer.probe.side not in ids:
        return f"whose probe reads the side {consumer.probe.side!r}, not a query or a candidate"
    return None


def _extra(
    consumers: Sequence[KnownConsumer], lineage: Lineage, past: PastObjects, read_at: _ReadAt
) -> Iterator[tuple[str, _Sensitivity]]:
    """Yield the consumers that were given from Python."""
    rows = {side: torch.nonzero(past.used[side]).flatten() for side in SIDES}
    pairs = past.pairs if consumers else {}
    for consumer in consumers:
        version = lineage.resolve(consumer.version)
        yield consumer.name, (version, consumer.fishers(read_at(version), rows, pairs))


def _check(name: str, fisher: Tensor) -> None:
    """Raises: DataError: the matrix cannot weigh anything."""
    try:
        consumer_metric([fisher], 0.0)
    except ShapeError as error:
        raise DataError(f"The consumer {name!r} cannot weigh errors: {error}") from error
