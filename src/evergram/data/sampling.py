"""Samplers: epochs of batches of pairs, of entities, and of whole queries with all their pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from evergram.data.corpus import Corpus, take_ragged
from evergram.errors import DataError

# Rounds of drawing rejected negatives again; a query that has met nearly all keeps its last.
REJECTIONS = 32
# Pairs that are gathered at once.
GATHERED = 65_536
# r ∝ count^power of the samplers of [G2] §4.1.
POWERS = {"uniform": 0.0, "sqrt": 0.5, "linear": 1.0, "adaptive": 1.0}
# Entities of a pool for each that a step keeps.
POOL_FACTOR = 8


def moved_to(value: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; a GPU copies from pinned memory without blocking."""
    if device.type == "cuda" and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


class Movable:
    """A dataclass of tensors."""

    def to(self, device: torch.device) -> Self:
        moved: dict[str, Any] = {}
        for name, value in vars(self).items():
            moved[name] = None if value is None else moved_to(value, device)
        return type(self)(**moved)


@dataclass(frozen=True)
class Batch(Movable):
    """B observed pairs.

    Args:
        query, candidate: int64 [B], rows of the corpus.
        target: float32 [B], the wanted score.
        query_weight, candidate_weight: float32 [B, R], μ = p/r and ν = q/r for each of R measures:
            with them mean(μ u⊗u) has the measure's Gramian as its expectation.
        negative: int64 [B], a candidate that the query has not met; or None.
        pair_weight: float32 [B], the sparse part of the penalty's weights; or None.
        pair_share: float32 [B], B over the pairs that a batch has on average, where batches vary in
            size: a mean of losses times this has the mean over all pairs as its expectation. None
            where all batches are as large.
    """

    query: Tensor
    candidate: Tensor
    target: Tensor
    query_weight: Tensor
    candidate_weight: Tensor
    negative: Tensor | None = None
    pair_weight: Tensor | None = None
    pair_share: Tensor | None = None


@dataclass(frozen=True)
class Draw(Movable):
    """Entities of one side: int64 [B] rows, float32 [B, R] weights."""

    ids: Tensor
    weights: Tensor


def measure(counts: Tensor, power: float) -> Tensor:
    """Return the measure p_a ∝ count_a^power over entities with interactions, float64 [N], sum 1.

    Args:
        counts: int64 [N], interactions of each entity.
        power: 0 is `uniform` ([G2], implicit ALS), 1 is `example` ([G1]).
    Source: docs/method.md, "Measures".
    """
    weight = torch.where(counts > 0, counts.double().clamp(min=1) ** power, 0.0)
    return weight / weight.sum()


def weights(measures: Tensor, rate: Tensor) -> Tensor:
    """Return μ = p/r, float32 [N, R], for measures p [N, R] of entities drawn with rate r [N]."""
    drawn = (rate > 0)[:, None]
    return torch.where(drawn, measures / rate.clamp(min=1e-300)[:, None], 0.0).float()


@dataclass(frozen=True)
class PairDraws:
    """Settings of how an `ExampleSampler` draws pairs.

    Args:
        target: "one" (every observed pair should score 1) or "value" (the value of the corpus).
        positives: "examples": every pair once an epoch, in a new order. "queries": a query drawn
            uniformly, then one of its pairs (p ∝ 1/deg(query)), with replacement. "whole_queries"
            is `WholeQuerySampler`'s.
        negatives: True draws for each pair another candidate, uniformly among those that the query
            has not met.
        short_batch: True trains on the pairs of an epoch that do not fill a batch, too, in a last,
            smaller one.
    """

    target: str = "one"
    positives: str = "examples"
    negatives: bool = False
    short_batch: bool = False


