"""The page's picture, as SVG: predictions next to measurements."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.instrument.figures import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's, which readers with any colour vision can tell apart; shapes differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#777777"


def predictions(pairs: Sequence[tuple[Figure, Figure]], unit: str, margin: float) -> str:
    """Return the picture of predicted over measured values, both axes logarithmic.

    Args:
        pairs: of each size, measured and predicted.
        unit: of both axes.
        margin: the share by which the dotted lines are apart from equality.
    """

    def draw(axes: Axes) -> None:
        for i, (measured, predicted) in enumerate(pairs):
            style: dict[str, Any] = {
                "color": COLOURS[i % len(COLOURS)],
                "marker": MARKS[i % len(MARKS)],
            }
            axes.plot(
                [measured.middle], [predicted.middle], linestyle="", label=measured.row, **style
            )
        values = [f.middle for pair in pairs for f in pair]
        ends = [min(values) / 1.5, max(values) * 1.5]
        for factor, style_ in ((1.0, "-"), (1 - margin, ":"), (1 + margin, ":")):
            axes.plot(ends, [e * factor for e in ends], style_, color=GREY, linewidth=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"measured, {unit}")
        axes.set_ylabel(f"predicted, {unit}")

    return _svg(draw, (7.0, 3.6 + 0.1 * len(pairs)))


def fingerprint(figures: Sequence[Figure]) -> str:
    """Return a hash of what is drawn, which is the same with every matplotlib."""
    text = json.dumps([figure.plain() for figure in figures])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _svg(draw: Callable[[Axes], None], size: tuple[float, float]) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    with mpl.rc_context({"svg.hashsalt": "evergram", "svg.fonttype": "none", "font.size": 9}):
        drawing = Drawing(figsize=size, layout="constrained")
        axes = drawing.subplots()
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        file = io.StringIO()
        drawing.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", text)
