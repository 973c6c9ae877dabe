"""Figures of a version: how its training went, its scores, its spectrum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evergram.evaluation.gramian_error import Histograms
from evergram.evaluation.reports.html_page import (
    NONE,
    Axes,
    Line,
    chart,
    not_measured,
    paragraph,
    table,
)
from evergram.evaluation.reports.version_facts import Spectrum

_ENDED = {
    "patience": "the metric no longer improved (training.patience)",
    "epochs": "all epochs ran (training.epochs)",
    "budget": "its time was over (training.budget)",
    "minutes": "its time was over (--minutes)",
}


def number(value: float | None, error: float | None = None) -> str:
    """Return a measure's text, with ± its standard error if it has one."""
    if value is None or math.isnan(value):
        return NONE
    known = error is not None and math.isfinite(error)
    return f"{value:.4f} ± {error:.4f}" if known else f"{value:.4f}"


def training_figures(metrics: Mapping[str, Any], metric: str) -> str:
    """Return the curves of the objective and of the selection metric, and what ended training."""
    training = metrics.get("training", {})
    history = training.get("history")
    if not history:
        return not_measured("The curve", "This model was not trained here.")
    chosen = training["best_epoch"]
    figures = []
    for key, title in (("objective", "Objective"), (metric, f"{metric} on the selection pairs")):
        points = [(e["epoch"], e[key]) for e in history if e.get(key) is not None]
        ends = (
            "no point"
            if not points
            else f"{points[0][1]:.4g} at first, {points[-1][1]:.4g} at last"
        )
        axes = Axes(
            title,
            f"{title} by epoch: {ends}; chosen epoch {chosen}",
            "epoch",
            (chosen, f"chosen: {chosen}"),
        )
        figures.append(chart(axes, [Line(title, points)]))
    refit = training.get("refit")
    again = (
        f" Then it was trained once more, on all {refit['interactions']:,} rows that are not test, "
        f"for {refit['steps']:,} steps."
        if refit
        else ""
    )
    sentence = (
        f"Epoch {chosen} of {training['epochs']} was chosen; training ended because "
        f"{_ENDED.get(training['ended'], training['ended'])}, after {training['seconds']:.1f} "
        f"seconds without evaluation.{again}"
    )
    return paragraph(sentence) + f'<div class="figures">{"".join(figures)}</div>'


def histogram_figure(scores: Histograms) -> str:
    """Return the histograms of observed and of random pairs. [G2] Fig. 4."""
    edges = scores.edges.tolist()
    lines = []
    for name, density in (("observed pairs", scores.observed), ("random pairs", scores.random)):
        bins = zip(edges[:-1], density.tolist(), strict=True)
        lines.append(Line(name, [(edges[0], 0.0), *bins, (edges[-1], 0.0)], steps=True))
    means = f"{scores.means[0]:.4f} on average for observed pairs, {scores.means[1]:.4f} for random"
    sentence = (
        f"The score is {means}; an observed one is the higher one {scores.separation:.1%} of the "
        "time."
    )
    alt = f"Histograms of scores: {means}"
    axes = Axes("Density of scores", alt, "score", from_zero=True)
    return paragraph(sentence) + f'<div class="figures">{chart(axes, lines)}</div>'


def spectrum_figure(spectra: Mapping[str, Spectrum]) -> str:
    """Return the shares of the eigenvalues of both sides, and their effective ranks."""
    rows = [
        [
            side,
            f"{s.entities:,}",
            str(len(s.shares)),
            f"{s.effective_rank:.2f}",
            f"{s.shares[0]:.1%}",
        ]
        for side, s in spectra.items()
    ]
    header = ["side", "embeddings", "dims", "effective rank", "largest share"]
    lines = [Line(side, list(enumerate(s.shares, 1))) for side, s in spectra.items()]
    ranks = ", ".join(
        f"{s.effective_rank:.2f} of {len(s.shares)} ({side})" for side, s in spectra.items()
    )
    axes = Axes(
        "Share of each eigenvalue",
        f"Shares of eigenvalues, largest first; effective rank {ranks}",
        "eigenvalue, the largest first",
        logarithmic=True,
    )
    figure = f'<div class="figures">{chart(axes, lines)}</div>'
    note = paragraph(
        "Of the second moment of each side under its measure. The effective rank is the number of "
        "equal eigenvalues with the same entropy.",
        "dim",
    )
    return table("Spectrum", header, rows) + note + figure
