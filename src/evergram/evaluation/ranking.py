"""Rank the whole catalogue, and measure the rankings on held-out pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.data.corpus import Corpus, offsets_of, take_ragged
from evergram.data.split import RowPairs, Split, known_pairs
from evergram.errors import DataError, RecipeError, ShapeError
from evergram.evaluation import score_blocks
from evergram.evaluation.score_blocks import ScoreBlocks, largest_scores

NOT_FINITE = "A score is not finite; an embedding contains NaN or infinity."


def measured_by_all(
    measured: Callable[[Tensor], dict[str, Tensor]],
    blocks: Iterable[Tensor],
    names: Sequence[str],
    together: Collectives,
) -> Iterator[dict[str, Tensor]]:
    """Yield the metrics of each block of queries (indices int64 [b]); processes share the blocks.
    The blocks do not depend on the number of processes, so results are bit-identical. If `measured`
    raises ShapeError in one process, all processes raise it."""
    if together.size == 1:
        yield from map(measured, blocks)
        return
    blocks = list(blocks)
    # One process computes each number, and the others add zero to it.
    values = torch.zeros(len(names), sum(map(len, blocks)), dtype=torch.float64)
    failure: ShapeError | None = None
    try:
        for block in blocks[together.share(len(blocks))]:
            metrics = measured(block)
            values[:, block] = torch.stack([metrics[name] for name in names])
    except ShapeError as error:
        failure = error
        values.fill_(torch.nan)  # still take part in the sum, so that no process waits for ever
    values = together.sum(values, "metrics")
    if bool(values.isnan().any()):
        raise ShapeError(NOT_FINITE) from failure
    for block in blocks:
        yield dict(zip(names, values[:, block], strict=True))


METRICS = ("recall@20", "ndcg@20", "map@10")
PAIR_BYTES = 96  # memory per target or seen candidate while a block of queries is ranked


@dataclass(frozen=True)
class Relevance:
    """The targets of Q queries, and the seen candidates masked for each query.

    Args:
        queries: int64 [Q], rows of the query embeddings.
        targets: int64 [T], candidate rows; -1 for a target outside the catalogue (always a miss).
        target_offsets: int64 [Q + 1] into targets.
        seen: int64, candidate rows excluded from the ranking.
        seen_offsets: int64 [Q + 1] into seen.
    """

    queries: Tensor
    targets: Tensor
    target_offsets: Tensor
    seen: Tensor
    seen_offsets: Tensor

    @classmethod
    def of(
        cls, query: Tensor, candidate: Tensor, seen_query: Tensor, seen_candidate: Tensor
    ) -> Relevance:
        """Return held-out pairs ([m], [m]) as targets, with the seen pairs ([n], [n]) masked.
        Repeated held-out pairs are one target, because a list can contain a candidate only once."""
        order = torch.argsort(candidate, stable=True)
        order = order[torch.argsort(query[order], stable=True)]
        query, candidate = query[order], candidate[order]
        first = torch.ones(len(query), dtype=torch.bool)
        first[1:] = (query[1:] != query[:-1]) | (candidate[1:] != candidate[:-1])
        # Candidates outside the catalogue share the row -1 but may differ, so keep all of them.
        first |= candidate < 0
        query, candidate = query[first], candidate[first]
        queries, counts = torch.unique(query, return_counts=True)
        target_offsets = offsets_of(counts)
        targets = candidate
        # The seen candidates of these queries only, by query.
        owner = torch.searchsorted(queries, seen_query.contiguous())
        ranked = torch.cat([queries, queries.new_tensor([-1])])[owner] == seen_query
        owner, seen = owner[ranked], seen_candidate[ranked]
        seen = seen[torch.argsort(owner, stable=True)]
        seen_offsets = offsets_of(torch.bincount(owner, minlength=len(queries)))
        return cls(queries, targets, target_offsets, seen, seen_offsets)

    def __len__(self) -> int:
        return len(self.queries)


def rank_metrics(
    query: Tensor,
    candidate: Tensor,
    relevance: Relevance,
    names: Sequence[str] = METRICS,
    *,
    device: torch.device | None = None,
    together: Collectives = ALONE,
) -> dict[str, float]:
    """Return the means over queries of Recall@K, NDCG@K and MAP@K.

    A target's rank is the number of unseen candidates with at least its score, itself included:
    ties rank before the target, so a constant embedding gets 0. A target that is also seen is a
    miss. Recall divides by the number of a query's targets, NDCG and MAP by the value of an ideal
    list of K.

    Args:
        query: [N_q, D]; candidate: [N_c, D]. Scores are inner products.
        names: "recall@K", "ndcg@K", "map@K", any K.
        together: processes that all call this with the same arguments, and share the queries.
    Returns: {name: mean}; NaN for empty relevance.
    Raises: ShapeError: the dims differ. RecipeError: a metric name is unknown.
    """
    totals = dict.fromkeys(names, 0.0)
    for values in _values(query, candidate, relevance, names, device, together):
        for name in names:
            totals[name] += float(values[name].sum())
    size = len(relevance)
    return {name: total / size if size else float("nan") for name, total in totals.items()}


def query_metrics(
    query: Tensor,
    candidate: Tensor,
    relevance: Relevance,
    names: Sequence[str] = METRICS,
    *,
    device: torch.device | None = None,
    together: Collectives = ALONE,
) -> dict[str, Tensor]:
    """Return the metrics of each query, float64 [Q], in the order of `relevance.queries`.
    `rank_metrics` returns their means."""
    blocks = list(_values(query, candidate, relevance, names, device, together))
    empty = torch.empty(0, dtype=torch.float64)
    return {name: torch.cat([empty, *(values[name] for values in blocks)]) for name in names}


def popularity(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the baseline that ranks by `counts` [N] alone, as a query [1] and candidates [N, 1].
    Scores are ranks, not counts: equal counts are ordered by row, so the baseline has no ties."""
    score = torch.empty(len(counts), dtype=torch.float32)
    order = torch.argsort(counts, stable=True, descending=True)
    score[order] = torch.arange(len(counts), 0, -1, dtype=torch.float32)
    return torch.ones(1), score[:, None]


