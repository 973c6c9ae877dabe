"""The figures of benchmarks as pictures for the documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cluster_bias import ClusterBias
from benchmarks.crossover import Crossover
from benchmarks.errors import Errors
from benchmarks.growth import Growth
from benchmarks.quality import Quality

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The errors' picture shows one batch size, and of each estimator the settings worth comparing.
BATCH = 1024
SHOWN = {
    "sampled, uniform": "#999999",
    "SOGram 0.05": "#9ecae1",
    "SOGram auto": "#2171b5",
    "storm 0.1": "#fdae6b",
    "storm auto": "#d94801",
    "SAGram 1/n": "#238b45",
    "SAGram 1": "#a1d99b",
}
TITLES = {"factorization": "Factorization", "two_tower": "Two towers"}

Result = ClusterBias | Growth | Crossover | Quality | list[Errors]


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """Draw one PNG for each result and return their paths."""
    paths = []
    for result in results:
        if isinstance(result, Growth):
            name, figure = "growth", growth_figure(result)
        elif isinstance(result, ClusterBias):
            name, figure = "cluster-bias", cluster_bias_figure(result)
        elif isinstance(result, Crossover):
            name, figure = "crossover", crossover_figure(result)
        elif isinstance(result, Quality):
            name, figure = f"quality-{result.name}", quality_figure(result)
        else:
            name, figure = "errors", errors_figure(result)
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=120)
    return paths


def errors_figure(measured: Sequence[Errors]) -> Figure:
    """Draw the Gramian's error step by step, one panel for each encoder."""
    chosen = [e for e in measured if e.batch == BATCH]
    figure = _figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    for panel, result in zip(panels, chosen, strict=True):
        for name, colour in SHOWN.items():
            panel.plot(result.steps, result.gramian[name], label=name, color=colour)
        panel.set_yscale("log")
        _label(panel, TITLES[result.encoder], "step", "")
    panels[0].set_ylabel(f"‖Ĝ − G‖ / ‖G‖, |B| = {BATCH}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    return figure


def quality_figure(measured: Quality) -> Figure:
    """Draw Recall@20 on the selection pairs by seconds of training; a library is one point."""
    figure = _figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in measured.rows:
        if row.curve:
            seconds, values = zip(*row.curve, strict=True)
            one = len(row.curve) == 1
            axes.plot(
                seconds, values, marker="x" if one else ".", linestyle="" if one else "-",
                label=row.method,
            )  # fmt: skip
    axes.set_xscale("log")
    _label(axes, "On pairs that choose the epoch", "seconds of training", "Recall@20")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    return figure


def growth_figure(measured: Growth) -> Figure:
    """Draw milliseconds of the estimator's part of a step by the number of entities."""
    figure = _figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in measured.milliseconds.items():
        axes.plot(measured.sizes, values, marker="o", label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    _label(axes, "The estimator's part of a step", "entities a side", "milliseconds")
    axes.legend(frameon=False)
    return figure


def cluster_bias_figure(measured: ClusterBias) -> Figure:
    """Draw bias (lines) and deviation (dots) of each side's gradient by K, a panel for each D."""
    figure = _figure(figsize=(9, 4), layout="constrained")
    dims = list(dict.fromkeys(cell.dim for cell in measured.cells))
    panels = figure.subplots(1, len(dims), sharey=True, squeeze=False)[0]
    for panel, dim in zip(panels, dims, strict=True):
        for side in dict.fromkeys(cell.side for cell in measured.cells):
            cells = [c for c in measured.cells if (c.dim, c.side) == (dim, side)]
            numbers = [cell.clusters for cell in cells]
            line = panel.plot(numbers, [c.bias for c in cells], marker="o", label=side)[0]
            deviations = [cell.deviation for cell in cells]
            panel.plot(numbers, deviations, linestyle=":", color=line.get_color())
        panel.set_xscale("log", base=2)
        _label(panel, f"D = {dim} (dotted: deviation)", "clusters", "")
    panels[0].set_ylabel("of the exact gradient's norm")
    panels[0].set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    return figure


def crossover_figure(measured: Crossover) -> Figure:
    """Draw the time of the pair form over that of the Gramian form, by batch size."""
    figure = _figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for dim, ratios in measured.ratios.items():
        line = axes.plot(list(ratios), list(ratios.values()), marker="o", label=f"D = {dim}")[0]
        axes.axvline(dim, color=line.get_color(), linestyle=":", linewidth=1)
    axes.axhline(1, color="#999999", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    _label(axes, "Pairs over Gramian (dotted: batch = D)", "batch size", "time, pairs / Gramian")
    axes.legend(frameon=False)
    return figure


def _label(axes: Axes, title: str, horizontal: str, vertical: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(**settings: Any) -> Figure:
    from matplotlib.figure import Figure

    return Figure(**settings)
