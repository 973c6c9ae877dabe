"""Gramian error of SOGram by α. [G1] Fig. 3; [G2] Fig. 2b."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from reproduction.claims import Claim, Margins, chosen_elsewhere
from reproduction.experiment import Experiment, Line, Panel, Runs, nothing
from reproduction.gramian import map_series
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


def too_few_steps(runs: Runs) -> str:
    """Return why a trajectory is too short for the smallest α, or ""."""
    steps = min(r.series["errors"]["step"][-1] for r in judged(runs))
    return map_series.too_short_for(RATES[0], steps)


def slow_is_biased_early(runs: Runs) -> list[float]:
    return [early(r, RATES[0]) - early(r, RATES[-1]) for r in judged(runs)]


def fast_varies_late(runs: Runs) -> list[float]:
    """Compare the largest α with the smaller one that is best on the other seeds."""
    return chosen_elsewhere(
        {
            f"α = {rate:g}": [late(r, RATES[-1]) - late(r, rate) for r in judged(runs)]
            for rate in RATES[:-1]
        }
    )


def slowest_is_best_late(runs: Runs) -> Margins:
    slowest = RATES[0]
    return {
        f"α = {rate:g}": [late(r, rate) - late(r, slowest) for r in judged(runs)]
        for rate in RATES[1:]
    }


CLAIMS = (
    Claim(
        "A lower α introduces a bias, which is mostly visible during the early iterations.",
        "[G2] §4.2",
        "error of the lowest α less that of the highest, at the first two measures",
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
        "error of each other α less that of the lowest, over the last quarter",
        slowest_is_best_late,
        too_short=too_few_steps,
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
