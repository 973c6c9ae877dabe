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
    on_each,
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
# Degradations up to this many points do not count as large, or as performing poorly.
LITTLE = 4.0
# The difference between two post-hoc transforms that counts as none, in points.
ALIKE = 0.5
OURS = "ours, no claim of [BC]"
Premise = Callable[[Runs], str]


def known_consumers(runs: Runs) -> str:
    """Return why (2) is meaningless, if consumers are close to chance and have nothing to lose."""
    return near_chance(runs, consumers_of(runs))


def near_chance(runs: Runs, corpus: str) -> str:
    """Return that a corpus's consumers are close to chance, or ""."""
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
        )


def _more(column: str, better: str, worse: str) -> Read:
    """Read the difference between two methods' figures, in points."""
    return lambda result: value(result, better, column) - value(result, worse, column)


def _loss(column: str, method: str, less: float = 0.0) -> Read:
    return lambda result: -value(result, method, column) - less


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
    "each": ("on each corpus", on_each, nothing_against),
}
AT_16 = "This is at the paper's λ of 16; with a smaller one joint training loses less "
AT_16 += "([by λ](#three-methods-by-λ))."
# By the names used in tests.
SENTENCES: Mapping[str, Sentence] = {
    "non-bc breaks": Sentence(
        "Non-BC suffers from large unintended task degradation.",
        "[BC] §5.2",
        "how much lower its (2) is than BC-Aligner's, points",
        _more("unintended", ALIGNER, NON_BC),
        on="consumers",
    ),
    "fix loses": Sentence(
        "Fix-M0 suffers from large intended task degradation.",
        "[BC] §5.2",
        f"its loss in (1), less {LITTLE:g}, points",
        _loss("intended", FIX, LITTLE),
        on="objects",
    ),
    "finetune loses": Sentence(
        "Finetune-M0 still suffers from large intended task degradation.",
        "[BC] §5.2",
        f"its loss in (1), less {LITTLE:g}, points",
        _loss("intended", FINETUNE, LITTLE),
        on="queries",
    ),
    "finetune breaks": Sentence(
        "Finetuned models are generally no longer compatible with the original model.",
        "[BC] §5.2",
        "Finetune-M0's loss in (2), points",
        _loss("unintended", FINETUNE),
        on="consumers",
    ),
    "post hoc is poor": Sentence(
        "Post-Lin-SLoss performs poorly on unintended tasks.",
        "[BC] §5.2",
        f"its loss in (2), less {LITTLE:g}, points",
        _loss("unintended", POST_SINGLE, LITTLE),
        on="consumers",
    ),
    "joint beats post hoc": Sentence(
        "BC-Aligner has a smaller unintended task degradation than Post-Lin-SLoss.",
        "[BC] Table 3",
        "how much higher its (2) is, points",
        _more("unintended", ALIGNER, POST_SINGLE),
        on="consumers",
    ),
    "multi is no better post hoc": Sentence(
        "Post-Lin-MLoss is no better than Post-Lin-SLoss.",
        "[BC] Table 3",
        f"{ALIKE:g} less how much higher its (2) is, points",
        lambda result: ALIKE - _more("unintended", POST_MULTI, POST_SINGLE)(result),
        on="consumers",
        remark="Both have [the same solution](method.md#closed-forms).",
    ),
    "no-trans costs": Sentence(
        "Joint-NoTrans falls short on the intended task.",
        "[BC] §5.2",
        "how much lower its (1) is than BC-Aligner's, points",
        _more("intended", ALIGNER, NO_TRANS),
        on="queries",
    ),
    "linear costs less": Sentence(
        "Joint-Lin-SLoss has a smaller intended task degradation than Joint-NoTrans.",
        "[BC] §5.2",
        "how much higher its (1) is, points",
        _more("intended", JOINT_SINGLE, NO_TRANS),
        on="queries",
    ),
    "aligner loses little": Sentence(
        "BC-Aligner suffers from little intended task degradation.",
        "[BC] §5.2",
        f"{LITTLE:g} less its loss in (1), points",
        lambda result: LITTLE + value(result, ALIGNER, "intended"),
        on="queries",
        remark=AT_16,
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
        on="each",
    ),
    "aligner is closest": Sentence(
        "BC-Aligner achieves the smallest error among all the methods.",
        "[BC] §5.2",
        "how much smaller its (3) is than each other's but Fix-M0's, %",
        _over_each(lambda other: _closer(ALIGNER, other), ALIGNER, FIX),
        on="each",
    ),
    "aligner has the best sum": Sentence(
        "BC-Aligner provides the best trade-off, (1)+(2), of the methods that keep one model.",
        "[BC] §5.2",
        "how much higher its sum is than each other's but Fix-M0's, points",
        _over_each(lambda other: _more("total", ALIGNER, other), ALIGNER, FIX),
        on="queries",
        remark="Version 0 has no vectors for newer objects here, so that Fix-M0 is left out. "
        + AT_16,
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
        on="each",
    ),
}
