"""Measure how much quality an index loses while some of its rows are from older versions."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

from evergram.atomic_files import remove_folder
from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.encoder import SIDES
from evergram.errors import DataError, DegradationError, EvergramError, LineageError
from evergram.evaluation.metric_sample import MetricSample, sample_queries
from evergram.evaluation.probe_process import ProbeLimits
from evergram.evaluation.ranking import Relevance, query_metrics, test_relevance
from evergram.evaluation.score_blocks import best_candidates
from evergram.lineage.artefact import Artefact, Block
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.diagnosis import LEAST_QUERIES
from evergram.lineage.lineage import Lineage, side_of
from evergram.lineage.score_maps import Metric, ScoredSearch, ScoreMaps
from evergram.releasing.evaluate import tested
from evergram.releasing.past_versions import known_vectors, past_model
from evergram.releasing.probes import ProbeSource, probe_reading
from evergram.retrieval.backfill import predicted_errors
from evergram.retrieval.reader import UNIT
from evergram.retrieval.version_maps import VersionMaps
from evergram.training.build import corpus_for
from evergram.training.recipe import Recipe

# Share of an index's rows by age in versions.
Stale = Mapping[int, float]
# The default sweep measures each share at each age, and MIXED. `publish` limits the loss at HALF.
SHARES, AGES, MIXED, HALF = (0.2, 0.5, 0.8), 3, {1: 0.5, 2: 0.2}, {1: 0.5}
# Random draws of the stale rows, and Student's t for their 95 % interval.
DRAWS, STUDENT = 5, 2.776
# Most queries to rank; without test pairs, most rows to rank and neighbours per query.
QUERIES, CATALOGUE, NEIGHBOURS = 2000, 20_000, 10
# Queries and rows to score, the share of pairs above the threshold, and the number of score bins.
SCORED, ABOVE, BINS = (256, 4096), 0.01, 10
CHAIN, RAW, CALIBRATED, WORST = "chain", "raw", "calibrated", "worst first"


@dataclass(frozen=True)
class SkewReading:
    """An index with stale rows, compared with the same index after a full refresh. Values that
    could not be measured are None.

    Args:
        stale: requested share of rows by age in versions.
        drawn: actual shares; lower where an old version lacks newer objects.
        read: "chain" reads each row from its version; "raw" treats old vectors as new;
            "calibrated" is "chain" with calibrated scores; "worst first" is "chain" after a
            backfill has refreshed the rows with the largest predicted error.
        loss, low, high: loss of the metric in percent, and its 95 % interval over draws and
            queries.
        above: number of pairs above a threshold, divided by the number after a full refresh, which
            is 1 % of all pairs.
        calibration: expected calibration error in ten bins: mean distance from the refreshed
            index's scores, divided by their standard deviation.
        probes: value of each consumer's probe, from one draw.
        problem: why the loss is unknown.
    """

    stale: dict[int, float]
    read: str
    drawn: dict[int, float]
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    above: float | None = None
    calibration: float | None = None
    probes: dict[str, float | None] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class SkewReport:
    """The result of `skew`.

    Args:
        version: version of the queries and of the refreshed rows.
        metric: "overlap@10" without test pairs: the share of each query's ten best rows that stay.
        fresh, probes: the metric and each probe's value after a full refresh.
        queries, rows: how many were ranked.
        notes: sentences about what could not be measured.
    """

    version: int
    metric: str
    fresh: float
    queries: int
    rows: int
    probes: dict[str, float | None]
    readings: tuple[SkewReading, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def past_limit(self, limit: float) -> list[str]:
        """Return a sentence for each mixture whose loss through the chain may exceed `limit`
        percent (upper end of the interval) or is unknown. Raises: DataError: invalid limit."""
        if not limit >= 0:
            raise DataError(f"max_loss is {limit}; it is a percentage, such as 1.")
        found, few = [], f"only {self.queries} queries were ranked; {LEAST_QUERIES} are needed."
        for one in (reading for reading in self.readings if reading.read == CHAIN):
            rows = ", ".join(f"{share:.0%} of rows {age} old" for age, share in one.stale.items())
            if self.queries < LEAST_QUERIES or one.high is None or math.isnan(one.high):
                why = one.problem or f"{self.metric} is 0 even after a full refresh."
                why = few if self.queries < LEAST_QUERIES else why
                found.append(f"With {rows}, the loss is unknown: {why}")
            elif one.high > limit:
                lost = f"{one.loss:.2f} % of {self.metric} (up to {one.high:.2f} %)"
                found.append(f"With {rows}, the index loses {lost}; the limit is {limit:g} %.")
        return found


@dataclass(frozen=True)
class _Rows:
    """The ids [N] of a side. For each version, newest first: a mask [N] of the rows that it has,
    and vectors [N, D_v]."""

    ids: pa.Array
    versions: Mapping[int, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, blocks: Mapping[int, Block]) -> _Rows:
        ids, found = next(iter(blocks.values()))[0], {}
        for version, (theirs, vectors) in blocks.items():
            rows = Vocabulary(theirs).rows(ids)
            found[version] = rows >= 0, vectors.detach().float()[rows.clamp(min=0)]
        return cls(ids, found)

    def take(self, rows: Tensor) -> _Rows:
        taken = {v: (known[rows], vectors[rows]) for v, (known, vectors) in self.versions.items()}
        return _Rows(self.ids.take(pa.array(rows.numpy())), taken)

    def drawn(self, stale: Stale, order: Tensor) -> Tensor:
        """Assign a version to each row, int64 [N], from shares by version. Rows become stale in
        the given order. The oldest version chooses first because it has the fewest objects."""
        newest = next(iter(self.versions))
        drawn = torch.full((len(self.ids),), newest)
        for version, share in sorted(stale.items()):
            if version not in self.versions:
                raise LineageError(f"The vectors of version {version} are not available.")
            free = (self.versions[version][0] & (drawn == newest))[order]
            drawn[order[free][: round(share * len(order))]] = version
        return drawn

    def read(self, drawn: Tensor, maps: VersionMaps, target: int, raw: bool = False) -> Tensor:
        """Read each row from its version, or from the newest if `raw`, as `target` [N, D_target].
        Raises: LineageError: a row cannot be read."""
        newest, read = next(iter(self.versions)), torch.empty(len(self.ids), maps.dim(target))
        for version in torch.unique(drawn).tolist():
            rows, vectors = drawn == version, self.versions[version][1]
            source = newest if raw else version
            if vectors.shape[1] != maps.dim(source):
                raise LineageError(
                    f"Raw vectors of version {version} cannot be compared: they have "
                    f"{vectors.shape[1]} dims, and those of version {source} {maps.dim(source)}."
                )
            read[rows] = torch.from_numpy(maps.rows(vectors[rows].numpy(), source, target))
        return read


@dataclass(frozen=True)
class _Index:
    """An index to measure: `rows` are ranked for queries [Q, D], and consumers read `sides`.

    Args:
        ranked: sides of the queries and of the rows.
        population: number of queries from which `relevance` was sampled.
        cosine: rank by cosine, because all new rows have length 1 and mapped rows do not.
    """

    lineage: Lineage
    maps: VersionMaps
    sides: Mapping[str, _Rows]
    ranked: tuple[str, str]
    rows: _Rows
    queries: Tensor
    relevance: Relevance
    population: int
    metric: str
    cosine: bool
    seed: int

    @property
    def new(self) -> Tensor:
        return self.rows.versions[self.lineage.newest][1]

    @cached_property
    def fresh(self) -> Tensor:
        return self.values(self.new)

    def values(self, rows: Tensor) -> Tensor:
        """Return the metric of each query, float64 [Q], of rows [N, D]."""
        name = self.metric.replace("overlap", "recall")
        rows = functional.normalize(rows) if self.cosine else rows
        return query_metrics(self.queries, rows, self.relevance, [name])[name]

    def scores(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Score a sample of queries and rows; return float64 scores and the row numbers."""
        # No draw of stale rows has this seed.
        draw = torch.Generator().manual_seed(self.seed * DRAWS + DRAWS)
        some = torch.randperm(len(rows), generator=draw)[: SCORED[1]]
        both = self.queries[self.relevance.queries[: SCORED[0]]].double(), rows[some].double()
        queries, rows = map(functional.normalize, both) if self.cosine else both
        return queries @ rows.T, some

    def stale(self, rows: _Rows, stale: Stale, read: str, number: int = 0) -> Tensor:
        """Draw each row's version; for "worst first", rows with the smallest errors are stale."""
        draw = torch.Generator().manual_seed(self.seed * DRAWS + number)
        order = torch.randperm(len(rows.ids), generator=draw)
        if read == WORST and stale.keys() <= rows.versions.keys():
            ((version, _),) = stale.items()
            given = rows.versions[version][1].numpy(), version, self.lineage.newest
            errors = predicted_errors(self.lineage, self.maps, *given)
            order = torch.from_numpy(np.argsort(errors, kind="stable"))
        return rows.drawn(stale, order)


