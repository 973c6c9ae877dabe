"""Write the table and figures of a comparison, like Table 3 and Figures 3 to 5 of [BC]."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergram.atomic_files import replace_file
from reproduction.comparison.training_budget import LAST, PLATEAU

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def budget_sentences(results: Mapping[str, Any]) -> list[str]:
    """Return sentences on the share of [BC]'s budget used, and on models that reached a plateau."""
    lengths = [length for models in _models(results).values() for length in models]
    if not lengths:
        return ["How long the models were trained was not recorded."]
    reference = results["reference_budget"]
    passes = _range((length["passes"] for length in lengths), "")
    shares = [
        _range((100 * length[key] for length in lengths), " %")
        for key in ("share_of_passes", "share_of_steps")
    ]
    flat = sum(length["on_plateau"] is True for length in lengths)
    rising = sum(length["on_plateau"] is False for length in lengths)
    return [
        f"A model was trained for {passes} passes over its interactions: {shares[0]} of the "
        f"{reference['epochs']} of [BC]'s code, and {shares[1]} of its steps, which are of "
        f"{reference['batch_size']:,} pairs.",
        f"Over the last fifth of training the selection metric gained less than {PLATEAU:.0%} for "
        f"{flat} of {len(lengths)} models, which end on a plateau; {rising} do not, and of "
        f"{len(lengths) - flat - rising} it is not measured.",
    ]


def budget_table(results: Mapping[str, Any]) -> list[str]:
    """Return a Markdown table, as lines: for each method that trains its own models, the passes,
    and for each version the largest gain over the last fifth, over seeds."""
    versions = range(len(results["times"]))
    lines = [
        f"| gain over the last {LAST:.0%} | passes | {' | '.join(f'M_{k}' for k in versions)} |",
        "|---" + "|---:" * (1 + len(versions)) + "|",
    ]
    for name, models in _models(results).items():
        cells = [_gain([m for m in models if m["version"] == k]) for k in versions]
        passes = _range((model["passes"] for model in models), "")
        lines.append(f"| {name} | {passes} | {' | '.join(cells)} |")
    return lines if len(lines) > 2 else []


