"""[BC]'s sentences about Table 3, each with the number that judges it and its premise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from reproduction.bc.columns import (
    Read,
    ReadEach,
    keep_all,
    music_of,
    of_corpus,
    on_first,
    on_music,
    rank_correlation,
    value,
)
from reproduction.bc.methods import (
    ALIGNER,
    EVERGRAM,
    FINETUNE,
    FIX,
    INDUCTIVE,
    JOINT_SINGLE,
    NAMES,
    NO_TRANS,
    NON_BC,
    POST_MULTI,
    POST_SINGLE,
    PRACTICAL,
)
from reproduction.claims import Claim, nothing_against
from reproduction.experiment import Runs
from reproduction.intervals import gain
from reproduction.results import Result

# The ROC-AUC below which consumers are not clearly better than chance.
BETTER_THAN_CHANCE = 0.6
FIRST, MUSICAL = "Amazon Beauty", "Musical Instruments"
OURS = "ours, no claim of [BC]"
Premise = Callable[[Runs], str]


def known_consumers(runs: Runs) -> str:
    """Return why (2) says nothing on Musical Instruments: consumers that are near chance have
    nothing to lose."""
    corpus = music_of(runs)
    auc = fmean(of_corpus(runs, corpus, partial(keep_all, metric="unintended")))
    if auc >= BETTER_THAN_CHANCE:
        return ""
    return f"Keep-All's consumers have a ROC-AUC of {auc:.2f}, and chance has 0.5"


def known_objects(runs: Runs) -> str:
    """Return why the first corpus says nothing where newer objects count: version 0 has no vectors
    for them, which is coverage and not compatibility."""
    if runs.labels[0] in INDUCTIVE:
        return ""
    return "version 0 has no vectors for newer objects, which is coverage, not compatibility"


@dataclass(frozen=True)
class Sentence:
    """A claim that is one number of each result.

    Args:
        read: the margin of one corpus and seed.
        of_queries: whether it is on metric (1), and so judged on the preset's first corpus, which
            has the most queries; otherwise it is judged on Musical Instruments, as the paper's own
            figures are.
        premise: as of `Claim`.
    """

    sentence: str
    source: str
    measured: str
    read: Read | ReadEach
    of_queries: bool
    premise: Premise = nothing_against
    remark: str = ""

    @property
    def claim(self) -> Claim:
        margins = (on_first if self.of_queries else on_music)(self.read)
        measured = f"{self.measured}, {FIRST if self.of_queries else MUSICAL}"
        remark, premise = self.remark, self.premise
        return Claim(self.sentence, self.source, measured, margins, remark, premise=premise)


def _more(column: str, better: str, worse: str) -> Read:
    """Read by how many points one method's figure is above another's."""
    return lambda result: value(result, better, column) - value(result, worse, column)


def _loss(column: str, method: str) -> Read:
    return lambda result: -value(result, method, column)


def _closer(better: str, worse: str) -> Read:
    """Read by how many percent one method's (3) is smaller than another's."""
    return lambda result: -gain(value(result, better, "error"), value(result, worse, "error"))


def _over_each(read: Callable[[str], Read], *without: str) -> ReadEach:
    """Read a margin over each of the paper's methods but some."""
    others = [method for method in PRACTICAL if method not in without]
    return lambda result: {NAMES[other]: read(other)(result) for other in others}


def error_stands_for_consumers(result: Result) -> float:
    methods = [method for method in PRACTICAL if method != FIX]
    losses = [-value(result, method, "unintended") for method in methods]
    errors = [value(result, method, "error") for method in methods]
    return rank_correlation(losses, errors) - 0.8


