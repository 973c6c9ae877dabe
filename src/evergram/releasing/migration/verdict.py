"""The rule that chooses a way to a new embedding model by measured differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from evergram.evaluation.judged.mean_bound import mean_bound
from evergram.evaluation.judged.paired_bootstrap import paired_bootstrap

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
        old_readers: somebody will go on to read old vectors.
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
    accepted wherever a worse one is. A way that does not meet the rule is accepted in at most 5 %
    of samples, each way by itself.

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
