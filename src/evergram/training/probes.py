"""The contract test of embeddings: every consumer's own model, on what it would read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from evergram.compatibility.chain import Chain
from evergram.errors import DataError, DegradationError, EvergramError, LineageError
from evergram.evaluation.probe_models import load_probe_model, measure
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.consumer_record import Baseline, Consumer, Probe
from evergram.lineage.consumers import Consumers
from evergram.lineage.lineage import Lineage
from evergram.stores.embedding_files import open_embeddings


@dataclass(frozen=True)
class ProbeReading:
    """What a consumer's model makes of one version.

    Args:
        consumer: its name.
        pinned: what it is pinned to, as it is written: "v0", or a label.
        version: the version that it reads.
        source: the version that is read as that one.
        metric: auc, accuracy or rmse.
        value: None where it could not be measured; `problem` then says why.
        limit: the least that is good enough, of rmse the most.
        baseline: what it was when the probe was added.
        objects, missing: rows of the evaluation file with an embedding, and without one.
        broken: whether it is past the limit, or nothing is known of it.
        model_sha256, data_sha256: of the probe's files, which say which probe it was.
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
        found = asdict(replace(self, baseline=None))
        baseline = self.baseline.model_dump() if self.baseline else None
        return {**found, "baseline": baseline, "sentence": self.sentence if self.broken else None}

    @property
    def sentence(self) -> str:
        """What is wrong with it."""
        who = f"The probe of {self.consumer} ({self.pinned})"
        if self.value is None:
            return f"{who} could not be run: {self.problem}"
        limit = "most" if self.metric == "rmse" else "least"
        return (
            f"{who} has {self.metric} {self.value:.4f}, where at {limit} {self.limit:g} is needed."
        )


@dataclass(frozen=True)
class _Source:
    """Where embeddings come from: those of the newest version, or of one that is not published."""

    version: int
    chain: Chain
    lineage: Lineage
    artefact: Artefact | None

    @property
    def sides(self) -> list[str]:
        if self.artefact is not None:
            return list(self.artefact.embeddings)
        return list(self.lineage.manifest(self.version).embeddings)

    def blocks(self, side: str) -> Iterable[Block]:
        """Raises: DataError: there is no such side."""
        if side not in self.sides:
            raise DataError(f"There is no side {side!r}; there is {' and '.join(self.sides)}.")
        if self.artefact is None:
            return open_embeddings(self.lineage.stored(side)).blocks()
        found = self.artefact.embeddings[side]
        return found() if callable(found) else [found]


def run_probes(
    lineage: Lineage, artefact: Artefact | None = None, names: Sequence[str] | None = None
) -> list[ProbeReading]:
    """What every consumer with a probe reads through the chain, at the version it is pinned to.

    Args:
        artefact: a version that is about to be published; None for the newest that is.
        names: of some consumers alone.
    Raises: LineageError: one of the names is no consumer, or the lineage cannot be read.
    """
    consumers = Consumers.open(lineage.address)
    chosen = consumers.list() if names is None else [consumers.get(name) for name in names]
    probed = [c for c in chosen if c.probe is not None]
    if not probed:
        return []
    source = _source(lineage, artefact)
    return [_reading(consumers, consumer, source) for consumer in probed]


def measured_probe(lineage: Lineage, pinned: str, probe: Probe) -> Probe:
    """A probe that is about to be added, with what it says of the newest version as its baseline.

    Args:
        probe: with the paths of its files as they are now.
    Raises: DataError: its files cannot be used, or no object of its data has an embedding.
        UnknownVersionError: there is no version `pinned`.
    """
    source = _source(lineage, None)
    version = lineage.resolve(pinned)
    value, objects, _ = _measure(Path(probe.model), Path(probe.data), probe, version, source)
    baseline = Baseline(version=source.version, value=value, objects=objects)
    return probe.model_copy(update={"baseline": baseline})


def default_side(lineage: Lineage) -> str:
    """ "candidate", or the only side that there is."""
    sides = list(lineage.manifest(lineage.newest).embeddings)
    return "candidate" if "candidate" in sides or len(sides) != 1 else sides[0]


def with_probes(artefact: Artefact, lineage: Lineage) -> tuple[Artefact, list[ProbeReading]]:
    """The version with what all probes say of it among its metrics, as "probes"."""
    readings = run_probes(lineage, artefact)
    metrics = {**artefact.metrics, "probes": [r.as_json() for r in readings]}
    return replace(artefact, metrics=metrics), readings