def popularity_metrics(
    counts: Tensor,
    relevance: Relevance,
    names: Sequence[str] = METRICS,
    together: Collectives = ALONE,
) -> dict[str, float]:
    query, candidate = popularity(counts)
    size = _largest(relevance.queries) + 1
    return rank_metrics(query.expand(size, 1), candidate, relevance, names, together=together)


def _values(
    query: Tensor,
    candidate: Tensor,
    relevance: Relevance,
    names: Sequence[str],
    device: torch.device | None,
    together: Collectives,
) -> Iterator[dict[str, Tensor]]:
    """Yield the metrics of each block of queries, float64 [b] by name."""
    if query.shape[-1] != candidate.shape[-1]:
        raise ShapeError(
            f"Queries have dim {query.shape[-1]} and candidates {candidate.shape[-1]}; both sides "
            "must be embeddings of the same version."
        )
    metrics = {name: parse_metric(name) for name in names}
    depth = max(k for _, k in metrics.values())
    if not len(relevance):
        return
    candidate = candidate.to(device or query.device)
    # Memory of `_ranks` per query: its embedding, its row, and its list with five copies of the
    # scores and two of the rows.
    size = candidate.element_size()
    per_query = candidate.shape[1] * size + 16 + (depth + 1) * (5 * size + 2 * 8)
    scores = ScoreBlocks(candidate, per_query=per_query)

    def measured(block: Tensor) -> dict[str, Tensor]:
        ranks = _ranks(query, scores, relevance, block, depth)
        return {name: values_of_ranks(metric, *ranks) for name, metric in metrics.items()}

    yield from measured_by_all(measured, _blocks(relevance, scores.rows), list(metrics), together)


def _blocks(relevance: Relevance, rows: int) -> Iterator[Tensor]:
    """Yield the indices of all queries in order, int64 [b]: at most `rows` per block, whose pairs
    fit into `SCORE_BYTES`, but at least one query."""
    pairs = relevance.seen_offsets + relevance.target_offsets
    most, start = score_blocks.SCORE_BYTES // PAIR_BYTES, 0
    while start < len(relevance):
        fit = int(torch.searchsorted(pairs, pairs[start] + most, right=True)) - 1
        end = min(max(fit, start + 1), start + rows, len(relevance))
        yield torch.arange(start, end)
        start = end


