"""Pictures of a diagnosis and of a search of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergram.atomic_files import replacing, replacing_path
from evergram.evaluation.gramian_error import Histograms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_histograms(histograms: Histograms) -> Figure:
    """Draw the histograms of the scores of observed and of random pairs. [G2] Fig. 4."""
    figure, axes = _figure(1)
    _histograms(axes[0], histograms)
    return figure


def write_diagnosis(
    path: Path,
    histograms: Histograms,
    steps: Sequence[int],
    gramian_errors: Mapping[str, Sequence[float]],
    gradient_errors: Mapping[str, Sequence[float]],
) -> Path:
    """Write a PNG of the score histograms and of both errors of each estimator by step.

    Args:
        steps: at which the errors were measured; of none, the histograms are drawn alone.
        gramian_errors, gradient_errors: by estimator, one for each of `steps`.
    Returns: path.
    """
    figure, axes = _figure(3 if steps else 1)
    _histograms(axes[0], histograms)
    for place, (title, errors) in enumerate(
        (("Gramian error", gramian_errors), ("gradient error", gradient_errors)) if steps else (), 1
    ):
        for name, values in errors.items():
            axes[place].plot(steps, values, label=name, linewidth=1)
        axes[place].set(title=title, xlabel="step", yscale="log")
    if steps:
        axes[2].legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight")
    return path


def _figure(plots: int) -> tuple[Figure, list[Axes]]:
    # Without pyplot there is no window and no shared state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * plots, 3.4), layout="constrained")
    return figure, [figure.add_subplot(1, plots, i + 1) for i in range(plots)]


def _histograms(axes: Axes, histograms: Histograms) -> None:
    for name, density in (("observed", histograms.observed), ("random", histograms.random)):
        axes.stairs(density.tolist(), histograms.edges.tolist(), fill=True, alpha=0.5, label=name)
    axes.set(title="scores of pairs", xlabel="score", ylabel="density")
    axes.legend()


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
