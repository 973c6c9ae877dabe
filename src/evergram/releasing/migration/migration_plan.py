"""From two models' vectors, and judgements where there are some, to a report and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from evergram.evaluation.judged.beir_files import Judgements
from evergram.evaluation.judged.judged_metrics import JudgedQueries, judged_metrics
from evergram.evaluation.judged.paired_bootstrap import bootstrap, paired_bootstrap
from evergram.releasing.migration.migration_vectors import MigrationVectors
from evergram.releasing.migration.unjudged import (
    LEAST_QUERIES,
    distinct_queries,
    reasons_not_to_judge,
)
from evergram.releasing.migration.verdict import Situation, Verdict, decide
from evergram.releasing.migration.ways import Way, WaySettings, measure_ways

DEFAULT, ORDINARY = WaySettings(), Situation()
AGREEMENT_DEPTH = 10


def plan_migration(
    vectors: MigrationVectors,
    judgements: Judgements | None = None,
    settings: WaySettings = DEFAULT,
    situation: Situation = ORDINARY,
) -> dict[str, Any]:
    """Measure every way to a new model, and choose one where judgements allow it.

    Without judgements there is no verdict: which of two rankings is better cannot be seen from the
    rankings. What is then measured is the share of the first ten hits that each way has in common
    with reindexing, and the costs. Figures are of the queries that are judged and whose relevant
    texts are all here, each different query counted once.

    Returns: JSON: `texts`, `queries` (different ones that were measured), `judged`, `repeated`
        (queries with the vectors of another), `incomplete` (judged queries that were left out, as
        relevant texts of theirs are not among the texts), `absent` (how many such pairs),
        `lengths_ignored` (searches must be by cosine to have these figures), `zeros` (how many
        vectors of each file that was measured are zeros), `unjudged` (why there
        can be no verdict; see `reasons_not_to_judge`), `ways` by name (`encoded`, `bytes_a_text`,
        `milliseconds`, `agreement@10` with reindexing; with judgements `ndcg@10`, `recall@100`,
        `beside_stay` and `beside_reindex`, paired differences of nDCG@10; each an interval `mean`,
        `low`, `high`), `verdict`, `accepted` (all ways that meet its rule) and `reasons`.
    Raises: DataError: no query is judged; or as of `measure_ways`.
    """
    judged, whole, incomplete, absent = None, 0, 0, 0
    if judgements is not None:
        judged = JudgedQueries.of(judgements, vectors.queries, vectors.texts)
        complete, absent = judged.complete, judged.absent
        whole, incomplete = len(complete), len(judged) - len(complete)
        # Figures of incomplete queries are shown if there are no others, without a verdict.
        judged = complete if whole else judged
        vectors = vectors.of_queries(judged.rows)
    of_query = distinct_queries(vectors)

    def each(values: Tensor) -> Tensor:
        """Return the mean of the values of all queries that are the same one."""
        counts = torch.bincount(of_query).double()
        return torch.zeros_like(counts).index_add_(0, of_query, values.double()) / counts

    ways = measure_ways(vectors, settings)
    best = ways["reindex"].ranked
    report = {
        name: _costs(way, each(_agreement(way.ranked, best)), settings.seed)
        for name, way in ways.items()
    }
    queries = len(torch.unique(of_query))
    unjudged = reasons_not_to_judge(vectors, queries)
    if judged is None:
        unjudged.insert(0, "There are no judgements, so that no way is known to be better.")
    elif min(whole, queries) < LEAST_QUERIES:
        unjudged.insert(
            0,
            f"Only {min(whole, queries)} different queries are judged by texts that are all here, "
            f"and {LEAST_QUERIES} are needed: {len(of_query) - queries} repeat another, and of "
            f"{incomplete} some relevant texts are not among the texts.",
        )
    verdict = Verdict(None, [], unjudged)
    if judged is not None:
        metrics = {
            name: {k: each(v) for k, v in judged_metrics(way.ranked, judged).items()}
            for name, way in ways.items()
        }
        ndcg = {name: values["ndcg@10"] for name, values in metrics.items()}
        for name, values in metrics.items():
            report[name] |= {k: asdict(bootstrap(v, settings.seed)) for k, v in values.items()}
            for other in ("stay", "reindex"):
                difference = paired_bootstrap(ndcg[name], ndcg[other], settings.seed)
                report[name][f"beside_{other}"] = asdict(difference)
        if not unjudged:
            verdict = decide(ndcg, situation, settings.seed)
    cosine = settings.similarity == "cosine"
    return {
        "texts": len(vectors.texts),
        "queries": queries,
        "judged": judged is not None,
        "repeated": len(of_query) - queries,
        "incomplete": incomplete,
        "absent": absent,
        "dims": {"old": vectors.old.shape[1], "new": vectors.new.shape[1]},
        "lengths_ignored": cosine and vectors.lengths_differ,
        "zeros": vectors.zeros,
        "settings": {**asdict(settings), **asdict(situation)},
        "unjudged": unjudged,
        "ways": report,
        "verdict": verdict.way,
        "accepted": verdict.accepted,
        "reasons": verdict.reasons,
    }


def _costs(way: Way, agreement: Tensor, seed: int) -> dict[str, Any]:
    return {
        "encoded": way.encoded,
        "bytes_a_text": way.bytes_a_text,
        "milliseconds": way.milliseconds,
        f"agreement@{AGREEMENT_DEPTH}": asdict(bootstrap(agreement, seed)),
        **way.facts,
    }


def _agreement(ranked: Tensor, best: Tensor) -> Tensor:
    """Return the share of the first ten rows of two rankings that are in both, [Q]."""
    one, other = ranked[:, :AGREEMENT_DEPTH], best[:, :AGREEMENT_DEPTH]
    shared: Sequence[int] = [int(torch.isin(a, b).sum()) for a, b in zip(one, other, strict=True)]
    return torch.tensor(shared, dtype=torch.float64) / other.shape[1]
