"""[BC]'s claims about Table 3, each with its margin and premise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from reproduction.bc.columns import (
    Read,
    ReadEach,
    consumers_of,
    keep_all,
    of_corpus,
    on_consumers,
    on_first,
    on_music,
    value,
)
from reproduction.bc.methods import (
    ALIGNER,
    EVERGRAM,
    FINETUNE,
    FIX,
    JOINT_SINGLE,
    NAMES,
    NO_TRANS,
    NON_BC,
    POST_MULTI,
    POST_SINGLE,
    PRACTICAL,
)
from reproduction.claims import Claim, Margins, nothing_against
from reproduction.experiment import Runs
from reproduction.intervals import gain, rank_correlation
from reproduction.results import Result

# Below this ROC-AUC, consumers are not clearly better than chance.
BETTER_THAN_CHANCE = 0.6
OURS = "ours, no claim of [BC]"
Premise = Callable[[Runs], str]


def known_consumers(runs: Runs) -> str:
    """Return why (2) is meaningless, if consumers are close to chance and have nothing to lose."""
    corpus = consumers_of(runs)
    auc = fmean(of_corpus(runs, corpus, partial(keep_all, metric="unintended")))
    if auc >= BETTER_THAN_CHANCE:
        return ""
    return f"Keep-All's consumers have a ROC-AUC of {auc:.2f}, and chance has 0.5"


@dataclass(frozen=True)
class Sentence:
    """A claim with one margin per result."""

    sentence: str
    source: str
    measured: str
    read: Read | ReadEach  # reads the margin from a result
    on: str  # the corpus on which it is judged, a key of `CORPORA`
    remark: str = ""
    unfair: str = ""  # why the setting cannot refute it

    @property
    def claim(self) -> Claim:
        corpus, margins, premise = CORPORA[self.on]
        return Claim(
            self.sentence,
            self.source,
            f"{self.measured}, {corpus}",
            margins(self.read),
            self.remark,
            premise=premise,
            too_short=lambda runs: self.unfair,
        )


def _more(column: str, better: str, worse: str) -> Read:
    """Read the difference between two methods' figures, in points."""
    return lambda result: value(result, better, column) - value(result, worse, column)


def _loss(column: str, method: str) -> Read:
    return lambda result: -value(result, method, column)


def _closer(better: str, worse: str) -> Read:
    """Read how much smaller one method's (3) is than another's, in percent."""
    return lambda result: -gain(value(result, better, "error"), value(result, worse, "error"))


def _over_each(read: Callable[[str], Read], *without: str) -> ReadEach:
    """Read a margin over each of the paper's methods, except some."""
    others = [method for method in PRACTICAL if method not in without]
    return lambda result: {NAMES[other]: read(other)(result) for other in others}


def error_stands_for_consumers(result: Result) -> float:
    methods = [method for method in PRACTICAL if method != FIX]
    losses = [-value(result, method, "unintended") for method in methods]
    errors = [value(result, method, "error") for method in methods]
    return rank_correlation(losses, errors) - 0.8


