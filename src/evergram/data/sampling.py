"""Samplers: draw epochs of batches of pairs, of entities, or of queries with all their pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, Self

import torch
from torch import Tensor

from evergram.data.corpus import Corpus, offsets_of, take_ragged
from evergram.data.sorted_pairs import RowBlock, SortedPairs
from evergram.errors import DataError
from evergram.mapped_tensors import fill, zeros_beside

# Redraw rejected negatives at most this often, then keep the last draw.
REJECTIONS = 32
# Gather this many pairs at once.
GATHERED = 65_536
# Exponents of r ∝ count^power for the samplers of [G2] §4.1.
POWERS = {"uniform": 0.0, "sqrt": 0.5, "linear": 1.0, "adaptive": 1.0}
# Default pool size, in batches.
POOL_FACTOR = 8


def moved_to(value: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; copies to a GPU use pinned memory and do not block."""
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
    """B observed pairs."""

    # int64 [B], rows of the corpus.
    query: Tensor
    candidate: Tensor
    target: Tensor  # float32 [B], the score to fit
    # float32 [B, R], μ = p/r and ν = q/r for each of R measures: the expectation of mean(μ u⊗u) is
    # the measure's Gramian.
    query_weight: Tensor
    candidate_weight: Tensor
    negative: Tensor | None = None  # int64 [B], a candidate that the query has not met; or None
    # float32 [B], the sparse part of the penalty's weights; or None.
    pair_weight: Tensor | None = None
    # float32 [B], B over the mean batch size, if batches vary in size: the batch mean of loss ×
    # share is an unbiased estimate of the mean over all pairs. None if all batches have the same
    # size.
    pair_share: Tensor | None = None


@dataclass(frozen=True)
class Draw(Movable):
    """Entities of one side: int64 [B] rows, float32 [B, R] weights."""

    ids: Tensor
    weights: Tensor


def measure(counts: Tensor, power: float) -> Tensor:
    """Return the measure p_a ∝ count_a^power of entities with interactions, float64 [N], sum 1.

    Args:
        counts: int64 [N], interactions of each entity.
        power: 0 is `uniform` ([G2], implicit ALS), 1 is `example` ([G1]).
    Source: docs/method.md, "Measures".
    """
    weight = raised(counts, power)
    return weight.div_(weight.sum())


def raised(counts: Tensor, power: float) -> Tensor:
    """Return count^power, float64 [N]; 0 for entities without interactions."""

    def block(rows: slice) -> Tensor:
        return torch.where(counts[rows] > 0, counts[rows].double().clamp(min=1) ** power, 0.0)

    return fill(zeros_beside(counts, len(counts), dtype=torch.float64), block)


def weights(measures: Tensor, rate: Tensor) -> Tensor:
    """Return μ = p/r, float32 [N, R], for measures p [N, R] and sampling rates r [N]."""

    def block(rows: slice) -> Tensor:
        rates = rate[rows, None]
        return torch.where(rates > 0, measures[rows] / rates.clamp(min=1e-300), 0.0)

    return fill(zeros_beside(rate, *measures.shape, dtype=torch.float32), block)


@dataclass(frozen=True)
class PairDraws:
    """How an `ExampleSampler` draws pairs."""

    # "one" (every observed pair should score 1) or "value" (the corpus's value).
    target: str = "one"
    # "examples": every pair once an epoch, in random order. "queries": a query drawn uniformly,
    # then one of its pairs (p ∝ 1/deg(query)), with replacement. "whole_queries": see
    # `WholeQuerySampler`.
    positives: str = "examples"
    # Draw a negative for each pair, uniformly among the candidates that the query has not met.
    negatives: bool = False
    short_batch: bool = False  # True keeps the last, smaller batch of an epoch; False drops it


