"""Shorten the lists of a metric that any order of the candidates would fill."""

from __future__ import annotations

import torch

from evergram.errors import DataError
from evergram.evaluation.ranking import Relevance, parse_metric

# The share of targets that a random order finds: from TOO_MUCH on, lists are shortened to ENOUGH.
TOO_MUCH, ENOUGH = 0.9, 0.5


def discriminating(name: str, relevance: Relevance, candidates: int) -> str:
    """Return the metric, with a smaller K if its lists hold nearly all candidates of a query.

    Recall@K is 1 for every model where K is the number of candidates that a query has not seen; of
    a random order it is K over that number. From 0.9 on, the mean over the queries, K becomes the
    largest one for which it is at most 0.5. NDCG and MAP tell orders apart whatever K is.

    Args:
        name: "recall@K", "ndcg@K" or "map@K".
        relevance: the queries, and what is masked for each.
        candidates: in the catalogue.
    Raises: DataError: no query has two candidates to rank, so that all orders are the same.
    """
    kind, k = parse_metric(name)
    size = candidates + 1
    owner = torch.repeat_interleave(torch.arange(len(relevance)), relevance.seen_offsets.diff())
    masked = torch.unique(owner * size + relevance.seen) // size
    left = (candidates - torch.bincount(masked, minlength=len(relevance))).clamp(min=1).double()
    if not len(left):
        return name
    if float(left.max()) < 2:
        raise DataError(
            "No query that selects has more than one candidate left to rank, so no metric can tell "
            f"one model from another; the training data has {candidates} candidates. Give more "
            "data, or a larger split.share."
        )

    def by_chance(length: int) -> float:
        return float((length / left).clamp(max=1).mean())

    if kind != "recall" or by_chance(k) < TOO_MUCH:
        return name
    k = min(k, int(left.max()))
    while k > 1 and by_chance(k) > ENOUGH:
        k -= 1
    return f"{kind}@{k}"
