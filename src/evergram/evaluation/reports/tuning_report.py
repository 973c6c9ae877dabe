"""Draw the trials of a search: one SVG file that loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evergram.atomic_files import replacing_path

_MARKS = {"finished": "o", "pruned": "x"}
_LOG_RANGE = 50


def write_tuning(path: Path, trials: Sequence[Mapping[str, Any]], metric: str) -> Path:
    """Draw the value of each trial by its number and by each key.

    Args:
        path: of the SVG file.
        trials: each `number`, `values`, `state` and `value`; failed ones are not drawn.
        metric: the name of the value.
    Returns: path.
    """
    # Without pyplot there is no display and no global state.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = sorted((t for t in trials if t["state"] in _MARKS), key=lambda t: t["number"])
    keys = list(drawn[0]["values"]) if drawn else []
    with rc_context({"svg.hashsalt": "evergram", "font.size": 10}):
        figure = Figure(figsize=(4 * (1 + len(keys)), 3.6), layout="constrained")
        axes = figure.subplots(1, 1 + len(keys), squeeze=False)[0]
        for at, name in zip(axes, ["trial", *keys], strict=True):
            for state, mark in _MARKS.items():
                of_state = [t for t in drawn if t["state"] == state]
                places = [_place(t, name) for t in of_state]
                at.plot(places, [t["value"] for t in of_state], mark, label=state)
            _scale(at, [_place(t, name) for t in drawn])
            at.set_xlabel(name)
            at.set_ylabel(metric)
            at.grid(alpha=0.3)
        axes[0].legend()
        with replacing_path(path) as part:
            figure.savefig(part, format="svg", metadata={"Date": None})
    return path


def _place(trial: Mapping[str, Any], name: str) -> Any:
    return trial["number"] if name == "trial" else trial["values"][name]


def _scale(axes: Any, places: Sequence[Any]) -> None:
    """Show numbers over a wide range by their logarithm."""
    numbers = [place for place in places if not isinstance(place, str)]
    if numbers and min(numbers) > 0 and max(numbers) > _LOG_RANGE * min(numbers):
        axes.set_xscale("log")
