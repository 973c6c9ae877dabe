"""The metrics that a version is published with: of all test queries, or of a sample of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.data.split import Split
from evergram.evaluation.large_catalogues.metric_sample import SampledRanking, sample_queries
from evergram.evaluation.ranking import (
    popularity,
    popularity_metrics,
    query_metrics,
    rank_metrics,
)
from evergram.evaluation.relevance import test_relevance


@dataclass(frozen=True)
class FinalMetrics:
    """Metrics on the test pairs.

    Args:
        metrics: `model` and `popularity`, {name: value} each.
        queries: so many were ranked.
        sample: the metrics of each of them, where they are not all; else None.
    """

    metrics: dict[str, dict[str, float]]
    queries: int
    sample: SampledRanking | None = None


def final_metrics(
    vectors: Mapping[str, Tensor],
    split: Split,
    names: Sequence[str],
    queries: int | None = None,
    seed: int = 0,
    together: Collectives = ALONE,
) -> FinalMetrics:
    """Return the metrics of embeddings and of popularity on a version's test pairs.

    Args:
        vectors: of each side, [N, D], in the rows of `split.training`.
        queries: so many are ranked, drawn by `seed`; None is all.
        together: processes that each rank a share of the queries, and have all numbers.
    """
    query, candidate = vectors["query"], vectors["candidate"]
    counts, test = split.training.counts("candidate"), test_relevance(split)
    drawn = test if queries is None else sample_queries(test, queries, seed)
    if len(drawn) == len(test):
        metrics = {
            "model": rank_metrics(query, candidate, test, names, together=together),
            "popularity": popularity_metrics(counts, test, names, together),
        }
        return FinalMetrics(metrics, len(test))
    one, popular = popularity(counts)
    ranked = {"model": (query, candidate), "popularity": (one.expand(len(query), 1), popular)}
    sample = SampledRanking(
        {n: query_metrics(*v, drawn, names, together=together) for n, v in ranked.items()},
        len(test),
    )
    return FinalMetrics(sample.means(), len(drawn), sample)


def metrics_of_first(
    vectors: Mapping[str, Tensor],
    split: Split,
    names: Sequence[str],
    queries: int | None,
    seed: int,
    together: Collectives,
) -> FinalMetrics:
    """Return what `final_metrics` does where the first of several processes alone has vectors; it
    alone has the sample."""
    if together.is_first:
        own = final_metrics(vectors, split, names, queries, seed)
        together.from_first(lambda: [own.metrics, own.queries])
        return own
    metrics, ranked = together.from_first(dict)
    return FinalMetrics(metrics, ranked)
