"""Rankings by the popularity of candidates and the pairs of queries, and what lies near."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.evaluation.ranking import Relevance, parse_metric, values_of_ranks
from evergram.evaluation.score_blocks import best_candidates


def nearest_neighbours(vectors: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest others, or N − 1, of the vectors [N, D] at `rows` [n] by cosine:
    cosines, best first, and rows, [n, K]; a vector of length zero has cosine 0 to all."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    places = best_candidates(unit[rows], unit, k + 1)
    own = places == rows[:, None]
    own[~own.any(1), -1] = True  # behind k + 1 vectors that are as near
    places = places[~own].view(len(rows), -1)
    return (unit[rows][:, None] * unit[places]).sum(2), places


def owners(relevance: Relevance) -> Tensor:
    places = torch.arange(len(relevance))
    return torch.repeat_interleave(places, relevance.target_offsets.diff())


def metric_of_ranks(name: str, ranks: Tensor, relevance: Relevance) -> Tensor:
    inside = ranks > 0
    return values_of_ranks(
        parse_metric(name),
        ranks[inside],
        owners(relevance)[inside],
        relevance.target_offsets.diff(),
    )


# Shares of candidates, the most popular first, at which strata end.
SHARES = (0.01, 0.1, 0.5, 1.0)
# The least number of pairs of a query in each stratum.
LEAST_PAIRS = (0, 1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Stratum:
    """A part of the candidates or of the queries: how many `members` it has, how many test pairs or
    test queries were `measured`, and by the model's name the value; None where there was
    nothing."""

    name: str
    members: int
    measured: int
    values: Mapping[str, float | None]


def popularity_strata(counts: Tensor) -> tuple[list[str], Tensor]:
    """Return the names of the strata of candidates, and the stratum of each, int64 [N], by the
    training pairs of each; equal counts go by row."""
    order = torch.argsort(counts, stable=True, descending=True)
    of = torch.zeros(len(counts), dtype=torch.int64)
    names: list[str] = []
    start, before = 0, 0.0
    for share in SHARES:
        end = max(math.ceil(share * len(counts)), start)
        of[order[start:end]] = len(names)
        part = f"{100 * (share - before):.0f} %"
        which = "most popular" if not names else "least popular" if share == 1 else "next"
        span = counts[order[start:end]]
        pairs = f": {_range(int(span.min()), int(span.max()))} pairs" if end > start else ""
        names.append(f"{which} {part}{pairs}")
        start, before = end, share
    return names, of


def recall_by_popularity(
    ranks: Mapping[str, Tensor], targets: Tensor, counts: Tensor, k: int
) -> list[Stratum]:
    """Return for each stratum of candidates, by their training pairs `counts` [N], the share of its
    test pairs, candidate rows [T], that each model ranks [T] within the first k."""
    names, of = popularity_strata(counts)
    strata = []
    for place, name in enumerate(names):
        here = (targets >= 0) & (of[targets.clamp(min=0)] == place)
        values = {m: _mean((r[here] <= k).double()) for m, r in ranks.items()}
        strata.append(Stratum(name, int((of == place).sum()), int(here.sum()), values))
    return strata


def recall_by_pairs(
    ranks: Tensor, relevance: Relevance, counts: Tensor, metric: str
) -> list[Stratum]:
    """Return the mean recall, as `rank_metrics` has it for the K of a metric, of the queries with
    so many training pairs, `counts` [N_q]."""
    recall = metric_of_ranks(f"recall@{parse_metric(metric)[1]}", ranks, relevance)
    tested = counts[relevance.queries]
    strata = []
    for least, end in zip(LEAST_PAIRS, [*LEAST_PAIRS[1:], None], strict=True):
        most = int(counts.max()) if end is None and len(counts) else (end or 1) - 1
        members = int(((counts >= least) & (counts <= most)).sum())
        here = (tested >= least) & (tested <= most)
        name = f"{least} and more" if end is None else _range(least, most)
        if members:
            values = {"model": _mean(recall[here])}
            strata.append(Stratum(name, members, int(here.sum()), values))
    return strata


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