class ExampleSampler:
    """Draws epochs of the observed pairs; (seed, epoch) determines an epoch.

    Args:
        draws: how to draw them; None is `PairDraws()`.
        batch_size: B; a smaller corpus is one batch.
        measures: R measures, float64 [N, R], by side, "query" and "candidate"; a missing side gets
            the uniform measure.
        pair_weight: float [n], one weight for each observed pair.
    Attributes:
        mean_size: the mean number of pairs of a batch, if batches vary in size; else None.
    Raises: DataError: targets are values, but the corpus has none.
    """

    mean_size: float | None = None

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
        # None if every observed pair should score 1.
        self.target: Tensor | None = corpus.column("value") if draws.target == "value" else None
        size, degrees = len(corpus), self.counts["query"]
        chance = torch.full((size,), 1 / size, dtype=torch.float64)
        if draws.positives == "queries":
            active = int((degrees > 0).sum())
            chance = 1 / (active * degrees.double()[self.query])
            self.order: Tensor = torch.argsort(self.query, stable=True)
            self.offsets: Tensor = offsets_of(degrees)
        rates = {
            side: torch.zeros(len(count), dtype=torch.float64).index_add_(0, rows, chance)
            for (side, count), rows in zip(
                self.counts.items(), (self.query, self.candidate), strict=True
            )
        }
        self._weigh(rates, measures)
        # Dividing by the sampling rate makes the batch mean an unbiased estimate of the mean.
        self.pair_weight: Tensor | None = None
        if pair_weight is not None:
            self.pair_weight = (pair_weight.double() / (size * chance)).float()
        self.pair_keys: Tensor = torch.zeros(0)
        if draws.negatives:
            self.pair_keys = torch.unique(self.query * self.candidates + self.candidate)

    def _begin(
        self,
        corpus: Corpus,
        draws: PairDraws,
        batch_size: int,
        seed: int,
        *,
        weighted: bool = False,
    ) -> None:
        if draws.target == "value" and not corpus.has_values:
            raise DataError("task.target = 'value' needs a column 'value'; use 'one' without it.")
        if weighted and "weight" not in corpus.interactions.column_names:
            raise DataError(
                "task.sparse = 'weight' needs a column 'weight'; use 'none' without it."
            )
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
        """Set importance weights p/r, so that draws at rates r represent the measures p."""
        self.rates: dict[str, Tensor] = rates
        self.measures: dict[str, Tensor] = dict(measures or {})
        for side, count in self.counts.items():
            if side not in self.measures:
                self.measures[side] = measure(count, 0.0)[:, None]
        self.query_weights: Tensor = weights(self.measures["query"], rates["query"])
        self.candidate_weights: Tensor = weights(self.measures["candidate"], rates["candidate"])

    def __len__(self) -> int:
        return -(-self.size // self.batch_size)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from batch `start` on, the same as in the whole epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order, sizes = self._order(generator)
        if len(self.pair_keys) and start:  # advance the generator past the skipped negatives
            for index in torch.split(order, sizes)[:start]:
                self._negative(self.query[index], generator)
        for index, query, candidate, *weights in self._cut(order, sizes, start):
            pair_weight = None if self.pair_weight is None else self.pair_weight[index]
            pair_share = None
            if self.mean_size is not None:
                # Pairs of large and small batches get the same weight in an epoch.
                share = len(index) / self.mean_size
                pair_share = torch.full((len(index),), share)
                weights = [share * weight for weight in weights]
                pair_weight = None if pair_weight is None else share * pair_weight
            yield Batch(
                query,
                candidate,
                torch.ones(len(index)) if self.target is None else self.target[index],
                weights[0],
                weights[1],
                self._negative(query, generator) if len(self.pair_keys) else None,
                pair_weight,
                pair_share,
            )

    def _cut(self, order: Tensor, sizes: list[int], start: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield each batch's pair positions, rows and weights; small batches are read together."""
        ends = list(accumulate(sizes, initial=0))
        block = max(1, GATHERED // self.batch_size)
        for first in range(start, len(sizes), block):
            block_sizes = sizes[first : first + block]
            index = order[ends[first] : ends[first + len(block_sizes)]]
            query = self.query.index_select(0, index)
            candidate = self.candidate.index_select(0, index)
            columns = (
                index,
                query,
                candidate,
                self.query_weights.index_select(0, query),
                self.candidate_weights.index_select(0, candidate),
            )
            yield from zip(*(torch.split(column, block_sizes) for column in columns), strict=True)

    def _order(self, generator: torch.Generator) -> tuple[Tensor, list[int]]:
        """Return the positions of an epoch's pairs in order, int64, and the batch sizes."""
        whole, rest = divmod(self.size, self.batch_size)
        sizes = [self.batch_size] * whole + [rest] * (rest > 0)
        if self.positives != "queries":
            return torch.randperm(len(self.query), generator=generator)[: self.size], sizes
        counts = self.offsets.diff()
        active = torch.nonzero(counts).flatten()
        query = active[torch.randint(len(active), (self.size,), generator=generator)]
        chance = torch.rand(self.size, generator=generator, dtype=torch.float64)
        nth = (chance * counts[query]).long()
        return self.order[self.offsets[query] + nth], sizes

    def _negative(self, query: Tensor, generator: torch.Generator) -> Tensor:
        """Return a candidate that each query has not met, int64 [B]."""
        drawn = torch.randint(self.candidates, query.shape, generator=generator)
        rejected = torch.arange(len(query))
        for _ in range(REJECTIONS):
            rejected = rejected[self._has(query[rejected], drawn[rejected])]
            if not len(rejected):
                break
            drawn[rejected] = torch.randint(self.candidates, rejected.shape, generator=generator)
        return drawn

    def _has(self, query: Tensor, candidate: Tensor) -> Tensor:
        key, keys = query * self.candidates + candidate, self.pair_keys
        return keys[torch.searchsorted(keys, key).clamp(max=len(keys) - 1)] == key


def inverse_cdf(bounds: Tensor, chance: Tensor) -> Tensor:
    """Map numbers in [0, 1), [B], to entities by cumulative probabilities [N]; int64 [B]."""
    # Rounding may leave the last bound below 1.
    ids = torch.searchsorted(bounds, chance * bounds[-1], right=True)
    return ids.clamp(max=len(bounds) - 1)


def measures(counts: Tensor, powers: Sequence[float]) -> Tensor:
    """Return a measure of one side for each power, float64 [N, R]."""
    return torch.stack([measure(counts, power) for power in powers], dim=1)


# ε, the share of draws that are uniform over the pool; it bounds the weights' growth by 1/ε.
MIX = 0.1


def proposal(scores: Tensor) -> Tensor:
    """Return the probabilities q = (1 − ε) score / Σ score + ε / P, float64 [P].

    Args:
        scores: [P], ≥ 0; if all are 0, q is uniform.
    Source: docs/method.md, "Adaptive sampling".
    """
    wide = scores.double()
    # Divide by the largest score so that the sum cannot overflow; subnormal scores count as 0.
    least = torch.finfo(torch.float64).tiny
    largest = wide.max()
    shares = wide / largest.clamp(min=least)
    uniform = torch.full_like(wide, 1 / len(wide))
    mixed = (1 - MIX) * shares / shares.sum().clamp(min=least) + MIX * uniform
    return torch.where(largest >= least, mixed, uniform)


@dataclass(frozen=True)
class Pool(Draw):
    """A draw of P entities, from which a training step resamples B by their scores.

    Args:
        ids, weights: int64 [P] and float32 [P, R] of the first draw; its weights already represent
            the measures.
        chance: float64 [B], uniform in [0, 1): the random numbers of the second draw.
    """

    chance: Tensor

    def resample(self, scores: Tensor) -> Draw:
        """Draw B entities of the pool, with replacement, with probabilities `proposal(scores)`.

        With the weights μ/(P q), the expectation of (1/B) Σ μ f over the draw is (1/P) Σ μ f over
        the pool, for any function f of an entity and any scores.

        Args:
            scores: [P], ≥ 0, independent of `chance`.
        """
        probabilities = proposal(scores)
        chosen = inverse_cdf(torch.cumsum(probabilities, 0), self.chance)
        ratio = 1 / (len(self.ids) * probabilities[chosen])
        weights = (self.weights[chosen].double() * ratio[:, None]).to(self.weights)
        return Draw(self.ids[chosen], weights)


class EntitySampler:
    """Draws entities of one side, independently of the pairs, with replacement. "uniform", "sqrt"
    and "linear" draw with r ∝ 1, √count or count ([G2] §4.1); "adaptive" draws pools of `pool_size`
    with r ∝ count, from which `Pool.resample` draws `batch_size`. (seed, epoch) determines them."""

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
        """Yield the draws of an epoch of `batches` batches, from batch `start` on."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        sizes = [self.pool_size, self.batch_size] if self.pool_size else [self.batch_size]
        for batch in range(batches):
            chances = [torch.rand(n, generator=generator, dtype=torch.float64) for n in sizes]
            if batch >= start:
                ids = inverse_cdf(self.bounds, chances[0])
                drawn = self.weights[ids]
                yield Pool(ids, drawn, chances[1]) if self.pool_size else Draw(ids, drawn)


class WholeQuerySampler(ExampleSampler):
    """Draws epochs of all queries in random order; a batch has all pairs of a fixed number of
    queries, chosen so that batches have `batch_size` pairs on average. Batch sizes vary, see
    `Batch.pair_share`; the last batch has the remaining queries. Arguments: see `ExampleSampler`.
    """

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
        self.active: Tensor = torch.nonzero(degrees).flatten()
        mean = len(corpus) / len(self.active)
        self.queries: int = min(max(1, round(batch_size / mean)), len(self.active))
        self.mean_size: float | None = self.queries * mean
        self.batch_size: int = max(1, round(self.queries * mean))
        self.by_query: Tensor = torch.argsort(self.query, stable=True)
        self.ends: Tensor = offsets_of(degrees)

    def __len__(self) -> int:
        return -(-len(self.active) // self.queries)

    def _order(self, generator: torch.Generator) -> tuple[Tensor, list[int]]:
        queries = self.active[torch.randperm(len(self.active), generator=generator)]
        order, ends = take_ragged(self.by_query, self.ends, queries)
        cuts = torch.cat([ends[: -1 : self.queries], ends[-1:]])
        return order, cuts.diff().tolist()


class SweepSampler(ExampleSampler):
    """Blocks of rows for alternating least squares: all queries, then all candidates. Batches are
    empty, because the step reads `pairs`, in the order of each side's rows.

    Args:
        sparse: `task.sparse`.
    Raises: DataError: the corpus lacks values or weights.
    """

    def __init__(
        self,
        corpus: Corpus,
        draws: PairDraws,
        *,
        seed: int,
        measures: Mapping[str, Tensor],
        sparse: str = "none",
    ) -> None:
        weighted = sparse == "weight"
        self._begin(corpus, draws, len(corpus), seed, weighted=weighted)
        self.excludes: bool = sparse == "exclude"
        self.measures: dict[str, Tensor] = dict(measures)
        names = ["value"] * (draws.target == "value") + ["weight"] * weighted
        self.pairs: dict[str, SortedPairs] = {
            side: corpus.sorted_by(side, names) for side in self.counts
        }
        self.blocks: list[tuple[str, RowBlock]] = [
            (side, block) for side, pairs in self.pairs.items() for block in pairs.blocks
        ]
        self.batch_size: int = -(-len(corpus) // len(self.blocks))

    def __len__(self) -> int:
        return len(self.blocks)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield an empty batch for each block from `start` on."""
        none = torch.zeros(0)
        yield from repeat(Batch(none, none, none, none, none), len(self) - start)
