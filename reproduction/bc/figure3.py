"""Three methods and ours over time. [BC] Figure 3."""

from __future__ import annotations

from reproduction.bc import table3
from reproduction.bc.claims import known_consumers
from reproduction.bc.columns import by_version, on_consumers, on_music, over_time, times
from reproduction.bc.methods import ALIGNER, JOINT, JOINT_SINGLE, NAMES, NO_TRANS
from reproduction.claims import Claim
from reproduction.experiment import Experiment, Line, Panel, Runs, nothing
from reproduction.results import Result

VERTICAL = {
    "intended": "(1) intended task, %",
    "unintended": "(2) consumers, %",
    "error": "(3) mean distance",
}
ALMOST_ALL = 80.0
HORIZONTAL = "share of the interactions seen"


def panels(runs: Runs) -> list[Panel]:
    made = []
    for corpus in runs.labels:
        x = times(runs.of(corpus)[0])
        for column, vertical in VERTICAL.items():
            lines = []
            for method in JOINT:
                values = _by_version(runs, corpus, method, column)
                seeds = list(zip(*values.values(), strict=True))
                lines.append(Line(NAMES[method], [x[k] for k in values], seeds))
            made.append(Panel(corpus, HORIZONTAL, vertical, lines))
    return made


def _by_version(runs: Runs, corpus: str, method: str, column: str) -> dict[int, list[float]]:
    return by_version(runs, corpus, lambda result: over_time(result, method, column))


def growth(result: Result, method: str) -> float:
    """Return the error at the last version divided by the error at version 1."""
    errors = over_time(result, method, "error")
    return errors[max(errors)] / errors[1]


def multi_grows_less(result: Result) -> float:
    return growth(result, JOINT_SINGLE) - growth(result, ALIGNER)


def aligner_is_best_over_time(result: Result) -> float:
    """Return the share of versions and metrics for which BC-Aligner is the best of the three, in %,
    minus `ALMOST_ALL`."""
    wins = []
    for column in VERTICAL:
        sign = -1 if column == "error" else 1
        own = over_time(result, ALIGNER, column)
        others = [over_time(result, method, column) for method in (NO_TRANS, JOINT_SINGLE)]
        for k in own:
            if k > 0:
                wins.append(sign * own[k] > max(sign * other[k] for other in others))
    return 100 * sum(wins) / len(wins) - ALMOST_ALL


EXPERIMENT = Experiment(
    "bc/figure3",
    {"BC": "Figure 3"},
    "Three methods over time",
    "The runs of Table 3 by version, with `evergram` beside the paper's three joint methods.",
    table3.PRESETS,
    nothing,
    panels,
    (
        Claim(
            "The error increases sharply over time for Joint-Lin-SLoss, and less for BC-Aligner.",
            "[BC] §5.2",
            "how many times version 1's error the last version's is, Joint-Lin-SLoss less "
            "BC-Aligner, Musical Instruments",
            on_music(multi_grows_less),
        ),
        Claim(
            "BC-Aligner provides the best performance across almost all the timestamps.",
            "[BC] §5.2",
            "at how many % of the versions and metrics it is the best of the three, less "
            f"{ALMOST_ALL:g}, MovieLens",
            on_consumers(aligner_is_best_over_time),
            premise=known_consumers,
        ),
    ),
    runs_of=table3.NAME,
)
