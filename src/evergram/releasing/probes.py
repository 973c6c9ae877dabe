"""Run every consumer's probe, a model of its own, on the embeddings that it would read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.chain import Chain
from evergram.errors import DataError, DegradationError, EvergramError, LineageError
from evergram.evaluation.probe_process import ProbeFiles, ProbeLimits, ProbeProcess
from evergram.ids import INTEGER, refuse_other_form
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.consumers import Baseline, Consumer, ConsumerRegistry, Probe
from evergram.lineage.lineage import Lineage, side_of
from evergram.lineage.record import sha256
from evergram.vector_files.open_embeddings import open_embeddings


@dataclass(frozen=True)
class ProbeReading:
    """The result of one consumer's probe on one version.

    Args:
        pinned: the consumer's version or label as written, such as "v0".
        version, source: the version that it reads, and the stored version.
        value: None if it could not be measured on enough objects; see `problem`.
        limit: the lowest allowed value; for rmse the highest.
        baseline: the value when the probe was added.
        objects, missing: objects of the evaluation file with an embedding, and without one.
        broken: the value is unknown or violates the limit.
        model_sha256, data_sha256: hashes of the probe's files.
    """

    consumer: str
    pinned: str
    version: int
    source: int
    metric: str
    value: float | None
    limit: float | None
    baseline: Baseline | None
    objects: int
    missing: int
    broken: bool
    problem: str | None = None
    model_sha256: str = ""
    data_sha256: str = ""

    def as_json(self) -> dict[str, Any]:
        values = asdict(replace(self, baseline=None))
        baseline = self.baseline.model_dump() if self.baseline else None
        return {**values, "baseline": baseline, "sentence": self.sentence if self.broken else None}

    @property
    def sentence(self) -> str:
        """Explains why the probe is broken."""
        who = f"The probe of {self.consumer} ({self.pinned})"
        if self.value is None:
            return f"{who} could not be run: {self.problem}"
        needed = f"at {'most' if self.metric == 'rmse' else 'least'} {self.limit:g} is needed"
        return f"{who} has {self.metric} {self.value:.4f}, where {needed}."


@dataclass(frozen=True)
class ProbeSource:
    """The embeddings that probes read: a published version, an unpublished artefact, or `rows`."""

    version: int
    chain: Chain
    lineage: Lineage
    artefact: Artefact | None = None
    rows: Mapping[str, Block] | None = None

    def blocks(self, side: str) -> Iterable[Block]:
        """Raises: LineageError: there is no such side."""
        if self.rows is not None:
            return [self.rows[side_of(self.rows, "this index", side)]]
        if self.artefact is None:
            return open_embeddings(self.lineage.stored(side, self.version)).blocks()
        return self.artefact.blocks(side_of(self.artefact.embeddings, "the new version", side))


def run_probes(
    lineage: Lineage, artefact: Artefact | None = None, names: Sequence[str] | None = None
) -> list[ProbeReading]:
    """Run consumers' probes, each at the version that the consumer is pinned to.

    Each probe runs in its own process, with the limits of `ProbeLimits.of_environment`.

    Args:
        artefact: a version to be published; by default, the newest published one.
        names: the consumers; default: all.
    Raises: LineageError: unknown consumer, or unreadable lineage. DataError: invalid limit.
    """
    limits = ProbeLimits.of_environment()
    consumers = ConsumerRegistry.open(lineage.address)
    chosen = consumers.list() if names is None else [consumers.get(name) for name in names]
    probed = [c for c in chosen if c.probe is not None]
    if not probed:
        return []
    chain, source = lineage.chain, lineage.newest
    if artefact is not None:
        if artefact.transform is None:
            raise LineageError("No probe can be run on version 0: it has no past version.")
        chain = chain.extended(artefact.transform)
        source = chain.newest
    embeddings = ProbeSource(source, chain, lineage, artefact)
    return [probe_reading(consumers, consumer, embeddings, limits) for consumer in probed]


def measured_probe(lineage: Lineage, pinned: str, probe: Probe) -> Probe:
    """Return a new probe with its baseline, measured on production, and its files' hashes."""
    version = lineage.resolve(pinned)
    source = ProbeSource(lineage.view(version).source, lineage.chain, lineage, None)
    model, data = Path(probe.model), Path(probe.data)
    for path in (model, data):
        if not path.is_file():
            raise DataError(f"{path} is not there, or is no file; correct the path.")
    files = ProbeFiles(model, sha256(model), data, sha256(data))
    value, objects, _ = _measure(files, probe, version, source, ProbeLimits.of_environment())
    measured = {
        "baseline": Baseline(version=source.version, value=value, objects=objects),
        "model_sha256": files.model_sha256,
        "data_sha256": files.data_sha256,
    }
    return probe.model_copy(update=measured)