def _models(results: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the models trained by each run, for all seeds, by run name."""
    models: dict[str, list[dict[str, Any]]] = {}
    for runs in results["runs"].values():
        for name, run in runs.items():
            for version, length in run["trained"].items():
                models.setdefault(name, []).append({"version": int(version), **length})
    return models


def _gain(models: list[dict[str, Any]]) -> str:
    if not models:
        return ""
    gains = [model["last_gain"] for model in models]
    return "not measured" if None in gains else f"{100 * max(gains):.1f} %"


def _range(values: Iterable[float], unit: str) -> str:
    shown = [f"{value:.2g}" if value < 10 else f"{value:,.0f}" for value in sorted(values)]
    return f"{shown[0]}{unit}" if shown[0] == shown[-1] else f"{shown[0]} to {shown[-1]}{unit}"


HEADER = ("method", "(1) %", "(2) %", "(1)+(2) %", "(3)", "seconds")
PANELS = (
    ("intended", "(1) intended task, % of Keep-All"),
    ("unintended", "(2) unintended tasks, % of Keep-All"),
    ("error", "(3) alignment error"),
)


def table_rows(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows below `HEADER`: means ± deviations over seeds."""
    return [
        [
            row["method"],
            *(_number(row[key]) for key in ("intended", "unintended", "total")),
            _number(row["error"], 3),
            f"{row['seconds']['mean']:.1f}",
        ]
        for row in results["table"]
    ]


def explanation(results: Mapping[str, Any]) -> list[str]:
    """Return sentences that explain the table, the length of training, and the tasks left out."""
    own, seeds = results["keep_all"], len(results["seeds"])
    task = f", ROC-AUC {_number(own['unintended'], 4)}" if own["unintended"] else ""
    return [
        f"{results['name']}, {seeds} {'seed' if seeds == 1 else 'seeds'}, "
        f"{results['protocol']} selection, versions at {_listed(results['times'])}, "
        f"λ = {results['lambda']:g}.",
        f"(1) intended task, {results['metric']}, and (2) consumers of version 0, both in percent "
        f"of Keep-All; (3) mean distance to version 0's embeddings.",
        f"Keep-All itself: {results['metric']} {_number(own['intended'], 4)}{task}.",
        *budget_sentences(results),
        f"Consumer tasks: {_listed(results['tasks']) or 'none'}.",
        *results["left_out"],
    ]


def markdown(results: Mapping[str, Any]) -> str:
    """Return the table, its explanation, and the table of gains at the end of training."""
    lines = [f"| {' | '.join(HEADER)} |", "|---" + "|---:" * (len(HEADER) - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in table_rows(results)]
    return "\n".join([*lines, "", *explanation(results), "", *budget_table(results), ""])


def write_comparison(folder: Path, results: Mapping[str, Any]) -> None:
    """Write `table.md` and the figures: `over-time.png`, `by-task.png` (if a task could be scored)
    and `by-lambda.png` (if there is a sweep). Remove old figures that do not apply.
    """
    replace_file(folder / "table.md", markdown(results).encode())
    figures = {
        "over-time": _over_time(results),
        "by-task": _by_task(results),
        "by-lambda": _by_lambda(results),
    }
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        if figure is None:
            path.unlink(missing_ok=True)
            continue
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=120, bbox_inches="tight")
        replace_file(path, target.getvalue())


def _over_time(results: Mapping[str, Any]) -> Figure:
    # Keep-All is the line at 0.
    names = [name for name in results["over_time"] if name != "keep-all"]
    return _panels(
        {
            key: {name: _timed(results, results["over_time"][name][key]) for name in names}
            for key, _ in PANELS
        },
        "share of interactions seen",
    )


def _by_task(results: Mapping[str, Any]) -> Figure | None:
    """Draw BC-Aligner by task; the last method if BC-Aligner was not run."""
    tasks = results["by_task"]
    name = "bc-aligner" if "bc-aligner" in tasks else list(tasks)[-1]
    if not tasks[name]:
        return None
    figure, (axes,) = _figure(1)
    lines = {task: _timed(results, by_version) for task, by_version in tasks[name].items()}
    _draw(axes, lines, f"{name}: each task, % of Keep-All", "share of interactions seen")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _by_lambda(results: Mapping[str, Any]) -> Figure | None:
    sweep = results["by_lambda"]
    if not sweep:
        return None
    lines = {
        key: {
            name: [(r["lambda"], r[key]) for r in rows if r[key] is not None]
            for name, rows in sweep.items()
        }
        for key, _ in PANELS
    }
    return _panels(lines, "λ", evenly=True)


Points = Sequence[tuple[float, Mapping[str, Any]]]


def _timed(results: Mapping[str, Any], by_version: Mapping[int, Any]) -> Points:
    return [(results["times"][k], value) for k, value in by_version.items()]


def _panels(
    lines: Mapping[str, Mapping[str, Points]], label: str, *, evenly: bool = False
) -> Figure:
    """Draw one panel per metric."""
    figure, panels = _figure(len(PANELS))
    for axes, (key, title) in zip(panels, PANELS, strict=True):
        _draw(axes, lines[key], title, label, evenly=evenly)
    panels[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _draw(
    axes: Axes, lines: Mapping[str, Points], title: str, label: str, *, evenly: bool = False
) -> None:
    """Draw one line per name, with error bars.

    Args:
        evenly: space the values of x evenly.
    """
    values = sorted({x for points in lines.values() for x, _ in points})
    place = {x: float(i) if evenly else x for i, x in enumerate(values)}
    # Methods may have equal numbers; different markers keep hidden lines visible.
    for i, (name, points) in enumerate(lines.items()):
        bars = [value["deviation"] or 0.0 for _, value in points]
        axes.errorbar(
            [place[x] for x, _ in points],
            [value["mean"] for _, value in points],
            yerr=bars if any(bars) else None,
            marker="osD^vPX*"[i % 8],
            markersize=8 - 0.6 * min(i, 8),
            markerfacecolor="none",
            linestyle=("-", "--", "-.", ":")[i % 4],
            linewidth=1.2,
            capsize=2,
            label=name,
        )
    axes.set_xticks(list(place.values()), [f"{x:g}" for x in values])
    axes.set(title=title, xlabel=label)


def _figure(plots: int) -> tuple[Figure, list[Axes]]:
    # Avoid pyplot, which has shared state and may open windows.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * plots, 3.4), layout="constrained")
    panels = [figure.add_subplot(1, plots, i + 1) for i in range(plots)]
    for axes in panels:
        axes.axhline(0, color="grey", linewidth=0.8, linestyle=":")
        axes.grid(alpha=0.3)
    return figure, panels


def _number(value: Mapping[str, Any] | None, digits: int = 2) -> str:
    if value is None or math.isnan(value["mean"]):
        return "–"
    text = f"{value['mean']:.{digits}f}"
    return text if value["deviation"] is None else f"{text} ± {value['deviation']:.{digits}f}"


def _listed(values: Any) -> str:
    return ", ".join(str(v) for v in values)