# The corpora for claims: name, how to read margins, and premise.
CORPORA: Mapping[str, tuple[str, Callable[[Read | ReadEach], Callable[[Runs], Margins]], Premise]]
CORPORA = {
    # It has the most queries.
    "queries": ("Amazon Beauty", on_first, nothing_against),
    # It has five tasks, with results above chance.
    "consumers": ("MovieLens", on_consumers, known_consumers),
    # The paper's corpus and encoder, which can embed objects that it was not trained on.
    "objects": ("Musical Instruments", on_music, nothing_against),
}
# By the names used in tests.
SENTENCES: Mapping[str, Sentence] = {
    "non-bc breaks": Sentence(
        "Non-BC suffers from large unintended task degradation.",
        "[BC] §5.2",
        "how much lower its (2) is than BC-Aligner's, points",
        _more("unintended", ALIGNER, NON_BC),
        on="consumers",
    ),
    "fix is worst": Sentence(
        "Fix-M0 has by far the largest intended task degradation.",
        "[BC] §5.2",
        "how much lower its (1) is than each other method's, points",
        _over_each(lambda other: _more("intended", other, FIX), FIX),
        on="objects",
    ),
    "finetune loses": Sentence(
        "Finetune-M0 still suffers from large intended task degradation.",
        "[BC] §5.2",
        "its loss in (1), points",
        _loss("intended", FINETUNE),
        on="queries",
    ),
    "finetune breaks": Sentence(
        "Finetuned models are generally no longer compatible with the original model.",
        "[BC] §5.2",
        "Finetune-M0's loss in (2), points",
        _loss("unintended", FINETUNE),
        on="consumers",
    ),
    "joint beats post hoc": Sentence(
        "Post-Lin-SLoss performs poorly on unintended tasks.",
        "[BC] §5.2",
        "how much lower its (2) is than BC-Aligner's, points",
        _more("unintended", ALIGNER, POST_SINGLE),
        on="consumers",
    ),
    "multi is no better post hoc": Sentence(
        "Post-Lin-MLoss is no better than Post-Lin-SLoss.",
        "[BC] Table 3",
        "how much lower its (2) is than Post-Lin-SLoss's, points",
        _more("unintended", POST_SINGLE, POST_MULTI),
        on="consumers",
        remark="Both have [the same solution](method.md#closed-forms).",
    ),
    "no-trans costs": Sentence(
        "Joint-NoTrans falls short on the intended task.",
        "[BC] §5.2",
        "its loss in (1), points",
        _loss("intended", NO_TRANS),
        on="queries",
    ),
    "linear costs less": Sentence(
        "Joint-Lin-SLoss has a smaller intended task degradation than Joint-NoTrans.",
        "[BC] §5.2",
        "how much higher its (1) is, points",
        _more("intended", JOINT_SINGLE, NO_TRANS),
        on="queries",
        remark="At λ = 16 the alignment outweighs the task here: every joint method loses alike.",
    ),
    "single is worse for consumers": Sentence(
        "Joint-Lin-SLoss performs relatively poorly on unintended tasks.",
        "[BC] §5.2",
        "how much lower its (2) is than BC-Aligner's, points",
        _more("unintended", ALIGNER, JOINT_SINGLE),
        on="consumers",
    ),
    "multi is closer": Sentence(
        "The multi-step loss has a smaller error than the single-step loss.",
        "[BC] §5.2",
        "how much smaller BC-Aligner's (3) is than Joint-Lin-SLoss's, %",
        _closer(ALIGNER, JOINT_SINGLE),
        on="objects",
    ),
    "aligner is closest": Sentence(
        "BC-Aligner achieves the smallest error among all the methods.",
        "[BC] §5.2",
        "how much smaller its (3) is than each other's but Fix-M0's, %",
        _over_each(lambda other: _closer(ALIGNER, other), ALIGNER, FIX),
        on="objects",
    ),
    "aligner has the best sum": Sentence(
        "BC-Aligner provides the best trade-off, (1)+(2), of the methods that keep one model.",
        "[BC] §5.2",
        "how much higher its sum is than each other's but Fix-M0's, points",
        _over_each(lambda other: _more("total", ALIGNER, other), ALIGNER, FIX),
        on="queries",
        remark="Version 0 has no vectors for newer objects here, so that Fix-M0 is left out.",
        unfair="λ = 16 is the paper's, and was not chosen for Beauty, where joint training loses "
        "little with a smaller one ([by λ](#three-methods-by-λ))",
    ),
    "error stands for consumers": Sentence(
        "The smaller the unintended task degradation is, the smaller the error is.",
        "[BC] §5.2",
        "Spearman's correlation over the methods but Fix-M0, less 0.8",
        error_stands_for_consumers,
        on="consumers",
    ),
    "ours is better for consumers": Sentence(
        "evergram costs consumers less than BC-Aligner.",
        OURS,
        "how much higher its (2) is, points, paired",
        _more("unintended", EVERGRAM, ALIGNER),
        on="consumers",
    ),
    "ours is closer": Sentence(
        "evergram has a smaller error than BC-Aligner.",
        OURS,
        "how much smaller its (3) is, %, paired",
        _closer(EVERGRAM, ALIGNER),
        on="objects",
    ),
}
