"""The figures of benchmarks as pictures for the documents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cluster_bias import ClusterBias

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(result: ClusterBias, folder: Path) -> Path:
    """Draw a PNG and return its path."""
    path = folder / "cluster-bias.png"
    cluster_bias_figure(result).savefig(path, dpi=120)
    return path


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


def _label(axes: Axes, title: str, horizontal: str, vertical: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
    axes.spines[["top", "right"]].set_visible(False)


def _figure(**settings: Any) -> Figure:
    from matplotlib.figure import Figure

    return Figure(**settings)