def with_probes(artefact: Artefact, lineage: Lineage) -> tuple[Artefact, list[ProbeReading]]:
    """Run all probes; return the artefact with the readings in its metrics, and the readings."""
    readings = run_probes(lineage, artefact)
    metrics = {**artefact.metrics, "probes": [r.as_json() for r in readings]}
    return replace(artefact, metrics=metrics), readings


def refuse_broken(readings: Iterable[ProbeReading]) -> None:
    """Raises: DegradationError: a probe violates its limit or could not be run."""
    broken = [r.sentence.rstrip(".") for r in readings if r.broken]
    if broken:
        raise DegradationError(
            f"The new version was not published: {'; '.join(broken)}. Change the recipe or the "
            "files, agree on another limit with the consumer, or leave out --strict-probes."
        )


def probe_reading(
    consumers: ConsumerRegistry, consumer: Consumer, source: ProbeSource, limits: ProbeLimits
) -> ProbeReading:
    """Run the probe of a consumer that has one."""
    probe = consumer.probe
    assert probe is not None
    limit = probe.max if probe.metric == "rmse" else probe.min
    version, value, objects, missing, problem = source.version, None, 0, 0, None
    try:
        if consumer.pinned != "newest":
            version = source.lineage.resolve(consumer.pinned)
        model, data = consumers.probe_files(probe)
        files = ProbeFiles(model, probe.model_sha256, data, probe.data_sha256)
        value, objects, missing = _measure(files, probe, version, source, limits)
        at_first = None if probe.baseline is None else probe.baseline.objects
        needed = LEAST_OBJECTS if at_first is None else min(LEAST_OBJECTS, at_first)
        if objects < needed:
            of = "objects" if at_first is None else f"of the {at_first} objects it was added with"
            todo = "publish more of them, or pin it again with another evaluation file"
            raise DataError(
                f"Only {objects} {of} were measured, and at least {needed} are needed; {todo}."
            )
    except EvergramError as error:
        # Go on with the other consumers' probes.
        value, problem = None, str(error)
    broken = value is None
    if value is not None and limit is not None:  # NaN is worse than any limit
        broken = not (value <= limit if probe.metric == "rmse" else value >= limit)
    return ProbeReading(
        consumer=consumer.name,
        pinned=consumer.pinned,
        version=version,
        source=source.version,
        metric=probe.metric,
        value=value,
        limit=limit,
        baseline=probe.baseline,
        objects=objects,
        missing=missing,
        broken=broken,
        problem=problem,
        model_sha256=probe.model_sha256,
        data_sha256=probe.data_sha256,
    )


def _measure(
    files: ProbeFiles, probe: Probe, version: int, source: ProbeSource, limits: ProbeLimits
) -> tuple[float, int, int]:
    """Return the metric, and the numbers of objects with and without an embedding."""
    process = ProbeProcess(files, probe.metric, limits)
    ids = process.ids()
    has_vector, vectors = _pick(ids, source.blocks(probe.side))
    if not len(vectors):
        raise DataError(f"{files.data}: none of its ids is among the {probe.side} embeddings.")
    read = source.chain.apply(vectors, source.version, version)
    value = process.value(has_vector, read.numpy())
    # An object may have several rows.
    measured = pc.count_distinct(ids.filter(pa.array(has_vector))).as_py()
    return value, measured, pc.count_distinct(ids).as_py() - measured


def _pick(ids: pa.Array, blocks: Iterable[Block]) -> tuple[NDArray[np.bool_], Tensor]:
    """Return a mask [N] of the ids that have a vector, and these vectors in the ids' order."""
    wanted: pa.Array | None = None
    for known, block in blocks:
        if wanted is None:
            wanted = _as_type(ids, known.type)
            unique = pc.unique(wanted)
            has_vector = torch.zeros(len(unique), dtype=torch.bool)
            vectors = torch.zeros(len(unique), block.shape[1])
        refuse_other_form(unique, known, "the evaluation file", "the embeddings")
        places = _places(known, unique)
        has_vector[places[places >= 0]] = True
        vectors[places[places >= 0]] = block.detach().cpu()[places >= 0].float()
    assert wanted is not None, "a side has at least one row"
    rows = _places(wanted, unique)
    return has_vector[rows].numpy(), vectors[rows[has_vector[rows]]]


def _places(ids: pa.Array, among: pa.Array) -> Tensor:
    """Return each id's position in `among`, int64 [N], or -1."""
    return torch.from_numpy(np.array(pc.fill_null(pc.index_in(ids, value_set=among), -1))).long()


def _as_type(ids: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast ids to the lineage's type. Raises: DataError: an id is not of that type."""
    if pa.types.is_integer(kind) and pa.types.is_string(ids.type):
        # Arrow would cast "007" to 7, which is a different id.
        others = ids.filter(pc.invert(pc.match_substring_regex(ids, INTEGER)))
        if len(others):
            what = f"The ids of the evaluation file are not {kind}, as those of the lineage are"
            raise DataError(f"{what}: {others[0].as_py()!r} is a text.")
    try:
        return ids.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(f"The ids of the evaluation file are not {kind}: {error}.") from error
