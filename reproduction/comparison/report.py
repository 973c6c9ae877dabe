"""Write the table and figures of a comparison, like Table 3 and Figures 3 to 5 of [BC]."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evergram.atomic_files import replace_file
from reproduction.comparison.training_budget import PLATEAU
from reproduction.experiment import Line, Panel
from reproduction.report.drawing import draw


def budget_sentences(results: Mapping[str, Any]) -> list[str]:
    """Return sentences on the share of [BC]'s budget used, and on models that reached a plateau."""
    runs = (run for seed in results["runs"].values() for run in seed.values())
    lengths = [length for run in runs for length in run["trained"].values()]
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
    rows = []
    for row in results["table"]:
        changes = (_number(row[key]) for key in ("intended", "unintended", "total"))
        seconds = f"{row['seconds']['mean']:.1f}"
        rows.append([row["method"], *changes, _number(row["error"], 3), seconds])
    return rows


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
    """Return the table and its explanation."""
    lines = [f"| {' | '.join(HEADER)} |", "|---" + "|---:" * (len(HEADER) - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in table_rows(results)]
    return "\n".join([*lines, "", *explanation(results), ""])


def write_comparison(folder: Path, results: Mapping[str, Any]) -> None:
    """Write `table.md` and the figures: `over-time.svg`, `by-task.svg` (if a task could be scored)
    and `by-lambda.svg` (if there is a sweep). Remove old figures that do not apply.
    """
    replace_file(folder / "table.md", markdown(results).encode())
    for name, panels in figures(results).items():
        path = folder / f"{name}.svg"
        if panels:
            replace_file(path, draw(panels).encode())
        else:
            path.unlink(missing_ok=True)


def figures(results: Mapping[str, Any]) -> dict[str, list[Panel]]:
    """Return the diagrams of each figure; `by-task` is of BC-Aligner, or of the last method."""
    times, tasks, sweep = results["times"], results["by_task"], results["by_lambda"]
    method = "bc-aligner" if "bc-aligner" in tasks else list(tasks)[-1]

    def over_time(title: str, lines: Mapping[str, Mapping[int, Any]]) -> list[Panel]:
        points = {name: {times[k]: v for k, v in by.items()} for name, by in lines.items()}
        return _panels(title, "share of interactions seen", points)

    def over_lambda(title: str, key: str) -> list[Panel]:
        points = {
            name: {row["lambda"]: row[key] for row in rows if row[key] is not None}
            for name, rows in sweep.items()
        }
        return _panels(title, "λ", points)

    versions = {key: {n: by[key] for n, by in results["over_time"].items()} for key, _ in PANELS}
    return {
        "over-time": [p for key, title in PANELS for p in over_time(title, versions[key])],
        "by-task": over_time(f"{method}: each task, % of Keep-All", tasks[method]),
        "by-lambda": [p for key, title in PANELS for p in over_lambda(title, key)],
    }


def _panels(title: str, horizontal: str, lines: Mapping[str, Mapping[float, Any]]) -> list[Panel]:
    """Return a diagram with a line for each name, or none without points."""
    drawn = [
        Line(name, list(points), list(zip(*(v["each"] for v in points.values()), strict=True)))
        for name, points in lines.items()
        if points
    ]
    return [Panel(title, horizontal, "", drawn)] if drawn else []


def _number(value: Mapping[str, Any] | None, digits: int = 2) -> str:
    if value is None or math.isnan(value["mean"]):
        return "–"
    text = f"{value['mean']:.{digits}f}"
    return text if value["deviation"] is None else f"{text} ± {value['deviation']:.{digits}f}"


def _listed(values: Any) -> str:
    return ", ".join(str(v) for v in values)