class ExampleSampler:
    """Draws epochs of the observed pairs; each is a function of (seed, epoch).

    Args:
        corpus: the observed pairs.
        draws: how they are drawn; None is `PairDraws()`.
        batch_size: B; a smaller corpus is one batch.
        seed: of the draws.
        measures: of each side, "query" and "candidate", R measures, float64 [N, R]; a side that is
            not there has the uniform one.
        pair_weight: float [n], one for each observed pair.
    Attributes:
        expected: pairs of a batch on average, where batches vary in size; else None.
    Raises: DataError: targets are values and the corpus has none.
    """

    expected: float | None = None

    def __init__(
        self,
        corpus: Corpus,
        draws: PairDraws | None = None,
        *,
        batch_size: int,
        seed: int,
        measures: Mapping[str, Tensor] | None = None,
        pair_weight: Tensor | None = None,
    ) -> None:
        draws = draws or PairDraws()
        self._begin(corpus, draws, batch_size, seed)
        self.query: Tensor = corpus.column("query")
        self.candidate: Tensor = corpus.column("candidate")
        # None where every observed pair should score 1.
        self.target: Tensor | None = corpus.column("value") if draws.target == "value" else None
        size, degrees = len(corpus), self.counts["query"]
        chance = torch.full((size,), 1 / size, dtype=torch.float64)
        if draws.positives == "queries":
            seen = int((degrees > 0).sum())
            chance = 1 / (seen * degrees.double()[self.query])
            self.order: Tensor = torch.argsort(self.query, stable=True)
            self.offsets: Tensor = torch.zeros(len(degrees) + 1, dtype=torch.int64)
            torch.cumsum(degrees, 0, out=self.offsets[1:])
        rates = {
            side: torch.zeros(len(count), dtype=torch.float64).index_add_(0, rows, chance)
            for (side, count), rows in zip(
                self.counts.items(), (self.query, self.candidate), strict=True
            )
        }
        self._weigh(rates, measures)
        # A mean over batches estimates the mean over all pairs, however the pairs are drawn.
        self.pair_weight: Tensor | None = None
        if pair_weight is not None:
            self.pair_weight = (pair_weight.double() / (size * chance)).float()
        self.known: Tensor = torch.zeros(0)
        if draws.negatives:
            self.known = torch.unique(self.query * self.candidates + self.candidate)

    def _begin(self, corpus: Corpus, draws: PairDraws, batch_size: int, seed: int) -> None:
        if draws.target == "value" and not corpus.has_values:
            raise DataError("task.target = 'value' needs a column 'value'; use 'one' without it.")
        self.batch_size: int = min(batch_size, len(corpus))
        self.seed = seed
        self.positives: str = draws.positives
        self.size: int = len(corpus)
        if not draws.short_batch:
            self.size -= self.size % self.batch_size
        self.counts: dict[str, Tensor] = {
            side: corpus.counts(side) for side in ("query", "candidate")
        }
        self.candidates: int = len(self.counts["candidate"])

    def _weigh(self, rates: dict[str, Tensor], measures: Mapping[str, Tensor] | None) -> None:
        """Weigh each entity so that its draws, at these rates, stand for the measures."""
        uniform = {side: measure(count, 0.0)[:, None] for side, count in self.counts.items()}
        self.rates: dict[str, Tensor] = rates
        self.measures: dict[str, Tensor] = uniform | dict(measures or {})
        self.query_weights: Tensor = weights(self.measures["query"], rates["query"])
        self.candidate_weights: Tensor = weights(self.measures["candidate"], rates["candidate"])

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from batch `start` on, as the whole epoch has them."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order, sizes = self._order(generator)
        if len(self.known) and start:  # one generator draws the negatives of all batches in turn
            for index in torch.split(order, sizes)[:start]:
                self._negative(self.query[index], generator)
        for index, query, candidate, *both in self._cut(order, sizes, start):
            pair_weight = None if self.pair_weight is None else self.pair_weight[index]
            share = None
            if self.expected is not None:
                # So pairs of a large batch count as those of a small one in a mean over the batch.
                of_mean = len(index) / self.expected
                share = torch.full((len(index),), of_mean)
                both = [of_mean * weight for weight in both]
                pair_weight = None if pair_weight is None else of_mean * pair_weight
            yield Batch(
                query,
                candidate,
                torch.ones(len(index)) if self.target is None else self.target[index],
                both[0],
                both[1],
                self._negative(query, generator) if len(self.known) else None,
                pair_weight,
                share,
            )

    def _cut(self, order: Tensor, sizes: list[int], start: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield the places, rows and weights of each batch from `start` on; several small batches
        are gathered at once by `index_select`, a third of the time of an index in brackets."""
        ends = list(accumulate(sizes, initial=0))
        block = max(1, GATHERED // self.batch_size)
        for first in range(start, len(sizes), block):
            some = sizes[first : first + block]
            places = order[ends[first] : ends[first + len(some)]]
            query = self.query.index_select(0, places)
            candidate = self.candidate.index_select(0, places)
            columns = (
                *(places, query, candidate),
                self.query_weights.index_select(0, query),
                self.candidate_weights.index_select(0, candidate),
            )
            yield from zip(*(torch.split(column, some) for column in columns), strict=True)

    def _order(self, generator: torch.Generator) -> tuple[Tensor, list[int]]:
        """Return the places of an epoch's pairs in their order, int64, and the sizes of batches."""
        whole, rest = divmod(self.size, self.batch_size)
        sizes = [self.batch_size] * whole + [rest] * (rest > 0)
        if self.positives != "queries":
            return torch.randperm(len(self.query), generator=generator)[: self.size], sizes
        counts = self.offsets.diff()
        met = torch.nonzero(counts).flatten()
        query = met[torch.randint(len(met), (self.size,), generator=generator)]
        chance = torch.rand(self.size, generator=generator, dtype=torch.float64)
        nth = (chance * counts[query]).long()
        return self.order[self.offsets[query] + nth], sizes

    def _negative(self, query: Tensor, generator: torch.Generator) -> Tensor:
        """Return a candidate that each query has not met, int64 [B]."""
        drawn = torch.randint(self.candidates, query.shape, generator=generator)
        met = torch.arange(len(query))
        for _ in range(REJECTIONS):
            met = met[self._has(query[met], drawn[met])]
            if not len(met):
                break
            drawn[met] = torch.randint(self.candidates, met.shape, generator=generator)
        return drawn

    def _has(self, query: Tensor, candidate: Tensor) -> Tensor:
        key = query * self.candidates + candidate
        return self.known[torch.searchsorted(self.known, key).clamp(max=len(self.known) - 1)] == key


def places(bounds: Tensor, chance: Tensor) -> Tensor:
    """Return the place of each number of [0, 1) among cumulated probabilities [N], int64 [B]."""
    # Rounding may leave the last bound below 1.
    ids = torch.searchsorted(bounds, chance * bounds[-1], right=True)
    return ids.clamp(max=len(bounds) - 1)


def measures(counts: Tensor, powers: Sequence[float]) -> Tensor:
    """Return the power measures of one side, one a power, float64 [N, R]."""
    return torch.stack([measure(counts, power) for power in powers], dim=1)


# The share of draws that are uniform over the pool: no weight is multiplied by more than 1/MIX.
MIX = 0.1


def proposal(scores: Tensor) -> Tensor:
    """Return the probabilities q = (1 − ε) score / Σ score + ε / P, float64 [P].

    Args:
        scores: [P], ≥ 0; where all are 0, q is uniform.
    Source: docs/method.md, "Adaptive sampling".
    """
    wide = scores.double()
    # By the largest, so that no sum overflows; what is below all normal numbers counts as 0.
    least = torch.finfo(torch.float64).tiny
    largest = wide.max()
    shares = wide / largest.clamp(min=least)
    even = torch.full_like(wide, 1 / len(wide))
    uneven = (1 - MIX) * shares / shares.sum().clamp(min=least) + MIX * even
    return torch.where(largest >= least, uneven, even)


@dataclass(frozen=True)
class Pool(Draw):
    """A draw of P entities, of which a step keeps B by their scores.

    Args:
        ids, weights: int64 [P] and float32 [P, R] of the first pass, in itself a draw that stands
            for the measures.
        chance: float64 [B], uniform in [0, 1): it decides the second pass, once there are scores.
    """

    chance: Tensor

    def resample(self, scores: Tensor) -> Draw:
        """Return B entities of the pool, drawn with replacement by `proposal(scores)`.

        Weights are μ/(P q): (1/B) Σ μ f over the draw has (1/P) Σ μ f over the pool as its
        expectation, for any function f of an entity and any scores.

        Args:
            scores: [P], ≥ 0, made without knowledge of `chance`.
        """
        chances = proposal(scores)
        kept = places(torch.cumsum(chances, 0), self.chance)
        ratio = 1 / (len(self.ids) * chances[kept])
        weights = (self.weights[kept].double() * ratio[:, None]).to(self.weights)
        return Draw(self.ids[kept], weights)


class EntitySampler:
    """Draws entities of one side, independently of the pairs, with replacement: "uniform", "sqrt"
    or "linear" with r ∝ 1, √count or count ([G2] §4.1); "adaptive" draws pools of `pool_size`, with
    r ∝ count, of which `Pool.resample` keeps `batch_size`. Each is a function of (seed, epoch)."""

    def __init__(
        self,
        counts: Tensor,
        measures: Tensor,
        *,
        kind: str,
        batch_size: int,
        seed: int,
        pool_size: int | None = None,
    ) -> None:
        rate = measure(counts, POWERS[kind])
        self.bounds: Tensor = torch.cumsum(rate, 0)
        self.weights: Tensor = weights(measures, rate)
        self.batch_size = batch_size
        self.pool_size: int = 0
        if kind == "adaptive":
            self.pool_size = pool_size or POOL_FACTOR * batch_size
        self.seed = seed

    def epoch(self, number: int, batches: int, start: int = 0) -> Iterator[Draw]:
        """Yield the draws of an epoch of so many batches, from batch `start` on."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        sizes = [self.pool_size, self.batch_size] if self.pool_size else [self.batch_size]
        for place in range(batches):
            chances = [torch.rand(n, generator=generator, dtype=torch.float64) for n in sizes]
            if place >= start:
                ids = places(self.bounds, chances[0])
                drawn = self.weights[ids]
                yield Pool(ids, drawn, chances[1]) if self.pool_size else Draw(ids, drawn)


class WholeQuerySampler(ExampleSampler):
    """Draws epochs of the queries in a new order; a batch has all pairs of as many queries as have
    `batch_size` pairs on average, so that its size varies, see `Batch.pair_share`. An epoch's last
    batch has the queries that are left. Arguments are those of `ExampleSampler`."""

    def __init__(
        self,
        corpus: Corpus,
        draws: PairDraws | None = None,
        *,
        batch_size: int,
        **options: Any,
    ) -> None:
        super().__init__(corpus, draws, batch_size=batch_size, **options)
        self.size: int = len(corpus)
        degrees = self.counts["query"]
        self.met: Tensor = torch.nonzero(degrees).flatten()
        mean = len(corpus) / len(self.met)
        self.queries: int = min(max(1, round(batch_size / mean)), len(self.met))
        self.expected: float | None = self.queries * mean
        self.batch_size: int = max(1, round(self.queries * mean))
        self.by_query: Tensor = torch.argsort(self.query, stable=True)
        self.ends: Tensor = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])

    def __len__(self) -> int:
        return -(-len(self.met) // self.queries)

    def _order(self, generator: torch.Generator) -> tuple[Tensor, list[int]]:
        queries = self.met[torch.randperm(len(self.met), generator=generator)]
        order, ends = take_ragged(self.by_query, self.ends, queries)
        cuts = torch.cat([ends[: -1 : self.queries], ends[-1:]])
        return order, cuts.diff().tolist()
