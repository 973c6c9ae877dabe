"""Three methods by λ, and ours. [BC] Figure 5."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from reproduction.bc import basis, methods
from reproduction.bc.columns import of_corpus, on_first, on_music, swept
from reproduction.bc.comparison import compare_methods
from reproduction.bc.methods import (
    ALIGNER,
    EVERGRAM,
    JOINT,
    JOINT_SINGLE,
    KEEP_ALL,
    NAMES,
    NO_TRANS,
)
from reproduction.claims import Claim
from reproduction.comparison.settings import Comparison
from reproduction.experiment import Experiment, Line, Panel, Preset, Runs, Table, Training
from reproduction.intervals import shown
from reproduction.printed import printed
from reproduction.results import Result

STRENGTHS = (1, 2, 4, 8, 16, 32)
# The λ of [BC] Table 3.
PRINTED = 16
THREE = (NO_TRANS, JOINT_SINGLE, ALIGNER)
VERTICAL = {
    "intended": "(1) intended task, %",
    "unintended": "(2) consumers, %",
    "error": "(3) mean distance",
}
# Points within which two sums are comparable.
COMPARABLE = 1.0


# Every second version, and so half of the trainings, of fewer passes.
FEWER: dict[str, Any] = {
    "split.versions": [0.5, 0.7, 0.9],
    "training.epochs": 16,
    "training.evaluate_every": 2,
    "upgrade.select_after": 4,
}
BY_CORPUS: dict[str, dict[str, Any]] = {
    "amazon-beauty": {"model.dim": [16, 24, 32]},
    "amazon-musical-instruments": {"model.layers": [1, 2, 2], "model.dim": [32, 48, 64]},
}


def trainings(
    recipes: Mapping[str, Path],
    strengths: tuple[int, ...] = STRENGTHS,
    more: Mapping[str, Any] | None = None,
) -> tuple[Training, ...]:
    """Return one comparison a corpus, of the joint methods at every λ.

    Args:
        more: further settings.
    """
    settings = {"compare.methods": [KEEP_ALL, *JOINT], "compare.lambdas": list(strengths)}
    settings |= more or {}
    return tuple(
        Training(corpus, recipe, settings, program=compare_methods, reads=Comparison.of)
        for corpus, recipe in recipes.items()
    )


def swept_trainings() -> tuple[Training, ...]:
    """Return the sweep of each corpus of the small preset."""
    return tuple(
        training
        for corpus, settings in BY_CORPUS.items()
        for training in trainings({corpus: methods.SMALL[corpus]}, more={**FEWER, **settings})
    )


def tables(runs: Runs) -> list[Table]:
    """Return for each corpus and metric a row for each method, a column for each λ."""
    made = []
    for corpus in runs.labels:
        strengths = list(swept(runs.of(corpus)[0], ALIGNER, "error"))
        header = ["", "", *(f"λ = {w:g}" for w in strengths)]
        rows = [
            [vertical, NAMES[method], *(_cell(runs, corpus, method, column, w) for w in strengths)]
            for column, vertical in [*VERTICAL.items(), ("total", "(1)+(2), %")]
            for method in JOINT
        ]
        made.append(Table(corpus, header, rows))
    return [*made, basis.table(runs)]


def _cell(runs: Runs, corpus: str, method: str, column: str, weight: float) -> str:
    values = of_corpus(runs, corpus, partial(_at, method, column, weight))
    return shown(values, 3 if column == "error" else 2)


def panels(runs: Runs) -> list[Panel]:
    """Return a diagram of each metric by λ; dashed, the paper's figures at λ = 16 (Table 3)."""
    made = []
    for corpus in runs.labels:
        for column, vertical in VERTICAL.items():
            lines = [_line(runs, corpus, method, column) for method in JOINT]
            if column != "error":  # whose scale is another in the paper
                lines += [_theirs(method, column) for method in THREE]
            made.append(Panel(corpus, "λ", vertical, lines, log_x=True))
    return made


def _line(runs: Runs, corpus: str, method: str, column: str) -> Line:
    strengths = list(swept(runs.of(corpus)[0], method, column))
    values = zip(
        *(of_corpus(runs, corpus, partial(_at, method, column, w)) for w in strengths),
        strict=True,
    )
    return Line(NAMES[method], strengths, list(values))


def _at(method: str, column: str, weight: float, result: Result) -> float:
    return swept(result, method, column)[weight]


def _theirs(method: str, column: str) -> Line:
    row = printed("bc")["Table 3"]["rows"]["Musical Instruments"][NAMES[method]]
    return Line(f"{NAMES[method]}, theirs", [PRINTED], [[row[column]]], dashed=True)


