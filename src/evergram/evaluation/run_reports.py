"""The pages of `evergram demo`, `diagnose` and `tune`: each one file that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evergram.atomic_files import replace_file
from evergram.evaluation.gramian_error import Histograms
from evergram.evaluation.html_page import (
    Axes,
    Line,
    chart,
    figures,
    page,
    paragraph,
    section,
    table,
)

_DEMO = """\
A classifier was trained once, on version 0's embeddings. Each later version was trained together
with a light transform back to the one before; only the newest embeddings are stored. Through the
chain of transforms the classifier keeps working; given the new embeddings as they are, it does not.
"""
_TESTS = """\
Each version is tested on the interactions that came after its data, so the tests differ: compare a
version's metric with that of the same model trained alone, without a transform, on the same data.
The alignment error is mean ‖z̃₀ − z₀‖ over mean ‖z₀‖, on objects that alignment never saw.
"""


def write_demo(path: Path, versions: Sequence[Mapping[str, Any]], metric: str) -> Path:
    """Write the page of `evergram demo` from one entry a version, `DemoVersion.as_json`, and the
    metric of the intended task."""
    names = [(v["version"], str(v["version"])) for v in versions]
    columns: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
        metric: lambda v: v["metrics"].get("model", {}).get(metric),
        "trained alone": lambda v: v["metrics"].get("alone", {}).get(metric),
        "popularity": lambda v: v["metrics"].get("popularity", {}).get(metric),
        "AUC with chain": lambda v: v["consumer"]["auc_chain"],
        "AUC without": lambda v: v["consumer"]["auc_raw"],
        "alignment error": lambda v: v["drift_relative"],
    }

    def panel(title: str, shown: Sequence[str]) -> str:
        lines = []
        for name in shown:
            values = [(v["version"], columns[name](v)) for v in versions]
            lines.append(Line(name, [(x, y) for x, y in values if y is not None]))
        axes = Axes(title, f"{title} by version", "version", from_zero=True, names=names)
        return chart(axes, lines)

    rows = []
    for v in versions:
        cells = [of(v) for of in columns.values()]
        shown = ["–" if cell is None else f"{cell:.4f}" for cell in cells]
        rows.append([str(v["version"]), str(v["dim"]), *shown])
    task, consumer, error = list(columns)[:3], list(columns)[3:5], list(columns)[5:]
    body = [
        paragraph(_DEMO),
        figures(
            panel(f"Intended task: {metric}", task),
            panel("Version-0 consumer: ROC-AUC, 0.5 by chance", consumer),
            panel("Alignment error to version 0", error),
        ),
        table("By version", ["version", "dim", *columns], rows),
        paragraph(_TESTS),
    ]
    return _written(path, f"One consumer, {len(versions)} versions", body)


def histogram_figure(scores: Histograms) -> str:
    """Return the histograms of observed and of random pairs. [G2] Fig. 4."""
    edges = scores.edges.tolist()
    lines = []
    for name, density in (("observed pairs", scores.observed), ("random pairs", scores.random)):
        bins = zip(edges[:-1], density.tolist(), strict=True)
        lines.append(Line(name, [(edges[0], 0.0), *bins, (edges[-1], 0.0)], "steps"))
    means = f"{scores.means[0]:.4f} on average for observed pairs, {scores.means[1]:.4f} for random"
    sentence = (
        f"The score is {means}; an observed one is the higher one {scores.separation:.1%} of the "
        "time."
    )
    axes = Axes("Density of scores", f"Histograms of scores: {means}", "score", from_zero=True)
    return paragraph(sentence) + figures(chart(axes, lines))


def write_diagnosis(
    path: Path,
    histograms: Histograms,
    steps: Sequence[int],
    gramian_errors: Mapping[str, Sequence[float]],
    gradient_errors: Mapping[str, Sequence[float]],
) -> Path:
    """Write the score histograms and both errors of each estimator by step; of no steps, the
    histograms alone."""
    body = [section("Scores of pairs", histogram_figure(histograms))]
    if steps:
        charts = [
            chart(
                Axes(title, f"{title} of each estimator by step", "step", logarithmic=True),
                [Line(name, list(zip(steps, of, strict=True))) for name, of in errors.items()],
            )
            for title, errors in (
                ("Gramian error", gramian_errors),
                ("Gradient error", gradient_errors),
            )
        ]
        body.append(section("Errors of estimators", figures(*charts)))
    return _written(path, "Diagnosis", body)


_STATES = ("finished", "pruned")
_LOG_RANGE = 50


def write_tuning(path: Path, trials: Sequence[Mapping[str, Any]], metric: str) -> Path:
    """Write the value of each trial (`number`, `values`, `state`, `value`) by its number and by
    each key; failed ones are not shown."""
    drawn = sorted((t for t in trials if t["state"] in _STATES), key=lambda t: t["number"])
    charts = []
    for key in ["trial", *(drawn[0]["values"] if drawn else ())]:
        values = [t["number"] if key == "trial" else t["values"][key] for t in drawn]
        places, names = _places(values)
        points = [(place, t["value"], t["state"]) for place, t in zip(places, drawn, strict=True)]
        lines = [Line(s, [(x, y) for x, y, of in points if of == s], "dots") for s in _STATES]
        charts.append(chart(Axes(key, f"{metric} of each trial by {key}", key, names=names), lines))
    return _written(path, f"{metric} of {len(drawn)} trials", [figures(*charts)])


def _places(values: Sequence[Any]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return a place for each value, and the names of places: those of numbers over a wide range
    are logarithms, and what is not a number has its rank."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        texts = sorted({str(value) for value in values})
        names = [(float(place), text) for place, text in enumerate(texts)]
        return [float(texts.index(str(value))) for value in values], names
    if values and min(values) > 0 and max(values) > _LOG_RANGE * min(values):
        ends = min(values), math.sqrt(min(values) * max(values)), max(values)
        names = [(math.log10(end), f"{end:.2g}") for end in ends]
        return [math.log10(value) for value in values], names
    return [float(value) for value in values], []


def _written(path: Path, title: str, body: Sequence[str]) -> Path:
    replace_file(path, page(title, body).encode())
    return path
