"""Measure how much quality an index loses while some of its rows are from older versions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.encoder import SIDES
from evergram.errors import DataError, EvergramError, LineageError
from evergram.evaluation.metric_sample import MetricSample, sample_test
from evergram.evaluation.probe_process import ProbeLimits
from evergram.evaluation.ranking import Relevance, query_metrics
from evergram.evaluation.score_blocks import best_candidates
from evergram.lineage.artefact import Block
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.diagnosis import LEAST_QUERIES
from evergram.lineage.lineage import Lineage, side_of
from evergram.lineage.score_maps import Metric, ScoredSearch, ScoreMaps
from evergram.releasing.evaluate import tested
from evergram.releasing.past_versions import known_vectors, past_model
from evergram.releasing.probes import ProbeSource, probe_reading
from evergram.retrieval.backfill import reading_errors
from evergram.retrieval.reader import UNIT
from evergram.retrieval.version_maps import VersionMaps
from evergram.training.build import corpus_for
from evergram.training.recipe import Recipe

# Vectors [N, D_v] by version, newest first; NaN for objects that a version lacks.
_Rows = Mapping[int, Tensor]
# Share of an index's rows by age in versions.
Stale = Mapping[int, float]
# The default sweep measures each share at each age, and MIXED. `publish` limits the loss at HALF.
SHARES, AGES, MIXED, HALF = (0.2, 0.5, 0.8, 1.0), 3, {1: 0.5, 2: 0.2}, {1: 0.5}
# Random draws of the stale rows, and Student's t for their 95 % interval.
DRAWS, STUDENT = 5, 2.776
# At least QUERIES queries are ranked, and more while a sweep computes at most SCORES scores per
# draw; without test pairs, NEIGHBOURS per query and at most CATALOGUE rows.
QUERIES, SCORES, CATALOGUE, NEIGHBOURS = 2000, 10**9, 20_000, 10
# Queries and rows to score, the share of pairs above the threshold, and the number of score bins.
SCORED, ABOVE, BINS = (256, 4096), 0.01, 10
CHAIN, WORST, RAW, CALIBRATED = "chain", "worst first", "raw", "calibrated"


@dataclass(frozen=True)
class SkewReading:
    """An index with stale rows, compared with the same index after a full refresh. Values that
    could not be measured are None.

    Args:
        stale: requested share of rows by age in versions.
        drawn: actual shares; lower where an old version lacks newer objects.
        read: "chain" reads each row from its version; "worst first" does so after a backfill has
            refreshed the rows with the largest errors; "raw" treats old vectors as new;
            "calibrated" is "chain" with calibrated scores.
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
        found, few, zero = [], "", f"{self.metric} is 0 even after a full refresh."
        if self.queries < LEAST_QUERIES:
            few = f"only {self.queries} queries were ranked; {LEAST_QUERIES} are needed."
        for one in (reading for reading in self.readings if reading.read == CHAIN):
            rows = ", ".join(f"{share:.0%} of rows {age} old" for age, share in one.stale.items())
            if few or one.high is None or math.isnan(one.high):
                why = few or one.problem or zero
                found.append(f"With {rows}, the loss is unknown: {why}")
            elif one.high > limit:
                lost = f"{one.loss:.2f} % of {self.metric} (up to {one.high:.2f} %)"
                found.append(f"With {rows}, the index loses {lost}; the limit is {limit:g} %.")
        return found


@dataclass(frozen=True)
class _Index:
    """An index to measure: `rows` are ranked for queries [Q, D], and consumers read `sides`, ids
    [N] and rows.

    Args:
        past: versions by age, starting with the newest but one.
        ranked: sides of the queries and of the rows.
        population: number of queries from which `relevance` was sampled.
        cosine: scale rows to length 1, because all new ones have it and mapped ones do not.
    """

    lineage: Lineage
    past: Sequence[int]
    maps: VersionMaps
    seed: int
    cosine: bool
    sides: Mapping[str, tuple[pa.Array, _Rows]]
    rows: _Rows
    ranked: tuple[str, str]
    queries: Tensor
    relevance: Relevance
    population: int
    metric: str

    @cached_property
    def new(self) -> Tensor:
        return self.read(self.rows, self.drawn(self.rows, {}), self.lineage.newest)

    @cached_property
    def fresh(self) -> Tensor:
        return self.values(self.new)

    def values(self, rows: Tensor) -> Tensor:
        """Return the metric of each query, float64 [Q], of rows [N, D]."""
        name = self.metric.replace("overlap", "recall")
        return query_metrics(self.queries, rows, self.relevance, [name])[name]

    def drawn(self, rows: _Rows, mixture: Stale, read: str = CHAIN, number: int = 0) -> Tensor:
        """Draw each row's version, int64 [N]; for "worst first", rows with the smallest errors are
        stale. The oldest version chooses first because it has the fewest objects."""
        newest, draw = (
            self.lineage.newest,
            torch.Generator().manual_seed(self.seed * DRAWS + number),
        )
        drawn = torch.full((len(rows[newest]),), newest)
        order = torch.randperm(len(drawn), generator=draw)
        for version, share in sorted((self.past[a - 1], share) for a, share in mixture.items()):
            if version not in rows:
                raise LineageError(f"The vectors of version {version} are not available.")
            if read == WORST:
                pair = rows[version].numpy(), rows[newest].numpy()
                errors = reading_errors(self.maps, *pair, version, newest)
                order = torch.from_numpy(np.argsort(errors, kind="stable"))
            free = ((drawn == newest) & ~rows[version].isnan().any(1))[order]
            drawn[order[free][: round(share * len(order))]] = version
        return drawn

    def read(self, rows: _Rows, drawn: Tensor, target: int, raw: bool = False) -> Tensor:
        """Read each row from its version, or from the newest if `raw`, as `target` [N, D_target].
        Raises: LineageError: a row cannot be read."""
        read = torch.empty(len(drawn), self.maps.dim(target))
        for version in torch.unique(drawn).tolist():
            vectors, source = rows[version], self.lineage.newest if raw else version
            if vectors.shape[1] != self.maps.dim(source):
                raise LineageError(
                    f"Raw vectors of version {version} cannot be compared: they have "
                    f"{vectors.shape[1]} dims, those of version {source} {self.maps.dim(source)}."
                )
            mapped = self.maps.rows(vectors[drawn == version].numpy(), source, target)
            read[drawn == version] = torch.from_numpy(mapped)
        scaled = self.cosine and target == self.lineage.newest
        return functional.normalize(read) if scaled else read


