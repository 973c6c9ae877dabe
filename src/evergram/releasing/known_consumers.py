"""Consumers whose models weigh the alignment error of an upgrade."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from evergram.compatibility.consumers import (
    ConsumerModel,
    ConsumerOutput,
    consumer_metric,
    input_fisher,
)
from evergram.data.corpus import Vocabulary
from evergram.encoders.features import SIDES
from evergram.errors import DataError, EvergramError, RecipeError, ShapeError
from evergram.evaluation.probe_process import ProbeFiles, ProbeLimits, ProbeProcess
from evergram.lineage.consumers import ConsumerRegistry, Probe
from evergram.lineage.lineage import Lineage
from evergram.releasing.backward_transform import BackwardTransformFit
from evergram.training.recipe.upgrade import WeighingUpgrade

# Objects, or pairs, that a consumer's sensitivity is a mean over; those of a probe are fewer, as it
# is run on 2 D more rows for each.
ROWS = 2048
PROBE_ROWS = 512
# A(j) of each side, [D_j, D_j], by the step j of the chain.
Metrics = dict[str, dict[int, Tensor]]
# A consumer's name and version, and its matrix at each side that it reads.
_Sensitivity = tuple[str, int, Mapping[str, Tensor]]
# What consumers of a version read now, [N, D_j] of each side.
_ReadAt = Callable[[int], dict[str, Tensor]]


@dataclass(frozen=True)
class KnownConsumer:
    """A consumer of past embeddings, given from Python.

    Args:
        name: for errors and reports.
        model: a module, or any function of torch, from embeddings [B, D] of one version to one
            number or C logits a row; it reads each row by itself.
        version: the version that it was fitted to.
        side: "query" or "candidate"; or "pair": it reads both ends of an interaction, [B, 2 D],
            the query's embedding first.
        output: "logits" of classes (one: of the second of two), or the "value" of a regression.
    Raises: RecipeError: the side or the output is none of these.
    """

    name: str
    model: ConsumerModel
    version: int = 0
    side: Literal["query", "candidate", "pair"] = "candidate"
    output: ConsumerOutput = "logits"

    def __post_init__(self) -> None:
        for key, allowed in (("side", (*SIDES, "pair")), ("output", ("logits", "value"))):
            if getattr(self, key) not in allowed:
                raise RecipeError(
                    f"The consumer {self.name!r} has {key} {getattr(self, key)!r}; it is one of "
                    f"{', '.join(allowed)}."
                )

    def fishers(
        self, vectors: Mapping[str, Tensor], rows: Mapping[str, Tensor], pairs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return its mean input Fisher matrix at each side that it reads, float64 [D, D].

        Of a pair these are the two diagonal blocks: errors of the two ends are taken to be
        independent.

        Args:
            vectors: of each side, [N, D] of the version that it reads.
            rows, pairs: of each side, int64 [n], the objects that it is asked about, and the ends
                of the interactions.
        Raises: DataError: there are none, or the model cannot read them.
        """
        ends = SIDES if self.side == "pair" else (self.side,)
        chosen = pairs if self.side == "pair" else rows
        picked = {side: _spread(chosen[side], ROWS) for side in ends}
        inputs = torch.cat([vectors[side][picked[side]] for side in ends], dim=1)
        try:
            whole = input_fisher(self.model, inputs.float(), self.output)
        except (ShapeError, RuntimeError) as error:
            raise DataError(
                f"The consumer {self.name!r} cannot weigh errors at version {self.version}, whose "
                f"embeddings it was given as {list(inputs.shape)}: {error}"
            ) from error
        dim = inputs.shape[1] // len(ends)
        blocks = [slice(i * dim, (i + 1) * dim) for i in range(len(ends))]
        return {side: whole[block, block] for side, block in zip(ends, blocks, strict=True)}


def _spread(rows: Tensor, most: int) -> Tensor:
    """Return the rows, or `most` of them, evenly spread; the same for every side of a pair."""
    if len(rows) <= most:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, most).long()]


def probe_sensitivity(
    registry: ConsumerRegistry, probe: Probe, entities: Vocabulary, vectors: Tensor, used: Tensor
) -> Tensor:
    """Return the mean input Fisher matrix of a probe, float64 [D, D], over `PROBE_ROWS` objects of
    its evaluation file at most. The model is run in a process of its own.

    Args:
        entities: ids of the probe's side, with `vectors` [N, D] of the version that it reads.
        used: bool [N], the objects that alignment may see.
    Raises: DataError: none of its objects is among these, or the model cannot be run.
        IntegrityError: one of its files is damaged.
    """
    model, data = registry.probe_files(probe)
    files = ProbeFiles(model, probe.model_sha256, data, probe.data_sha256)
    process = ProbeProcess(files, probe.metric, ProbeLimits.of_environment())
    rows = entities.rows(process.ids())
    known = torch.nonzero((rows >= 0) & used[rows.clamp(min=0)]).flatten()
    if not len(known):
        raise DataError(
            f"None of the objects of its evaluation file {data} is among those that this version "
            "can be aligned on."
        )
    known = _spread(known, PROBE_ROWS)
    here = np.zeros(len(rows), dtype=bool)
    here[known.numpy()] = True
    return torch.from_numpy(process.fisher(here, vectors[rows[known]].float().numpy()))