def skew(
    lineage: Lineage,
    stale: Sequence[Stale] | None = None,
    corpus: Corpus | None = None,
    *,
    recipe: Recipe | None = None,
    seed: int = 0,
) -> SkewReport:
    """Measure how much quality an index of the newest version loses while some rows are older.

    Queries are from the newest version. The metric uses its test pairs, or neighbours if there are
    none. If a past version's vectors are not stored, its model computes them, or its canaries are
    used. Nothing is trained.

    Args:
        stale: mixtures to measure, such as [{1: 0.5, 2: 0.2}]; default: a sweep.
        corpus: required if the newest version was trained on a corpus passed in Python.
        recipe: location of the data; default: the newest version's recipe.
        seed: seed for choosing stale rows.
    Raises: LineageError: the newest version is the only one. DataError: invalid mixture.
    """
    past = [m.version for m in lineage.versions][-2::-1]
    if not past:
        raise LineageError("The lineage has only one version, so no row can be stale.")
    ages = range(1, len(past) + 1)
    mixtures = [{age: share} for age in ages[:AGES] for share in SHARES]
    mixtures += [MIXED] if len(past) > 1 else []
    mixtures = mixtures if stale is None else [dict(mixture) for mixture in stale]
    for one in mixtures:
        shares = one.values()
        if not one.keys() <= {*ages} or sum(shares) > 1 + 1e-9 or not min(shares, default=0) > 0:
            allowed = f"positive shares that add up to at most 1, for ages from 1 to {len(past)}"
            raise DataError(f"{one} is not a valid mixture; give {allowed}, such as {{1: 0.5}}.")
    past, notes = past[: max(age for one in mixtures for age in one)], list[str]()
    index = _index(lineage, past, (corpus, recipe, seed), notes)
    readings = []
    for mixture in mixtures:
        ways = (CHAIN, RAW, CALIBRATED, *([WORST] if len(mixture) == 1 else []))
        readings += [_reading(index, past, mixture, way) for way in ways]
    return SkewReport(
        version=lineage.newest,
        metric=index.metric,
        fresh=float(index.fresh.mean()),
        queries=len(index.relevance),
        rows=len(index.rows.ids),
        probes=_probes(index, {}),
        readings=tuple(readings),
        notes=tuple(notes),
    )