def skew(
    lineage: Lineage,
    stale: Sequence[Stale] | None = None,
    corpus: Corpus | None = None,
    *,
    recipe: Recipe | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
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
        progress: called with the number of measured mixtures, and of all.
    Raises: LineageError: the newest version is the only one. DataError: invalid mixture.
    """
    past = [m.version for m in lineage.versions][-2::-1]
    if not past:
        raise LineageError("The lineage has only one version, so no row can be stale.")
    ages = range(1, len(past) + 1)
    mixtures = [{age: share} for age in ages[:AGES] for share in SHARES] + [MIXED][: len(past) - 1]
    mixtures = mixtures if stale is None else [dict(mixture) for mixture in stale]
    for one in mixtures:
        shares = one.values()
        if not one.keys() <= {*ages} or sum(shares) > 1 + 1e-9 or not min(shares, default=0) > 0:
            allowed = f"positive shares that add up to at most 1, for ages from 1 to {len(past)}"
            raise DataError(f"{one} is not a valid mixture; give {allowed}, such as {{1: 0.5}}.")
    past, report = past[: max(max(one) for one in mixtures)], progress or (lambda done, total: None)
    report(0, len(mixtures))
    notes, readings = list[str](), list[SkewReading]()
    index = _index(lineage, past, (corpus, recipe, seed, SCORES // len(mixtures)), notes)
    for done, mixture in enumerate(mixtures, 1):
        readings += [_reading(index, mixture, way) for way in (CHAIN, WORST, RAW, CALIBRATED)]
        report(done, len(mixtures))
    return SkewReport(
        version=lineage.newest,
        metric=index.metric,
        fresh=float(index.fresh.mean()),
        queries=len(index.relevance),
        rows=len(index.new),
        probes=_probes(index, {}),
        readings=tuple(readings),
        notes=tuple(notes),
    )


def _index(
    lineage: Lineage, past: Sequence[int], given: tuple[Any, Any, int, int], notes: list[str]
) -> _Index:
    """Build an index with test pairs or neighbours. `given` is the corpus, the recipe, the seed and
    the number of scores to compute per draw."""
    corpus, recipe, seed, scores = given
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
    sides = {side: (ids, {newest.version: z.detach().float()}) for side, (ids, z) in new.items()}
    for version in past:
        try:
            found = _vectors(lineage, version, None if split is None else split.training, notes)
        except EvergramError as error:
            notes.append(f"Version {version} cannot be measured: {error}")
            continue
        for side in sides.keys() & found.keys():
            (ids, by_version), (theirs, z) = sides[side], found[side]
            places = Vocabulary(theirs).rows(ids)
            known = z.detach().float()[places.clamp(min=0)]
            by_version[version] = known.masked_fill((places < 0)[:, None], torch.nan)
    rows = sides[side := side_of(sides, str(lineage))][1]
    draw, among = torch.Generator().manual_seed(seed), rows[newest.version]
    unit = bool(((among.double().norm(dim=1) - 1).abs() < UNIT).all())
    made = partial(_Index, lineage, past, VersionMaps(lineage), seed, unit, sides)
    if split is not None:
        drawn, population = sample_test(split, max(QUERIES, scores // len(among)), seed)
        return made(rows, SIDES, vectors["query"].float(), drawn, population, metric)
    asking = "query" if "query" in sides else side
    # Rank only objects that all versions have, and never an object against itself.
    order = torch.nonzero(~torch.cat(list(rows.values()), dim=1).isnan().any(1))[:, 0]
    order = order[torch.randperm(len(order), generator=draw)]
    queries = sides[asking][1][newest.version]
    asked = torch.randperm(len(queries), generator=draw)[:QUERIES]
    if asking == side:
        asked, order = order.tensor_split([min(QUERIES, len(order) // 5)])
    rows = {version: z[order[:CATALOGUE]] for version, z in rows.items()}
    queries, among = queries[asked], rows[newest.version]
    best = best_candidates(queries, functional.normalize(among) if unit else among, NEIGHBOURS)
    each, none = torch.arange(len(queries)), torch.empty(0, dtype=torch.int64)
    targets = Relevance.of(each.repeat_interleave(best.shape[1]), best.flatten(), none, none)
    return made(rows, (asking, side), queries, targets, len(queries), f"overlap@{NEIGHBOURS}")


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
    masked = {s: rows[s].masked_fill(~known[s][:, None], torch.nan) for s in SIDES}
    return {side: (each.vocabulary.keys, masked[side]) for side, each in entities}


def _reading(index: _Index, mixture: Stale, read: str) -> SkewReading:
    values, drawn, found = [], dict[int, float](), dict[str, Any]()
    try:
        for number in range(DRAWS if read in (CHAIN, RAW) else 1):
            versions = index.drawn(index.rows, mixture, read, number)
            shares = {age: (versions == index.past[age - 1]).double().mean() for age in mixture}
            drawn = drawn or {age: float(share) for age, share in shares.items()}
            rows = index.read(index.rows, versions, index.lineage.newest, read == RAW)
            found = found or _scored(index, versions, rows, read)
            if read != CALIBRATED:  # calibration changes scores, not vectors
                values.append(index.values(rows))
        if values:
            stacked, fresh = torch.stack(values), index.fresh
            loss, error = MetricSample(stacked.mean(0), index.population).loss(fresh)
            if len(values) > 1:
                of_draws = stacked.mean(1).std() / fresh.mean() / math.sqrt(len(values))
                error = math.hypot(error, 100 * float(of_draws))
            half = STUDENT * error
            found |= {"loss": loss, "low": loss - half, "high": loss + half}
        if read in (CHAIN, RAW):
            found["probes"] = _probes(index, mixture, read == RAW)
    except EvergramError as error:
        found = {"problem": str(error)}
    return SkewReading(dict(mixture), read, drawn, **found)


def _scored(index: _Index, versions: Tensor, rows: Tensor, read: str) -> dict[str, float]:
    """Return `above` and `calibration` of a reading, on a sample of queries and rows."""
    # No draw of stale rows has this seed.
    draw = torch.Generator().manual_seed(index.seed * DRAWS + DRAWS)
    some = torch.randperm(len(rows), generator=draw)[: SCORED[1]]
    queries = index.queries[index.relevance.queries[: SCORED[0]]].double()
    queries = functional.normalize(queries) if index.cosine else queries
    was, now = (queries @ each[some].double().T for each in (index.new, rows))
    if read == CALIBRATED:
        maps, newest = ScoreMaps(index.lineage), index.lineage.newest
        metric: Metric = "cosine" if index.cosine else "ip"
        search = ScoredSearch(newest, index.ranked, metric, newest)
        for version in set(versions[some].tolist()) - {newest}:
            theirs = versions[some] == version
            mapped = maps.of(version, search).apply(now[:, theirs].numpy())
            now[:, theirs] = torch.from_numpy(mapped)
    was, now = was.flatten(), now.flatten()
    threshold = was.topk(max(1, round(ABOVE * len(was)))).values[-1]
    above = [int((each >= threshold).sum()) for each in (now, was)]
    bins = (now - was)[torch.argsort(now)].tensor_split(BINS)
    away = sum(abs(float(each.sum())) for each in bins) / len(was)
    return {"above": above[0] / above[1], "calibration": away / max(float(was.std()), 1e-300)}


def _probes(index: _Index, mixture: Stale, raw: bool = False) -> dict[str, float | None]:
    """Run each consumer's probe on one draw of the rows, read as the consumer's version."""
    lineage, found = index.lineage, dict[str, float | None]()
    consumers, limits = ConsumerRegistry.open(lineage.address), ProbeLimits.of_environment()
    for consumer in consumers.list():
        if consumer.probe is None:
            continue
        side, found[consumer.name] = consumer.probe.side, None
        ids, rows = index.sides.get(side, (None, {}))
        if not {lineage.newest, *(index.past[age - 1] for age in mixture)} <= rows.keys():
            continue
        newest = consumer.pinned == "newest"
        version = lineage.newest if newest else lineage.resolve(consumer.pinned)
        block = ids, index.read(rows, index.drawn(rows, mixture), version, raw)
        source = ProbeSource(version, lineage.chain, lineage, rows={side: block})
        found[consumer.name] = probe_reading(consumers, consumer, source, limits).value
    return found
