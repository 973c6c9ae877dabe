"""The rule that chooses a way to a new embedding model by measured intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from evergram.evaluation.judged.betting_test import betting_test
from evergram.evaluation.judged.paired_bootstrap import (
    LEVEL,
    BootstrapInterval,
    paired_bootstrap,
)

# With fewer judged queries no interval is trusted.
LEAST_QUERIES = 20
# Where fewer queries lose, an interval may be narrow because no loss was drawn.
LEAST_LOSING = 5
# Ways that leave the old index in place, by the texts that they need encoded.
CHEAPER = ("bridge", "cascade", "bridge_cascade")
# Ways that encode queries by the old model.
BY_OLD_MODEL = ("stay", "cascade")


@dataclass(frozen=True)
class Verdict:
    """Which way to take.

    Args:
        way: its name; None if the measurements do not decide.
        reasons: sentences that say why.
    """

    way: str | None
    reasons: list[str]


@dataclass(frozen=True)
class Situation:
    """What must be kept.

    Args:
        tolerance: the share of the better way's nDCG@10 that a cheaper way may lose.
        old_model_ends: the old model will encode no queries any more.
        old_readers: somebody will go on to read old vectors.
        worth: the nDCG@10 for which a change pays. If it is said, means decide: a way must be
            expected to bring more than this, and to lose no more than `tolerance`. None asks that
            intervals show both.
    """

    tolerance: float = 0.01
    old_model_ends: bool = False
    old_readers: bool = False
    worth: float | None = None

    def pays(self, gain: BootstrapInterval) -> bool:
        """Return whether what a way brings is enough."""
        return gain.low > 0 if self.worth is None else gain.mean > self.worth

    def keeps(self, change: BootstrapInterval, most_lost: float) -> bool:
        """Return whether what a cheaper way changes is at most a loss of so much."""
        return (change.low if self.worth is None else change.mean) >= -most_lost

    @property
    def evidence(self) -> str:
        return "shown" if self.worth is None else "expected"


def decide(
    ndcg: Mapping[str, Tensor], situation: Situation, seed: int = 0, with_text: int | None = None
) -> Verdict:
    """Return the verdict.

    1. *stay*, unless reindexing is shown to be better: the 95 % interval of the paired difference
       in nDCG@10 lies above 0. (If the old model ends, staying is not possible.)
    2. The first of *bridge*, *cascade* and *bridge_cascade* that is shown to lose at most
       `tolerance` of reindexing, and to be better than staying.
    3. Otherwise *reindex*; if old vectors are still read, *sidecar*, provided that its readers are
       shown to lose at most `tolerance` of what they have now.

    Each step needs evidence to spend more than the one before, or to lose anything. With
    `situation.worth`, "shown" in 1 and 2 is "expected": means decide, and staying is beaten by more
    than `worth`. What old readers lose is to be shown in any case.

    A loss is shown to be small by its interval if at least `LEAST_LOSING` queries lose. Where fewer
    do, those that lose could be too rare to have been drawn, and each could lose all of its nDCG,
    which is at most 1. Then `betting_test`, which holds for any number of queries, must show it,
    too, at `LEVEL`. If no query differs, 690 show a loss of at most 0.005. That a way is better is
    shown likewise, with nothing allowed.

    Args:
        ndcg: nDCG@10 of each query, [Q], by the names of `measure_ways`.
        with_text: how many of them have a relevant text among the texts; None is all.
    """
    queries = len(ndcg["reindex"]) if with_text is None else with_text
    if queries < LEAST_QUERIES:
        return Verdict(
            None,
            [
                f"Only {queries} queries have a judged text among the texts, and {LEAST_QUERIES} "
                "are needed."
            ],
        )
    gain = paired_bootstrap(ndcg["reindex"], ndcg["stay"], seed)
    shown = f"reindexing differs from staying by {gain}"
    better = "better" if situation.worth is None else f"better by more than {situation.worth:g}"
    better = f"{situation.evidence} to be {better}"
    rare = None if situation.worth is not None else _too_few_lose(ndcg["reindex"], ndcg["stay"])
    if not situation.old_model_ends and (rare or not situation.pays(gain)):
        listed = [f"The new model is not {better}: {shown}."]
        return Verdict("stay", [*listed, *([rare] if rare else [])])
    reasons = [f"In nDCG@10, {shown}."]
    most_lost = situation.tolerance * float(ndcg["reindex"].mean())
    for way in CHEAPER:
        if situation.old_model_ends and way in BY_OLD_MODEL:
            continue
        loss = paired_bootstrap(ndcg[way], ndcg["reindex"], seed)
        few = None
        if situation.worth is None:
            few = _too_few_lose(ndcg[way], ndcg["reindex"], most_lost)
        kept = few is None and situation.keeps(loss, most_lost)
        reasons.append(
            f"{way} differs from reindexing by {loss}, and {-most_lost:.4f} is allowed: it is "
            f"{'' if kept else 'not '}{situation.evidence} to lose no more."
        )
        reasons += [few] if few else []
        if not kept:
            continue
        beside = paired_bootstrap(ndcg[way], ndcg["stay"], seed)
        rare = None if situation.worth is not None else _too_few_lose(ndcg[way], ndcg["stay"])
        if situation.old_model_ends or (rare is None and situation.pays(beside)):
            return Verdict(way, reasons)
        reasons.append(f"{way} is not {better} than staying: {beside}.")
        reasons += [rare] if rare else []
    if not situation.old_readers:
        return Verdict("reindex", reasons)
    loss = paired_bootstrap(ndcg["sidecar"], ndcg["stay"], seed)
    allowed = situation.tolerance * float(ndcg["stay"].mean())
    few = _too_few_lose(ndcg["sidecar"], ndcg["stay"], allowed)
    reasons.append(
        f"Old readers of a sidecar differ from now by {loss}, and {-allowed:.4f} is allowed."
    )
    reasons += [few] if few else []
    if few is None and loss.low >= -allowed:
        return Verdict("sidecar", reasons)
    remedy = "judge more queries" if few else "give the sidecar more bytes"
    reasons.append(f"Keep the old index for them, or {remedy}.")
    return Verdict("reindex", reasons)


def _too_few_lose(values: Tensor, others: Tensor, most_lost: float = 0.0) -> str | None:
    """Return a sentence if so few queries lose that no small loss is shown; see `decide`."""
    queries, losing = len(values), int((values < others).sum())
    if losing >= LEAST_LOSING or most_lost >= 1:
        return None
    if betting_test((values - others).clamp(-1, 1), -most_lost) <= 1 - LEVEL:
        return None
    return f"Only {losing} of {queries} queries lose, too few to show how much is lost."
