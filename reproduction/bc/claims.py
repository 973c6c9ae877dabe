"""[BC]'s sentences about Table 3, each with the number that judges it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reproduction.bc.columns import (
    Read,
    ReadEach,
    comparison,
    margins_of,
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
    JOINT_SINGLE,
    NAMES,
    NO_TRANS,
    NON_BC,
    POST_MULTI,
    POST_SINGLE,
    PRACTICAL,
)
from reproduction.claims import Claim, Margins
from reproduction.experiment import Runs, Table
from reproduction.intervals import gain, shown
from reproduction.results import Result

# Matrices whose relative distance is below it are the same; no distance is below that of rounding.
SAME_MATRIX = 1e-6
ROUNDING = 1e-16
FIRST, MUSICAL = "Amazon Beauty", "Musical Instruments"


@dataclass(frozen=True)
class Sentence:
    """A claim that is one number of each result.

    Args:
        sentence, source, measured, remark: as of `Claim`.
        read: the margin of one corpus and seed.
        of_queries: whether it is on metric (1), and so judged on the preset's first corpus, which
            has the most queries; otherwise it is judged on Musical Instruments, as the paper's own
            figures are.
    """

    sentence: str
    source: str
    measured: str
    read: Read | ReadEach
    of_queries: bool
    remark: str = ""

    def claim(self) -> Claim:
        where = FIRST if self.of_queries else MUSICAL
        margins = (on_first if self.of_queries else on_music)(self.read)
        measured = f"{self.measured}; {where}"
        return Claim(self.sentence, self.source, measured, margins, self.remark)


def by_corpus(sentences: Sequence[Sentence], runs: Runs) -> Table:
    """Return each claim's margin on each corpus, with its interval; the smallest of several."""
    rows = [
        [s.sentence, *(_least(margins_of(runs, x, s.read)) for x in runs.labels), s.measured]
        for s in sentences
    ]
    return Table("Margins of the claims by corpus", ["", *runs.labels, "the margin is"], rows)


def _least(margins: Margins) -> str:
    if not isinstance(margins, Mapping):
        return shown(margins, 2)
    name = min(margins, key=lambda each: sum(margins[each]))
    return f"{shown(margins[name], 2)} ({name})"


def _others(*methods: str) -> list[str]:
    return [method for method in PRACTICAL if method not in methods]


def non_bc_breaks(result: Result) -> float:
    return value(result, ALIGNER, "unintended") - value(result, NON_BC, "unintended")


def fix_is_worst(result: Result) -> dict[str, float]:
    own = value(result, FIX, "intended")
    return {NAMES[other]: value(result, other, "intended") - own for other in _others(FIX)}


def finetune_loses(result: Result) -> float:
    return -value(result, FINETUNE, "intended")


def finetune_breaks(result: Result) -> float:
    return -value(result, FINETUNE, "unintended")


def joint_beats_posthoc(result: Result) -> float:
    return value(result, ALIGNER, "unintended") - value(result, POST_SINGLE, "unintended")


def multi_is_no_better_posthoc(result: Result) -> float:
    return value(result, POST_SINGLE, "unintended") - value(result, POST_MULTI, "unintended")


def closed_forms_agree(result: Result) -> float:
    distances = comparison(result)["closed_forms"].values()
    return math.log10(SAME_MATRIX / max(*distances, ROUNDING))


def no_trans_costs(result: Result) -> float:
    return -value(result, NO_TRANS, "intended")


def linear_costs_less(result: Result) -> float:
    return value(result, JOINT_SINGLE, "intended") - value(result, NO_TRANS, "intended")


def single_is_worse_for_consumers(result: Result) -> float:
    return value(result, ALIGNER, "unintended") - value(result, JOINT_SINGLE, "unintended")


def multi_is_closer(result: Result) -> float:
    return -gain(value(result, ALIGNER, "error"), value(result, JOINT_SINGLE, "error"))


def aligner_is_closest(result: Result) -> dict[str, float]:
    own = value(result, ALIGNER, "error")
    others = _others(ALIGNER, FIX)
    return {NAMES[other]: -gain(own, value(result, other, "error")) for other in others}


def aligner_has_the_best_sum(result: Result) -> dict[str, float]:
    own = value(result, ALIGNER, "total")
    return {NAMES[other]: own - value(result, other, "total") for other in _others(ALIGNER)}


def error_stands_for_consumers(result: Result) -> float:
    methods = _others(FIX)
    losses = [-value(result, method, "unintended") for method in methods]
    errors = [value(result, method, "error") for method in methods]
    return rank_correlation(losses, errors) - 0.8


def ours_has_the_better_sum(result: Result) -> float:
    return value(result, EVERGRAM, "total") - value(result, ALIGNER, "total")


def ours_is_better_for_consumers(result: Result) -> float:
    return value(result, EVERGRAM, "unintended") - value(result, ALIGNER, "unintended")


def ours_is_closer(result: Result) -> float:
    return -gain(value(result, EVERGRAM, "error"), value(result, ALIGNER, "error"))