def _ranks(
    query: Tensor, blocks: ScoreBlocks, relevance: Relevance, block: Tensor, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rank [t] and the owner [t] of each target in a block of b queries, and the number
    of targets [b] of each query. Ranks beyond `depth`, the largest K, are depth + 1; the owner is
    the index of the target's query in the block."""
    masked = _Cells.of(relevance.seen, relevance.seen_offsets, block)
    targets = _Cells.of(relevance.targets, relevance.target_offsets, block)
    device = blocks.candidate.device
    score = blocks.candidate.new_full((len(targets.row),), -torch.inf)
    best = score.new_empty(len(block), 0)
    vectors = query[relevance.queries[block]]
    bounded = blocks.bounded(vectors)
    for start, scores in blocks.of(vectors):
        # aminmax returns NaN if any score is NaN.
        if not (bounded or all(bool(torch.isfinite(end)) for end in torch.aminmax(scores))):
            raise ShapeError(NOT_FINITE)
        row, column, _ = masked.within(start, scores)
        scores[row, column] = -torch.inf
        row, column, index = targets.within(start, scores)
        score[index] = scores[row, column]
        # Keep one score more than the list has, to detect ties at its end.
        best = torch.cat([best, largest_scores(scores, depth + 1)], dim=1)
        if best.shape[1] > depth + 1:
            best = best.topk(depth + 1, sorted=False).values
    inside = torch.nonzero(targets.column >= 0).flatten()
    rank = torch.cat(
        [
            (best[targets.row[some].to(device)] >= score[some.to(device)][:, None]).sum(1).cpu()
            for some in torch.split(inside, blocks.rows)
        ]
    )
    rank = torch.where(score.cpu()[inside] == -torch.inf, depth + 1, rank)
    return rank, targets.row[inside], torch.bincount(targets.row, minlength=len(block))


@dataclass(frozen=True)
class _Cells:
    """Cells of a score matrix: rows and columns, int64 [m] each; negative columns are outside."""

    row: Tensor
    column: Tensor

    @classmethod
    def of(cls, candidates: Tensor, offsets: Tensor, block: Tensor) -> _Cells:
        """Return the cells of a block [b] of queries, from ragged lists of candidates."""
        column, offsets = take_ragged(candidates, offsets, block)
        return cls(torch.repeat_interleave(torch.arange(len(block)), offsets.diff()), column)

    def within(self, start: int, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows and columns, [m'], of the cells inside a block of scores whose first
        candidate is `start`, and the indices of these cells."""
        inside = (self.column >= start) & (self.column < start + scores.shape[1])
        index = torch.nonzero(inside).flatten()
        cells = self.row[index], self.column[index] - start, index
        return tuple(tensor.to(scores.device) for tensor in cells)  # type: ignore[return-value]


def values_of_ranks(metric: tuple[str, int], rank: Tensor, owner: Tensor, size: Tensor) -> Tensor:
    """Return a metric (see `parse_metric`) for each query of a block, float64 [b], from the rank
    (≥ 1) and the query's index of each target, [t], and the number of targets per query, [b]."""
    kind, k = metric
    hit = rank <= k
    rank, owner = rank[hit], owner[hit]
    total = torch.zeros(len(size), dtype=torch.float64)
    if kind == "recall":
        gains, best = torch.ones(len(rank), dtype=torch.float64), size.double()
    elif kind == "ndcg":
        gains = 1 / torch.log2(1 + rank.double())
        discounts = 1 / torch.log2(torch.arange(2, k + 2).double())
        best = torch.cumsum(discounts, 0)[size.clamp(max=k) - 1]
    else:
        # Precision at each hit: the number of the query's hits up to this rank, over the rank.
        order = torch.argsort(owner * (k + 1) + rank)
        rank, owner = rank[order], owner[order]
        key = owner * (k + 1) + rank
        first = torch.searchsorted(owner.contiguous(), owner.contiguous())
        gains = (torch.searchsorted(key, key, right=True) - first).double() / rank
        best = size.clamp(max=k).double()
    return total.index_add_(0, owner, gains) / best


def parse_metric(name: str) -> tuple[str, int]:
    """Split "recall@K", "ndcg@K" or "map@K" into kind and K. Raises: RecipeError: unknown name."""
    match = re.fullmatch(r"(recall|ndcg|map)@([1-9]\d*)", name)
    if not match:
        raise RecipeError(f"The metric is {name!r}; it must be recall@K, ndcg@K or map@K.")
    return match[1], int(match[2])


def _largest(rows: Tensor) -> int:
    return int(rows.max()) if len(rows) else -1


def relevance_of(corpus: Corpus, pairs: RowPairs) -> Relevance:
    return Relevance.of(pairs.query, pairs.candidate, *corpus.pairs_of(pairs.query))


def test_relevance(split: Split) -> Relevance:
    """Return the test pairs as targets, with the training and selection pairs masked."""
    known = known_pairs(split)
    return Relevance.of(split.test.query, split.test.candidate, known.query, known.candidate)


# If the recall of a random order is at least TOO_MUCH, K is reduced until it is at most ENOUGH.
TOO_MUCH, ENOUGH = 0.9, 0.5


def discriminating(name: str, left: Tensor) -> str:
    """Return the metric, with a smaller K if its lists contain nearly all candidates of a query.

    If a query has n unseen candidates, the Recall@K of a random order is K/n, and 1 for every model
    if K ≥ n. If the mean of K/n over the queries is at least 0.9, use the largest K for which it is
    at most 0.5. NDCG and MAP distinguish orders for every K.

    Args:
        name: "recall@K", "ndcg@K" or "map@K".
        left: int64 [Q], the number of candidates that each query has to rank.
    Raises: DataError: no query has two candidates to rank, so all orders are the same.
    """
    kind, k = parse_metric(name)
    left = left.clamp(min=1).double()
    if not len(left):
        return name
    if float(left.max()) < 2:
        raise DataError(
            "No selection query has more than one candidate left to rank, so no metric can "
            "distinguish models. Give more data, or a larger split.share."
        )

    def by_chance(length: int) -> float:
        return float((length / left).clamp(max=1).mean())

    if kind != "recall" or by_chance(k) < TOO_MUCH:
        return name
    k = min(k, int(left.max()))
    while k > 1 and by_chance(k) > ENOUGH:
        k -= 1
    return f"{kind}@{k}"