@dataclass(frozen=True)
class ConsumerWeighing:
    """The matrices A(j) by side and step j of the lineage's active chain, and the `name`, `version`
    and `sides` of each consumer that counts."""

    weight: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    consumers: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"weight": self.weight, "consumers": list(self.consumers)}


def weigh_consumers(
    lineage: Lineage, backward: BackwardTransformFit, extra: Sequence[KnownConsumer]
) -> ConsumerWeighing:
    """Return what the registered consumers with a probe and those of `extra` make of errors.

    A consumer that is pinned to "newest" does not count. With a method that counts errors at
    version k-1 alone only its consumers do.
    Raises: RecipeError: consumers are named or given and do not count, or none is known. DataError:
        a model or its files cannot be used. LineageError: a name is no consumer.
    """
    settings = backward.settings
    if not (isinstance(settings, WeighingUpgrade) and settings.consumer_weight):
        if extra:
            weighs = isinstance(settings, WeighingUpgrade)
            raise RecipeError(
                "consumers= were given, and they would not count: "
                + ("" if weighs else f"upgrade.method = {settings.method!r} weighs no errors; ")
                + "set upgrade.method = 'evergram' and upgrade.consumer_weight above 0 (0.5, say), "
                "or leave them out."
            )
        return ConsumerWeighing()
    steps = {v.version: step for step, v in enumerate(lineage.versions)}
    chain = lineage.active_chain

    @cache
    def read_at(version: int) -> dict[str, Tensor]:
        source, target = chain.newest, steps[version]
        return {side: chain.apply(z, source, target) for side, z in backward.past.items()}

    by_place: dict[tuple[str, int], list[Tensor]] = {}
    counted = []
    every = [
        *_registered(lineage, backward, read_at),
        *_extra(extra, lineage, backward, read_at),
    ]
    for name, version, fishers in every:
        if settings.steps == "single" and version != lineage.newest:
            continue
        for side, fisher in fishers.items():
            _check(name, fisher)
            by_place.setdefault((side, steps[version]), []).append(fisher)
        counted.append({"name": name, "version": version, "sides": list(fishers)})
    if not counted:
        where = (
            f"reads version {lineage.newest}, the only one for upgrade.method = {settings.method!r}"
            if settings.steps == "single" and every
            else "counts"
        )
        raise RecipeError(
            f"upgrade.consumer_weight is {settings.consumer_weight:g}, and no consumer with a "
            f"probe {where}; add one by 'evergram consumer add' with --probe, pinned to a version "
            "by its number, or set upgrade.consumer_weight = 0."
        )
    metrics: Metrics = {side: {} for side in SIDES}
    for (side, step), matrices in by_place.items():
        metrics[side][step] = consumer_metric(matrices, settings.consumer_weight)
    return ConsumerWeighing(settings.consumer_weight, metrics, tuple(counted))


def _registered(
    lineage: Lineage, backward: BackwardTransformFit, read_at: _ReadAt
) -> Iterator[_Sensitivity]:
    """Yield the consumers of the lineage that have a probe."""
    registry, corpus = ConsumerRegistry.open(lineage.address), backward.corpus
    ids = {"query": corpus.queries.vocabulary, "candidate": corpus.candidates.vocabulary}
    for consumer in registry.list():
        probe = consumer.probe
        # No error reaches a consumer that follows the newest version.
        if probe is None or consumer.pinned == "newest" or probe.side not in ids:
            continue
        try:
            version, side = lineage.resolve(consumer.pinned), probe.side
            vectors, used = read_at(version)[side], backward.used[side]
            fisher = probe_sensitivity(registry, probe, ids[side], vectors, used)
        except EvergramError as error:
            raise DataError(
                f"The probe of {consumer.name} ({consumer.pinned}) cannot weigh errors: {error} "
                "Repair the probe, or set upgrade.consumer_weight = 0."
            ) from error
        yield consumer.name, version, {probe.side: fisher}


def _extra(
    consumers: Sequence[KnownConsumer],
    lineage: Lineage,
    backward: BackwardTransformFit,
    read_at: _ReadAt,
) -> Iterator[_Sensitivity]:
    """Yield the consumers that were given from Python."""
    rows = {side: torch.nonzero(used).flatten() for side, used in backward.used.items()}
    pairs: dict[str, Tensor] = {}
    if consumers:  # the interactions whose ends alignment may both see
        ends = {side: backward.corpus.column(side) for side in SIDES}
        both = torch.stack([backward.used[side][ends[side]] for side in SIDES]).all(0)
        pairs = {side: of_side[both] for side, of_side in ends.items()}
    for consumer in consumers:
        version = lineage.resolve(consumer.version)
        yield consumer.name, version, consumer.fishers(read_at(version), rows, pairs)


def _check(name: str, fisher: Tensor) -> None:
    """Raises: DataError: the matrix cannot weigh anything."""
    try:
        consumer_metric([fisher], 0.0)
    except ShapeError as error:
        raise DataError(f"The consumer {name!r} cannot weigh errors: {error}") from error
