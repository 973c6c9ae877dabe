"""Rank the whole catalogue, and measure the lists on held-out pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.data.corpus import take_ragged
from evergram.errors import RecipeError, ShapeError

METRICS = ("recall@20", "ndcg@20", "map@10")
# Scores held at once: 64 Mi floats are 256 MiB, whatever the catalogue.
BLOCK = 1 << 26


@dataclass(frozen=True)
class Relevance:
    """The targets of Q queries, and the candidates that are masked for each.

    Args:
        queries: int64 [Q], rows of the query embeddings.
        targets: int64 [T], candidate rows, -1 for one outside the catalogue (a certain miss).
        target_offsets: int64 [Q + 1] into targets.
        seen: int64, candidates that may not be ranked again.
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
        """Return the targets of held-out pairs ([m], [m]), with the seen pairs ([n], [n]) masked.

        A candidate that a query holds out twice is one target, as a list can hold it only once.
        """
        order = torch.argsort(candidate, stable=True)
        order = order[torch.argsort(query[order], stable=True)]
        query, candidate = query[order], candidate[order]
        first = torch.ones(len(query), dtype=torch.bool)
        first[1:] = (query[1:] != query[:-1]) | (candidate[1:] != candidate[:-1])
        # Candidates outside the catalogue may be different ones.
        first |= candidate < 0
        query, candidate = query[first], candidate[first]
        queries, counts = torch.unique(query, return_counts=True)
        target_offsets = _offsets(counts)
        targets = candidate
        size = max(_largest(query), _largest(seen_query))
        order = torch.argsort(seen_query, stable=True)
        all_offsets = _offsets(torch.bincount(seen_query, minlength=size + 1))
        seen, seen_offsets = take_ragged(seen_candidate[order], all_offsets, queries)
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
) -> dict[str, float]:
    """Return means over the queries of Recall@K, NDCG@K and MAP@K.

    A target's rank is the number of unseen candidates that score at least as much, itself
    included: ties rank before the target, so that a constant embedding scores nothing. A target
    that is also seen is a miss, as no list holds it. Recall divides by all targets of a query, NDCG
    and MAP by the value of the best list of K.

    Args:
        query: [N_q, D]; candidate: [N_c, D]. Scores are inner products.
        names: "recall@K", "ndcg@K", "map@K", any K.
    Returns: {name: mean}; NaN for empty relevance.
    Raises: ShapeError: the dims differ. RecipeError: a name is none of these.
    """
    if query.shape[-1] != candidate.shape[-1]:
        raise ShapeError(
            f"Queries have dim {query.shape[-1]} and candidates {candidate.shape[-1]}; "
            "embeddings of one version are needed on both sides."
        )
    wanted = {name: _parse(name) for name in names}
    depth = max(k for _, k in wanted.values())
    if not len(relevance):
        return dict.fromkeys(names, float("nan"))
    device = device or query.device
    candidate = candidate.to(device)
    rows = max(1, BLOCK // max(1, len(candidate)))
    totals = dict.fromkeys(names, 0.0)
    for start in range(0, len(relevance), rows):
        block = torch.arange(start, min(start + rows, len(relevance)))
        ranks, owner, size = _ranks(query, candidate, relevance, block, depth)
        for name, (kind, k) in wanted.items():
            totals[name] += float(_score(kind, k, ranks, owner, size).sum())
    return {name: total / len(relevance) for name, total in totals.items()}


def popularity(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the baseline that ranks by `counts` [N] alone, as a query [1] and candidates [N, 1].

    Scores are places in the order, not counts: equal counts go by row, so that ties cost the
    baseline nothing.
    """
    place = torch.empty(len(counts), dtype=torch.float32)
    order = torch.argsort(counts, stable=True, descending=True)
    place[order] = torch.arange(len(counts), 0, -1, dtype=torch.float32)
    return torch.ones(1), place[:, None]


def popularity_metrics(
    counts: Tensor, relevance: Relevance, names: Sequence[str] = METRICS
) -> dict[str, float]:
    """Return `rank_metrics` of the popularity baseline."""
    one, candidate = popularity(counts)
    size = _largest(relevance.queries) + 1
    return rank_metrics(one.expand(size, 1), candidate, relevance, names)


def _ranks(
    query: Tensor, candidate: Tensor, relevance: Relevance, block: Tensor, depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ranks [t], owners [t] and sizes [b] of the targets of a block of b queries.

    The rank of a target beyond `depth` is depth + 1, outside of every list; `depth` is the largest
    K even if there are fewer candidates. The owner is the place of the target's query in the block,
    the size its number of targets.
    """
    scores = query[relevance.queries[block]].to(candidate) @ candidate.T
    if not bool(torch.isfinite(scores).all()):
        raise ShapeError("A score is not finite; an embedding holds NaN or infinity.")
    seen, seen_offsets = take_ragged(relevance.seen, relevance.seen_offsets, block)
    whose = torch.repeat_interleave(torch.arange(len(block)), seen_offsets.diff())
    scores[whose.to(scores.device), seen.to(scores.device)] = -torch.inf
    # One place more than the list, so that a tie across its end is noticed.
    best = scores.topk(min(depth + 1, scores.shape[1]), dim=1).values
    targets, offsets = take_ragged(relevance.targets, relevance.target_offsets, block)
    owner = torch.repeat_interleave(torch.arange(len(block)), offsets.diff())
    inside = targets >= 0
    place = owner[inside].to(scores.device)
    score = scores[place, targets[inside].to(scores.device)]
    rank = (best[place] >= score[:, None]).sum(1).cpu()
    rank = torch.where(score.cpu() == -torch.inf, depth + 1, rank)
    return rank, owner[inside], offsets.diff()


def _score(kind: str, k: int, rank: Tensor, owner: Tensor, size: Tensor) -> Tensor:
    """Return one metric for each query of a block, float64 [b]."""
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
        # Precision at each hit: the number of hits of the same query that rank no lower.
        order = torch.argsort(owner * (k + 1) + rank)
        rank, owner = rank[order], owner[order]
        key = owner * (k + 1) + rank
        first = torch.searchsorted(owner.contiguous(), owner.contiguous())
        gains = (torch.searchsorted(key, key, right=True) - first).double() / rank
        best = size.clamp(max=k).double()
    return total.index_add_(0, owner, gains) / best


def _parse(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(recall|ndcg|map)@([1-9]\d*)", name)
    if not match:
        raise RecipeError(f"The metric {name!r} is none of recall@K, ndcg@K, map@K.")
    return match[1], int(match[2])


def _offsets(counts: Tensor) -> Tensor:
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets


def _largest(rows: Tensor) -> int:
    return int(rows.max()) if len(rows) else -1