def refuse_broken(readings: Iterable[ProbeReading]) -> None:
    """Raises: DegradationError: a probe is past its limit, or could not be run."""
    broken = [r.sentence.rstrip(".") for r in readings if r.broken]
    if broken:
        raise DegradationError(
            f"The new version was not published: {'; '.join(broken)}. Without --strict-probes it "
            "is published all the same; else change what is upgraded to, or the limit with the "
            "consumer."
        )


def _source(lineage: Lineage, artefact: Artefact | None) -> _Source:
    if artefact is None:
        return _Source(lineage.newest, lineage.chain, lineage, None)
    if artefact.transform is None:
        raise LineageError("A version without a way back has no consumers before it.")
    chain = lineage.chain.extended(artefact.transform)
    return _Source(chain.newest, chain, lineage, artefact)


def _reading(consumers: Consumers, consumer: Consumer, source: _Source) -> ProbeReading:
    probe = consumer.probe
    assert probe is not None
    limit = probe.max if probe.metric == "rmse" else probe.min
    version, value, objects, missing, problem = source.version, None, 0, 0, None
    try:
        if consumer.pinned != "newest":
            version = source.lineage.resolve(consumer.pinned)
        model, data = consumers.probe_files(probe)
        value, objects, missing = _measure(model, data, probe, version, source)
    except EvergramError as error:
        # One consumer's probe does not keep the others from being run.
        problem = str(error)
    past = value is not None and limit is not None and _worse(probe.metric, value, limit)
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
        broken=past or value is None,
        problem=problem,
        model_sha256=probe.model_sha256,
        data_sha256=probe.data_sha256,
    )


def _worse(metric: str, value: float, limit: float) -> bool:
    # What is not a number is worse than any limit.
    return not (value <= limit if metric == "rmse" else value >= limit)


def _measure(
    model: Path, data: Path, probe: Probe, version: int, source: _Source
) -> tuple[float, int, int]:
    """The metric, and how many rows have an embedding and have none."""
    ids, labels = _evaluation(data)
    found, vectors = _pick(ids, source.blocks(probe.side))
    if not len(vectors):
        raise DataError(f"{data}: none of its ids is among the {probe.side} embeddings.")
    read = source.chain.apply(vectors, source.version, version)
    value = measure(probe.metric, load_probe_model(model).answers(read), labels.filter(found))
    return value, len(vectors), len(ids) - len(vectors)


def _evaluation(path: Path) -> tuple[pa.Array, pa.Array]:
    """Ids and labels. Raises: DataError."""
    try:
        with pq.ParquetFile(path) as file:
            lacking = {"id", "label"} - set(file.schema_arrow.names)
            if lacking or not file.metadata.num_rows:
                raise DataError(f"{path} needs at least one row, with the columns id and label.")
            table = file.read(columns=["id", "label"])
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}.") from error
    ids, labels = table["id"].combine_chunks(), table["label"].combine_chunks()
    if ids.null_count or labels.null_count:
        raise DataError(f"{path} has a row without an id or without a label.")
    return ids, labels


def _pick(ids: pa.Array, blocks: Iterable[Block]) -> tuple[pa.Array, Tensor]:
    """Which of the N ids (booleans) have a vector, and their vectors, in the order of the ids."""
    rows: list[Tensor] = []
    vectors: list[Tensor] = []
    wanted: pa.Array | None = None
    for known, block in _blocks(blocks):
        if wanted is None:
            wanted = _as_type(ids, known.type)
            unique = pc.unique(wanted)
        places = pc.index_in(known, value_set=unique)
        here = places.is_valid()
        rows.append(torch.from_numpy(places.drop_null().to_numpy().copy()).long())
        vectors.append(block[torch.from_numpy(here.to_numpy(zero_copy_only=False).copy())].float())
    if wanted is None:
        raise DataError("There are no embeddings to run the probe on.")
    where = torch.full((len(unique),), -1)
    where[torch.cat(rows)] = torch.arange(len(torch.cat(rows)))
    of_each = where[
        torch.from_numpy(pc.index_in(wanted, value_set=unique).to_numpy().copy()).long()
    ]
    found = of_each >= 0
    return pa.array(found.numpy()), torch.cat(vectors)[of_each[found]]


def _blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    for ids, vectors in blocks:
        yield (
            ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids,
            vectors.detach().cpu(),
        )


def _as_type(ids: pa.Array, kind: pa.DataType) -> pa.Array:
    """Ids as the lineage has them. Raises: DataError: a text that is no number."""
    try:
        return ids.cast(pa.int64()).cast(kind) if pa.types.is_floating(ids.type) else ids.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(f"The ids of the evaluation file are not {kind}: {error}.") from error
