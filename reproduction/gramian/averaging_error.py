"""Gramian error of SOGram by α. [G1] Fig. 3; [G2] Fig. 2b."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from reproduction.claims import Claim, Margins, chosen_elsewhere
from reproduction.experiment import Experiment, Line, Panel, Runs, nothing
from reproduction.gramian import gramian_error, map_series
from reproduction.gramian.gramian_error import KINDS, PRESETS, RATES, judged, last_quarter, sizes_of
from reproduction.gramian.gramian_error import sogram_name as name_of
from reproduction.results import Result


def curve(result: Result, rate: float) -> list[float]:
    """Return the Gramian errors for an α along the trajectory, with the largest batch."""
    values: list[float] = result.series["errors"]["gramian"][
        f"{name_of(rate)} | {sizes_of(result)[-1]}"
    ]
    return values


def early(result: Result, rate: float) -> float:
    """Return the mean error of the first two measurements."""
    return fmean(curve(result, rate)[:2])


def late(result: Result, rate: float) -> float:
    return last_quarter(curve(result, rate))


def panels(runs: Runs) -> list[Panel]:
    results = judged(runs)
    steps: Sequence[float] = results[0].series["errors"]["step"]
    lines = [Line(name_of(a), steps, [curve(r, a) for r in results]) for a in RATES]
    title = f"|B| = {sizes_of(results[0])[-1]:,}"
    return [Panel(title, "step", KINDS["gramian"], lines, log_y=True)]


def not_settled(runs: Runs) -> str:
    def error(rate: float) -> float:
        return fmean(late(r, rate) for r in judged(runs))

    return gramian_error.still_moves(error, known_rates(runs)[0], RATES[-2])


def known_rates(runs: Runs) -> list[float]:
    """Return the α whose zero start is forgotten at the end, or all if there are none."""
    steps = int(min(r.series["errors"]["step"][-1] for r in judged(runs)))
    return [a for a in RATES if not map_series.too_short_for(a, steps)] or [*RATES]


def slow_is_biased_early(runs: Runs) -> list[float]:
    """Return how much larger the excess of the smallest α is early than twice its excess late."""
    return [
        early(r, RATES[0]) - early(r, RATES[-1]) - 2 * (late(r, RATES[0]) - late(r, RATES[-1]))
        for r in judged(runs)
    ]


def fast_varies_late(runs: Runs) -> list[float]:
    """Compare the largest α with the smaller one that is best on the other seeds."""
    return chosen_elsewhere(
        {
            f"α = {rate:g}": [late(r, RATES[-1]) - late(r, rate) for r in judged(runs)]
            for rate in RATES[:-1]
        }
    )


def slowest_is_best_late(runs: Runs) -> Margins:
    """Compare the smallest α whose zero start is forgotten with each larger one."""
    known = known_rates(runs)
    return {
        f"α = {known[0]:g} over {rate:g}": [late(r, rate) - late(r, known[0]) for r in judged(runs)]
        for rate in known[1:]
    }


CLAIMS = (
    Claim(
        "A lower α introduces a bias, which is mostly visible during the early iterations.",
        "[G2] §4.2",
        "by how much the lowest α errs more than the highest at the first two measures, less twice "
        "that over the last quarter",
        slow_is_biased_early,
    ),
    Claim(
        "A higher α suffers from higher variance, which persists throughout the trajectory.",
        "[G2] §4.2",
        "error of the highest α less that of the best lower one, over the last quarter",
        fast_varies_late,
    ),
    Claim(
        "As training progresses, the errors decay to a lower value for lower α.",
        "[G1] §4.2",
        "error of each higher α less that of the lowest that has forgotten its start from zero, "
        "over the last quarter",
        slowest_is_best_late,
        too_short=not_settled,
    ),
)
EXPERIMENT = Experiment(
    "gramian/averaging-error",
    {"G1": "Figure 3", "G2": "Figure 2b"},
    "Gramian error of SOGram by α",
    "SOGram as printed, from zero and not corrected, on the trajectories of gramian/gramian-error.",
    PRESETS,
    nothing,
    panels,
    CLAIMS,
    runs_of="gramian/gramian-error",
)
