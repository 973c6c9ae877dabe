"""The report on the ways to another model, and the verdict where queries are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from evergram.compatibility.aligner.aligner import Aligner
from evergram.compatibility.chance import LEAST_DEVIATIONS, beside_chance
from evergram.compatibility.closed_forms import MOST_ZEROS, SecondMoments
from evergram.evaluation.judged import (
    JudgedQueries,
    Judgements,
    bootstrap,
    judged_metrics,
    mean_bound,
    paired_bootstrap,
)
from evergram.migration.ways import MigrationVectors, WaySettings, measure_ways, unit

# With fewer judged queries there is no verdict.
LEAST_QUERIES = 20
# Queries whose vectors have such a cosine by both models are one query.
SAME_QUERY = 1 - 1e-5
# Queries compared at once.
BLOCK = 1024
# Texts that a map between the models is fitted to, for the check of the ids.
TEXTS = 2000


def distinct_queries(vectors: MigrationVectors) -> Tensor:
    """Return a number of each query, from 0, that those with the same vectors by both models share,
    int64 [Q]."""
    sides = unit(vectors.old_queries), unit(vectors.new_queries)
    first = []
    for start in range(0, len(sides[0]), BLOCK):
        same = torch.stack([s[start : start + BLOCK] @ s.T >= SAME_QUERY for s in sides]).all(0)
        rows = torch.arange(len(same))
        same[rows, rows + start] = True  # a vector of zeros, too, is its own
        first.append(same.int().argmax(1))
    of_query: Tensor = torch.unique(torch.cat(first), return_inverse=True)[1]
    return of_query


def reasons_not_to_judge(vectors: MigrationVectors, queries: int) -> list[str]:
    """Return a sentence for each reason; none if the models can be compared by these vectors of so
    many different queries."""
    reasons = [
        f"{zeros} of the {len(vectors.files[name])} vectors of {name} are zeros, as failed calls "
        "of an encoder leave them, so its model is not measured; encode them again."
        for name, zeros in vectors.zeros.items()
        if zeros > MOST_ZEROS * len(vectors.files[name])
    ]
    if reasons:
        return reasons
    old, new, old_queries, new_queries = map(unit, vectors.files.values())
    drawn = torch.randperm(len(old), generator=torch.Generator().manual_seed(0))[:TEXTS]
    map_ = Aligner("affine").fit(new[drawn], old[drawn])
    if map_.report().better_than_chance is False:
        return [
            "A map from new to old vectors of texts is no better than with the texts mixed up, so "
            "the same id is not the same text in both files; look at how their ids were written."
        ]
    weight, offset = map_.as_transform().affine() or (None, None)
    assert weight is not None
    pairs = SecondMoments(old.shape[1], new.shape[1])
    pairs.add(old_queries, new_queries)
    chance = beside_chance(pairs, weight, offset, queries)
    if queries >= LEAST_QUERIES and chance.deviations < LEAST_DEVIATIONS:
        reasons.append(
            "The map that reads new vectors of texts as old ones reads those of queries no better "
            "than with the queries mixed up: the two files of queries were swapped, are of other "
            "models than the texts, or the same id is not the same query in both."
        )
    return reasons


# Ways from the cheapest to the one that encodes all texts.
CHANGES = ("bridge", "cascade", "bridge_cascade", "reindex")
# Ways that encode queries by the old model.
BY_OLD_MODEL = ("stay", "cascade")


@dataclass(frozen=True)
class Verdict:
    """Which way to take.

    Args:
        way: its name; None if the inputs cannot be judged.
        accepted: all ways that meet the rule, the cheapest first.
        reasons: sentences that say why.
    """

    way: str | None
    accepted: list[str]
    reasons: list[str]


@dataclass(frozen=True)
class Situation:
    """What must be kept.

    Args:
        tolerance: the share of the better way's nDCG@10 that a cheaper way may lose.
        old_model_ends: the old model will encode no queries any more.
        old_readers: some readers will keep using old vectors.
        worth: the nDCG@10 for which a change pays. If it is given, means decide: a way must be
            expected to gain more than this, and to lose no more than `tolerance`. None asks for
            bounds that show both.
    """

    tolerance: float = 0.01
    old_model_ends: bool = False
    old_readers: bool = False
    worth: float | None = None


def decide(ndcg: Mapping[str, Tensor], situation: Situation, seed: int = 0) -> Verdict:
    """Return the verdict: the cheapest way that is accepted, else *stay*.

    There is one rule: a difference in nDCG@10 is at least its `mean_bound` (with
    `situation.worth`, its mean). *bridge*, *cascade*, *bridge_cascade* and *reindex* are accepted
    if they gain more than 0 (or `worth`) over staying and lose at most `tolerance` of reindexing.
    If the old model ends, staying is not possible, and only the loss counts. If *reindex* is
    chosen and old vectors are still read, it is *sidecar*, provided that old readers lose at most
    `tolerance` of what they have now; that is to be shown by the bound in any case.

    The bound never falls where a query's value rises, so a way that is no worse on any query is
    accepted wherever a worse one is.

    Args:
        ndcg: nDCG@10 of each query, [Q], by the names of `measure_ways`.
    """
    accepted, reasons = [], []

    def differs(way: str, other: str, needed: float, *, more: bool, means: bool) -> bool:
        """Note the difference of two ways, and return whether it is as large as needed."""
        interval = paired_bootstrap(ndcg[way], ndcg[other], seed)
        least = interval.mean if means else mean_bound(ndcg[way] - ndcg[other], seed)
        enough = least > needed if more else least >= needed
        shown = "expected" if means else "shown"
        reasons.append(
            f"{way} beside {other}: {interval} in nDCG@10, {shown} to be at least {least:.4f}; "
            f"{'more than' if more else 'at least'} {needed:.4f} is needed: "
            f"{'yes' if enough else 'no'}."
        )
        return enough

    means = situation.worth is not None
    for way in CHANGES:
        if situation.old_model_ends and way in BY_OLD_MODEL:
            continue
        most_lost = situation.tolerance * float(ndcg["reindex"].mean())
        keeps = way == "reindex" or differs(way, "reindex", -most_lost, more=False, means=means)
        if keeps and (
            situation.old_model_ends
            or differs(way, "stay", situation.worth or 0.0, more=True, means=means)
        ):
            accepted.append(way)
    chosen = accepted[0] if accepted else "stay"
    if chosen == "reindex" and situation.old_readers:
        most_lost = situation.tolerance * float(ndcg["stay"].mean())
        if differs("sidecar", "stay", -most_lost, more=False, means=False):
            accepted.append("sidecar")
            chosen = "sidecar"
        else:
            reasons.append(
                "Keep the old index for old readers, give the sidecar more bytes, or judge more "
                "queries."
            )
    return Verdict(chosen, accepted, reasons)


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
        `zeros` (how many vectors of each file that was measured are zeros), `unjudged` (why there
        can be no verdict; see `reasons_not_to_judge`), `ways` by name (`encoded`, `bytes_a_text`,
        `milliseconds`, `agreement@10` with reindexing; with judgements `ndcg@10`, `recall@100`,
        `beside_stay` and `beside_reindex`, paired differences of nDCG@10; each an interval `mean`,
        `low`, `high`), `verdict`, `accepted` (all ways that meet its rule) and `reasons`.
    Raises: DataError: no query is judged; or as for `measure_ways`.
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
    first_hits = {name: way.ranked[:, :AGREEMENT_DEPTH] for name, way in ways.items()}
    report: dict[str, dict[str, Any]] = {}
    for name, way in ways.items():
        pairs = zip(first_hits[name], first_hits["reindex"], strict=True)
        shared = torch.tensor([int(torch.isin(a, b).sum()) for a, b in pairs]).double()
        agreement = each(shared / first_hits["reindex"].shape[1])
        report[name] = {
            "encoded": way.encoded,
            "bytes_a_text": way.bytes_a_text,
            "milliseconds": way.milliseconds,
            f"agreement@{AGREEMENT_DEPTH}": asdict(bootstrap(agreement, settings.seed)),
            **way.facts,
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
    return {
        "texts": len(vectors.texts),
        "queries": queries,
        "judged": judged is not None,
        "repeated": len(of_query) - queries,
        "incomplete": incomplete,
        "absent": absent,
        "dims": {"old": vectors.old.shape[1], "new": vectors.new.shape[1]},
        "zeros": vectors.zeros,
        "settings": {**asdict(settings), **asdict(situation)},
        "unjudged": unjudged,
        "ways": report,
        "verdict": verdict.way,
        "accepted": verdict.accepted,
        "reasons": verdict.reasons,
    }