def _change(result: Result, method: str, column: str) -> float:
    """Return by how much a metric is higher at the largest λ than at the smallest."""
    figures = swept(result, method, column)
    return figures[max(figures)] - figures[min(figures)]


def large_costs(result: Result) -> dict[str, float]:
    return {NAMES[method]: -_change(result, method, "intended") for method in THREE}


def large_helps_consumers(result: Result) -> dict[str, float]:
    return {NAMES[method]: _change(result, method, "unintended") for method in THREE}


def large_is_closer(result: Result) -> dict[str, float]:
    changes = {method: _change(result, method, "error") for method in THREE}
    return {
        NAMES[method]: -100 * change / max(swept(result, method, "error").values())
        for method, change in changes.items()
    }


def aligner_is_often_best(result: Result) -> float:
    """Return at how many λ the sum of BC-Aligner is the best of the three, or within `COMPARABLE`
    of it, less half of them."""
    sums = {method: swept(result, method, "total") for method in THREE}
    wins = [
        max(sums[method][w] for method in THREE) - sums[ALIGNER][w] <= COMPARABLE
        for w in sums[ALIGNER]
    ]
    return sum(wins) - len(wins) / 2


def _ours_is_higher(result: Result, column: str) -> float:
    """Return by how much a metric of evergram is higher than BC-Aligner's, mean over λ."""
    ours, theirs = (swept(result, method, column) for method in (EVERGRAM, ALIGNER))
    return fmean(ours[weight] - theirs[weight] for weight in theirs)


def ours_is_better_for_consumers(result: Result) -> float:
    return _ours_is_higher(result, "unintended")


def ours_has_the_better_sum(result: Result) -> float:
    return _ours_is_higher(result, "total")


SOURCE, OURS = "[BC] §5.2", "ours, no claim of [BC]"
NOISE = "Two to three hundred queries a version tell little of metric (1)."
CLAIMS = (
    Claim(
        "As λ increases, all the methods have larger degradation in the intended task.",
        SOURCE,
        "how much lower (1) of each method is at the largest λ than at the smallest, points; "
        "Amazon Beauty",
        on_first(large_costs),
    ),
    Claim(
        "As λ increases, all the methods have smaller degradation in the unintended tasks.",
        SOURCE,
        "how much higher (2) of each method is at the largest λ than at the smallest, points; "
        "Musical Instruments",
        on_music(large_helps_consumers),
        "It is so with both linear transforms; Joint-NoTrans, whose first coordinates must be the "
        "past ones, gains nothing.",
    ),
    Claim(
        "As λ increases, all the methods have a smaller error.",
        SOURCE,
        "how much smaller (3) of each method is at the largest λ than at the smallest, % of the "
        "largest; Musical Instruments",
        on_music(large_is_closer),
    ),
    Claim(
        "For fixed λ, BC-Aligner often gives the best or comparable performance.",
        SOURCE,
        f"at how many λ its (1)+(2) is the best of the three or within {COMPARABLE:g} point of it, "
        "less half of them; Amazon Beauty",
        on_first(aligner_is_often_best),
    ),
    Claim(
        "At the same λ evergram costs consumers less than BC-Aligner.",
        OURS,
        "how much higher its (2) is, points, mean over λ, paired; Musical Instruments",
        on_music(ours_is_better_for_consumers),
    ),
    Claim(
        "At the same λ evergram has a higher sum (1)+(2) than BC-Aligner.",
        OURS,
        "how much higher it is, points, mean over λ, paired; Musical Instruments",
        on_music(ours_has_the_better_sum),
        NOISE,
    ),
)
EXPERIMENT = Experiment(
    "bc/figure5",
    {"BC": "Figure 5"},
    "Three methods by λ",
    "The three metrics of the paper's joint methods and of `evergram` by λ, in the unit of the "
    "paper's code. Dashed points: theirs at λ = 16 on Musical Instruments, from Table 3; the paper "
    "prints no other numbers of its figure.",
    {
        "tiny": Preset(trainings({"synthetic": methods.TINY}, (1, 16)), methods.TINY_NOTE),
        "small": Preset(swept_trainings(), methods.SWEPT_NOTE, 5),
        "paper": Preset(
            trainings(
                {"Musical Instruments": methods.PAPER["Musical Instruments"]},
                more={"upgrade.fit_epochs": None},  # of transforms that are fitted afterwards
            ),
            methods.PAPER_NOTE,
        ),
    },
    tables,
    panels,
    CLAIMS,
)