def with_skew(artefact: Artefact, lineage: Lineage, limit: float) -> Artefact:
    """Measure the loss with half of the rows one version old, on a copy of the lineage; add it to
    the metrics. Raises: DegradationError: it may exceed `limit` percent or is unknown."""
    if not lineage.versions:
        raise DegradationError("The first version has no stale rows; leave max_loss out.")
    lineage.check()  # also downloads a remote lineage's files
    folder = lineage.work_dir / "skew"
    remove_folder(folder)
    try:
        for part in ("versions", "embeddings"):
            shutil.copytree(lineage.path / part, folder / part, copy_function=_linked)
        shutil.copy(lineage.path / "lineage.json", folder)
        copy = Lineage.open(folder)
        copy.label("before", copy.newest)  # keeps its vectors
        copy.publish(artefact, promote=False)
        report = skew(copy, [HALF])
    finally:
        remove_folder(folder)
    if past := report.past_limit(limit):
        todo = "Raise --max-loss, or leave it out and refresh all rows before serving."
        raise DegradationError(f"The new version was not published. {past[0]} {todo}")
    return replace(artefact, metrics={**artefact.metrics, "skew": report.as_json()})


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copy(source, target)


def _index(
    lineage: Lineage, past: Sequence[int], given: tuple[Any, Any, int], notes: list[str]
) -> _Index:
    """Build an index with test pairs or neighbours. `given` is the corpus, recipe and seed."""
    corpus, recipe, seed = given
    newest, split = lineage.manifest(lineage.newest), None
    new = {side: lineage.embeddings(side, newest.version) for side in newest.embeddings}
    if metric := newest.recipe.get("training", {}).get("metric"):
        try:
            recipe = Recipe.of_data(newest.recipe) if recipe is None else recipe
            corpus = corpus_for(recipe, corpus, lineage)
            split, _, vectors = tested(recipe, lineage, corpus, newest.version, new)
            entities = zip(SIDES, (split.training.queries, split.training.candidates), strict=True)
            new = {side: (each.vocabulary.keys, vectors[side]) for side, each in entities}
        except EvergramError as error:
            notes.append(f"Measured on neighbours, because test pairs are not available: {error}")
    blocks = {side: {newest.version: block} for side, block in new.items()}
    for version in past:
        try:
            found = _vectors(lineage, version, None if split is None else split.training, notes)
        except EvergramError as error:
            notes.append(f"Version {version} cannot be measured: {error}")
            continue
        for side in blocks.keys() & found.keys():
            blocks[side][version] = found[side]
    sides = {side: _Rows.of(each) for side, each in blocks.items()}
    rows, draw = sides[side := side_of(sides, str(lineage))], torch.Generator().manual_seed(seed)
    lengths = rows.versions[newest.version][1].double().norm(dim=1)
    common: dict[str, Any] = {"cosine": bool(((lengths - 1).abs() < UNIT).all()), "seed": seed}
    common |= {"lineage": lineage, "maps": VersionMaps(lineage), "sides": sides}
    if split is not None:
        whole, common["queries"] = test_relevance(split), vectors["query"].float()
        drawn, common["metric"] = sample_queries(whole, QUERIES, seed), metric
        return _Index(**common, ranked=SIDES, rows=rows, relevance=drawn, population=len(whole))
    asking = "query" if "query" in sides else side
    # Rank only objects that all versions have, and never an object against itself.
    known = torch.stack([known for known, _ in rows.versions.values()]).all(0).nonzero()[:, 0]
    order = known[torch.randperm(len(known), generator=draw)]
    asked = torch.randperm(len(sides[asking].ids), generator=draw)[:QUERIES]
    if asking == side:
        asked, order = order.tensor_split([min(QUERIES, len(order) // 5)])
    rows, queries = rows.take(order[:CATALOGUE]), sides[asking].versions[newest.version][1][asked]
    among, none = rows.versions[newest.version][1], torch.empty(0, dtype=torch.int64)
    among = functional.normalize(among) if common["cosine"] else among
    best, each = best_candidates(queries, among, NEIGHBOURS), torch.arange(len(queries))
    targets = Relevance.of(each.repeat_interleave(best.shape[1]), best.flatten(), none, none)
    common |= {"metric": f"overlap@{NEIGHBOURS}", "population": len(queries), "queries": queries}
    return _Index(**common, ranked=(asking, side), rows=rows, relevance=targets)


def _vectors(
    lineage: Lineage, version: int, corpus: Corpus | None, notes: list[str]
) -> Mapping[str, Block]:
    """Return a past version's vectors: stored, computed by its model on `corpus`, or canaries."""
    if version in lineage.versions_with_embeddings:
        sides = lineage.manifest(version).embeddings
        return {side: lineage.embeddings(side, version) for side in sides}
    if corpus is None:
        notes.append(f"Version {version} was measured on its canaries, because it is not stored.")
        return lineage.canaries(version)
    if (model := past_model(lineage, version)) is None:
        raise LineageError("its vectors are not stored, and its model needs your modules.")
    rows, known = known_vectors(model, corpus)
    notes.append(f"The vectors of version {version} were computed by its model.")
    entities = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    return {
        side: (each.vocabulary.keys.filter(pa.array(known[side].numpy())), rows[side][known[side]])
        for side, each in entities
    }


def _reading(index: _Index, past: Sequence[int], mixture: Stale, read: str) -> SkewReading:
    stale = {past[age - 1]: share for age, share in mixture.items()}
    values, drawn, found = [], dict[int, float](), dict[str, Any]()
    try:
        for number in range(1 if read in (WORST, CALIBRATED) else DRAWS):
            versions = index.stale(index.rows, stale, read, number)
            drawn = drawn or {a: float((versions == past[a - 1]).double().mean()) for a in mixture}
            rows = index.rows.read(versions, index.maps, index.lineage.newest, read == RAW)
            found = found or _scored(index, versions, rows, read)
            values.append(index.values(rows))
        if read != CALIBRATED:  # calibration changes scores, not vectors
            found |= _loss(index, torch.stack(values))
        if read in (CHAIN, RAW):
            found["probes"] = _probes(index, stale, read == RAW)
    except EvergramError as error:
        found = {"problem": str(error)}
    return SkewReading(dict(mixture), read, drawn, **found)


def _loss(index: _Index, values: Tensor) -> dict[str, float]:
    """Return the loss in percent, and its interval, from metric values [draws, Q]."""
    loss, error = MetricSample(values.mean(0), index.population).loss(index.fresh)
    if len(values) > 1 and math.isfinite(loss):
        of_draws = values.mean(1).std() / index.fresh.mean() / math.sqrt(len(values))
        error = math.hypot(error, 100 * float(of_draws))
    return {"loss": loss, "low": loss - STUDENT * error, "high": loss + STUDENT * error}


def _scored(index: _Index, versions: Tensor, rows: Tensor, read: str) -> dict[str, float]:
    """Return `above` and `calibration` of a reading."""
    newest = index.lineage.newest
    was, now, some = index.scores(index.new)[0].flatten(), *index.scores(rows)
    if read == CALIBRATED:
        maps, of_pairs = ScoreMaps(index.lineage), versions[some]
        metric: Metric = "cosine" if index.cosine else "ip"
        search = ScoredSearch(newest, index.ranked, metric, newest)
        for version in (v for v in torch.unique(of_pairs).tolist() if v != newest):
            scores = now[:, of_pairs == version].numpy()
            now[:, of_pairs == version] = torch.from_numpy(maps.of(version, search).apply(scores))
    now = now.flatten()
    threshold = was.topk(max(1, round(ABOVE * len(was)))).values[-1]
    order, above = torch.argsort(now), [int((each >= threshold).sum()) for each in (now, was)]
    bins = (now - was)[order].tensor_split(BINS)
    away = sum(abs(float(each.sum())) for each in bins) / len(was)
    return {"above": above[0] / above[1], "calibration": away / max(float(was.std()), 1e-300)}


def _probes(index: _Index, stale: Stale, raw: bool = False) -> dict[str, float | None]:
    """Run each consumer's probe on one draw of the rows, read as the consumer's version."""
    lineage, found = index.lineage, dict[str, float | None]()
    consumers, limits = ConsumerRegistry.open(lineage.address), ProbeLimits.of_environment()
    for consumer in consumers.list():
        if consumer.probe is None:
            continue
        side, found[consumer.name] = consumer.probe.side, None
        if (rows := index.sides.get(side)) is None or not stale.keys() <= rows.versions.keys():
            continue
        newest = consumer.pinned == "newest"
        version = lineage.newest if newest else lineage.resolve(consumer.pinned)
        drawn = index.stale(rows, stale, CHAIN)
        block = rows.ids, rows.read(drawn, index.maps, version, raw)
        source = ProbeSource(version, lineage.chain, lineage, rows={side: block})
        found[consumer.name] = probe_reading(consumers, consumer, source, limits).value
    return found
