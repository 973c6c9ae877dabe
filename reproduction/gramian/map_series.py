"""MAP@10 over time for several trainings: numbers, table and panels shared by experiments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from reproduction.experiment import Line, Panel, Runs, Table
from reproduction.intervals import gain, shown
from reproduction.results import Result

# The relative rise between two measures up to which a training counts as ended.
RISE = 0.05
PARTS = {"training": "MAP@10, training", "validation": "MAP@10, validation"}


def final(result: Result, part: str = "validation") -> float:
    """Return MAP@10 at the end of training, as in the papers' tables."""
    return float(result.series["map"][part][-1])


def trained(result: Result) -> float:
    """Return MAP@10 on training pairs at the end."""
    return final(result, "training")


def tested(result: Result) -> float:
    """Return MAP@10 on all test pairs, for the epoch with the best validation."""
    return float(result.series["map"]["test"]["model"] or 0)


def first(result: Result) -> float:
    """Return MAP@10 on validation at the first evaluation."""
    return float(result.series["map"]["validation"][0])


def share_to_reach(result: Result, value: float) -> float | None:
    """Return the share of the training's CPU seconds after which the validation MAP@10 exceeded a
    value; None if it never did."""
    series = result.series["map"]
    whole = series["cpu_seconds"][-1]
    pairs = zip(series["cpu_seconds"], series["validation"], strict=True)
    return next((seconds / whole for seconds, reached in pairs if reached > value), None)


def panels(runs: Runs, dashed: Sequence[str] = (), *, by: str = "cpu_seconds") -> list[Panel]:
    """Return two panels, training and validation, with a line for each label of the runs.

    Args:
        dashed: labels of baselines.
        by: "cpu_seconds", or "step" for curves that share a horizontal axis exactly.
    """
    horizontal = {"cpu_seconds": "CPU seconds of training", "step": "step"}[by]
    made = []
    for part, title in PARTS.items():
        lines = []
        for label in runs.labels:
            results = runs.of(label)
            if results:
                # Average seconds over seeds; the steps are the same.
                x = [
                    fmean(each)
                    for each in zip(*(r.series["map"][by] for r in results), strict=True)
                ]
                values = [r.series["map"][part] for r in results]
                lines.append(Line(label, x, values, dashed=label in dashed))
        made.append(Panel(part, horizontal, title, lines))
    return made


def table(runs: Runs, baselines: Mapping[str, str] | None = None) -> Table:
    """Return one row per training, its MAP@10 on test pairs; and a row for popularity.

    Args:
        baselines: the baseline label of each label; labels without one have no gain.
    """
    over = baselines or {}
    header = ["", "test", *["gain"] * bool(over)]
    rows = []
    for label in runs.labels:
        row = [label, shown(runs.values(label, tested))]
        if over:
            row.append(percent(gains(runs, label, over[label])) if label in over else "")
        rows.append(row)
    tests = [result.series["map"]["test"].get("popularity") for result in runs.of(runs.labels[0])]
    known = [value for value in tests if value is not None]
    rows.append(["popularity", shown(known), *[""] * bool(over)])
    return Table("MAP@10", header, rows)


def gains(
    runs: Runs, label: str, baseline: str, read: Callable[[Result], float] = tested
) -> list[float]:
    """Return the gain in MAP@10 over a baseline, in %, for each seed; on test pairs by default."""
    return [gain(value, over) for value, over in runs.pairs(label, baseline, read)]


def below_popularity(runs: Runs) -> str:
    """Return why models say nothing about quality: on average, the best one is worse than
    popularity on the test pairs. Return "" otherwise, or if popularity was not measured."""
    known = []
    for label in runs.labels:
        tests = [result.series["map"].get("test", {}) for result in runs.of(label)]
        known.append([(t["model"], t["popularity"]) for t in tests if t.get("popularity")])
    best = max((fmean(model for model, _ in pairs) for pairs in known if pairs), default=None)
    if best is None:
        return ""
    popularity = fmean(value for pairs in known for _, value in pairs)
    if best > popularity:
        return ""
    return f"the best model has a MAP@10 of {best:.3f}, popularity {popularity:.3f}"


def too_short_for(rate: float, steps: int) -> str:
    """Return why this number of steps cannot refute a claim about a low α, or "".

    An average with rate α spans 1/α steps; after five times as many, its zero start has a weight
    below 1 %.
    """
    needed = math.ceil(5 / rate)
    if steps >= needed:
        return ""
    return f"{steps:,} steps, and α = {rate:g} needs {needed:,} to forget its start from zero"


def too_few_steps(rate: float) -> Callable[[Runs], str]:
    """Return `too_short_for` for the shortest training of a preset."""
    return lambda runs: too_short_for(rate, min(r.series["map"]["step"][-1] for r in runs.all))


def still_rising(labels: Sequence[str]) -> Callable[[Runs], str]:
    """Return a function that says why these trainings cannot refute a claim about their end, or
    "": the mean validation MAP@10 of one rises by more than 5 % between the last two measures."""

    def reason(runs: Runs) -> str:
        for label in labels:
            rise = rise_of([result.series["map"]["validation"] for result in runs.of(label)])
            if rise:
                return f"MAP@10 with {label} still rises by {rise:.0f} % at the end"
        return ""

    return reason


def rise_of(series: Sequence[Sequence[float]]) -> float:
    """Return by how many % the mean of several series rises between the last two measures; 0 if by
    at most 5 %."""
    before, last = (fmean(values[-2:][i] for values in series) for i in (0, -1))
    return 100 * (last / before - 1) if last > before * (1 + RISE) else 0.0


def percent(values: Sequence[float]) -> str:
    """Return a mean in percent as text, with sign and interval."""
    if not values:
        return "–"
    text = shown(values, 1)
    return f"{text} %" if text.startswith("-") else f"+{text} %"