# By what a test calls each.
SENTENCES: Mapping[str, Sentence] = {
    "non-bc breaks": Sentence(
        "Non-BC suffers from large unintended task degradation.",
        "[BC] §5.2",
        "how much lower its (2) is than BC-Aligner's, points",
        _more("unintended", ALIGNER, NON_BC),
        of_queries=False,
        premise=known_consumers,
    ),
    "fix is worst": Sentence(
        "Fix-M0 has by far the largest intended task degradation.",
        "[BC] §5.2",
        "how much lower its (1) is than each other method's, points",
        _over_each(lambda other: _more("intended", other, FIX), FIX),
        of_queries=True,
        premise=known_objects,
    ),
    "finetune loses": Sentence(
        "Finetune-M0 still suffers from large intended task degradation.",
        "[BC] §5.2",
        "its loss in (1), points",
        _loss("intended", FINETUNE),
        of_queries=True,
    ),
    "finetune breaks": Sentence(
        "Finetuned models are generally no longer compatible with the original model.",
        "[BC] §5.2",
        "Finetune-M0's loss in (2), points",
        _loss("unintended", FINETUNE),
        of_queries=False,
        premise=known_consumers,
    ),
    "joint beats post hoc": Sentence(
        "Post-Lin-SLoss performs poorly on unintended tasks.",
        "[BC] §5.2",
        "how much lower its (2) is than BC-Aligner's, points",
        _more("unintended", ALIGNER, POST_SINGLE),
        of_queries=False,
        premise=known_consumers,
    ),
    "multi is no better post hoc": Sentence(
        "Post-Lin-MLoss is no better than Post-Lin-SLoss.",
        "[BC] Table 3",
        "how much lower its (2) is than Post-Lin-SLoss's, points",
        _more("unintended", POST_SINGLE, POST_MULTI),
        of_queries=False,
        premise=known_consumers,
        remark="Both have [the same solution](method.md#closed-forms).",
    ),
    "no-trans costs": Sentence(
        "Joint-NoTrans falls short on the intended task.",
        "[BC] §5.2",
        "its loss in (1), points",
        _loss("intended", NO_TRANS),
        of_queries=True,
    ),
    "linear costs less": Sentence(
        "Joint-Lin-SLoss has a smaller intended task degradation than Joint-NoTrans.",
        "[BC] §5.2",
        "how much higher its (1) is, points",
        _more("intended", JOINT_SINGLE, NO_TRANS),
        of_queries=True,
        remark="At λ = 16 the alignment outweighs the task here: every joint method loses alike.",
    ),
    "single is worse for consumers": Sentence(
        "Joint-Lin-SLoss performs relatively poorly on unintended tasks.",
        "[BC] §5.2",
        "how much lower its (2) is than BC-Aligner's, points",
        _more("unintended", ALIGNER, JOINT_SINGLE),
        of_queries=False,
        premise=known_consumers,
    ),
    "multi is closer": Sentence(
        "The multi-step loss has a smaller error than the single-step loss.",
        "[BC] §5.2",
        "how much smaller BC-Aligner's (3) is than Joint-Lin-SLoss's, %",
        _closer(ALIGNER, JOINT_SINGLE),
        of_queries=False,
    ),
    "aligner is closest": Sentence(
        "BC-Aligner achieves the smallest error among all the methods.",
        "[BC] §5.2",
        "how much smaller its (3) is than each other's but Fix-M0's, %",
        _over_each(lambda other: _closer(ALIGNER, other), ALIGNER, FIX),
        of_queries=False,
    ),
    "aligner has the best sum": Sentence(
        "BC-Aligner provides the best trade-off, (1)+(2), of the methods that keep one model.",
        "[BC] §5.2",
        "how much higher its sum is than each other's, points",
        _over_each(lambda other: _more("total", ALIGNER, other), ALIGNER),
        of_queries=True,
        premise=known_objects,
    ),
    "error stands for consumers": Sentence(
        "The smaller the unintended task degradation is, the smaller the error is.",
        "[BC] §5.2",
        "Spearman's correlation over the methods but Fix-M0, less 0.8",
        error_stands_for_consumers,
        of_queries=False,
        premise=known_consumers,
    ),
    "ours is better for consumers": Sentence(
        "evergram costs consumers less than BC-Aligner.",
        OURS,
        "how much higher its (2) is, points, paired",
        _more("unintended", EVERGRAM, ALIGNER),
        of_queries=False,
        premise=known_consumers,
    ),
    "ours is closer": Sentence(
        "evergram has a smaller error than BC-Aligner.",
        OURS,
        "how much smaller its (3) is, %, paired",
        _closer(EVERGRAM, ALIGNER),
        of_queries=False,
    ),
}
