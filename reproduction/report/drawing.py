"""Figures as SVG: our methods solid, baselines and the papers' figures dashed, bands over seeds."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from reproduction.experiment import Line, Panel
from reproduction.intervals import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which are distinguishable with colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
PANEL = (4.2, 3.0)
ACROSS = 3


def draw(panels: Sequence[Panel]) -> str:
    """Return one SVG with a diagram per panel, or "" without panels.

    Lines with the same label have the same colour in all panels. The output is deterministic.
    """
    if not panels:
        return ""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    with mpl.rc_context({"svg.hashsalt": "evergram", "svg.fonttype": "none", "font.size": 9}):
        size = (PANEL[0] * across, PANEL[1] * down + 0.2 * len(labels) / across + 0.3)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).flat
        for place, panel in zip(axes, panels, strict=False):
            _draw_panel(place, panel, colours)
        for place in list(axes)[len(panels) :]:
            place.set_visible(False)
        handles = {
            str(h.get_label()): h for a in figure.axes for h in a.get_legend_handles_labels()[0]
        }
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=across + 1,
            frameon=False,
        )
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    # Shorten the file: every text lists ten fonts, and paths have six decimals.
    text = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", text)
    return re.sub(r' d="[^"]*"', _shortened, text)


def _shortened(path: re.Match[str]) -> str:
    """Round a path to a tenth of a point."""
    return re.sub(r"(\d\.\d)\d+", r"\1", path[0])


def fingerprint(panels: Sequence[Panel]) -> str:
    """Return a hash of everything that `draw` draws, independent of the matplotlib version."""
    values = [
        [p.title, p.horizontal, p.vertical, p.log_x, p.log_y]
        + [[x.label, list(x.x), [list(v) for v in x.values], x.dashed, x.steps] for x in p.lines]
        for p in panels
    ]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _draw_panel(axes: Axes, panel: Panel, colours: dict[str, str]) -> None:
    for line in panel.lines:
        _draw_line(axes, line, colours[line.label])
    axes.set_title(panel.title)
    axes.set_xlabel(panel.horizontal)
    axes.set_ylabel(panel.vertical)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_line(axes: Axes, line: Line, colour: str) -> None:
    points = [list(values) for values in zip(*line.values, strict=True)]
    means = [fmean(values) for values in points]
    style: dict[str, Any] = {
        "color": colour,
        "linestyle": "--" if line.dashed else "-",
        "linewidth": 1.3,
    }
    if line.steps:
        axes.stairs(means, list(line.x), label=line.label, **style)
        return
    marker = "." if len(means) <= 12 else ""
    axes.plot(list(line.x), means, label=line.label, marker=marker, **style)
    bounds = [interval(values) for values in points]
    if all(b is not None for b in bounds):
        low, high = zip(*(b for b in bounds if b is not None), strict=True)
        axes.fill_between(list(line.x), low, high, color=colour, alpha=0.15, linewidth=0)
