"""docs/internet-scale.md: what 10⁹ entities and 10¹¹ pairs take, by the rates of a kept run.

python -m benchmarks.instrument.scale_page
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import ROOT
from benchmarks.instrument.figures import Figure
from benchmarks.instrument.runs import KEPT, Run, kept, last_of_each
from benchmarks.scale_model import (
    Cluster,
    Size,
    StepRates,
    fewest_machines,
    gathered_batch,
    memory,
    plan,
)
from evergram.atomic_files import replace_file
from evergram.errors import DataError

SECTION = "scale-model"
GOAL = Size(10**9, 10**11, 128, 8192)
TIMES = (1, 4, 16)  # the fewest machines that hold the tables, and more
HEAD = """# Internet scale, on paper

What would one epoch of a matrix factorization with the all-pairs penalty take on 10⁹ entities
(both sides together), D = 128, 10¹¹ pairs? Nothing of this size was run. A
[model](../benchmarks/scale_model.py) adds up what a step reads, moves and multiplies, at rates
that `python -m benchmarks scale-model` measures, and is checked against runs that fit one
machine."""
LIMITS = """\
The model leaves out caches that processes share, stragglers, reading pairs from disk (16 bytes a
pair, in order) and evaluation; nothing in a step overlaps. It divides tables by rows
among the processes, which Evergram does not; [many processes](many-processes.md) has what
runs today."""


def page(run: Run) -> str:
    """Return the page of a run that has the section."""
    figures = run.sections[SECTION].figures
    by_row = {row: {f.column: f for f in figures if f.row == row} for row in _rows(figures)}
    note = f"\n\n**{run.busy_note(SECTION)}**" if run.is_busy(SECTION) else ""
    source, rates = _rates(by_row)
    parts = [
        HEAD + note,
        "## Bytes",
        _bytes(GOAL),
        "## Machines, bytes exchanged, hours",
        _assumed(source),
        _plans(rates),
        LIMITS,
        "## The model against runs",
        _checks(by_row),
    ]
    return "\n\n".join(parts) + "\n"


def write_page(folder: Path = ROOT / "docs", results: Path = KEPT) -> Path:
    """Write the page of the last kept run. Raises: DataError: no kept run has the section."""
    run = last_of_each(kept(results)).get(SECTION)
    if run is None:
        raise DataError(f"{results} has no run; python -m benchmarks {SECTION} --keep writes one.")
    replace_file(folder / "internet-scale.md", page(run).encode())
    return folder / "internet-scale.md"


def _rows(figures: Sequence[Figure]) -> list[str]:
    return list(dict.fromkeys(f.row for f in figures))


def _rates(by_row: Mapping[str, Mapping[str, Figure]]) -> tuple[str, StepRates]:
    """Return the rates of the largest table of the goal's dim, or of the largest of all."""
    of_dim = [row for row in by_row if f"D = {GOAL.dim}," in row] or list(by_row)
    name = max(of_dim, key=lambda row: by_row[row]["resident, predicted"].middle)
    fields = StepRates.__dataclass_fields__
    return name, StepRates(*(by_row[name][f"rate: {field}"].middle for field in fields))


def _bytes(size: Size) -> str:
    lines = ["| of | GB |", "|---|---|"]
    lines += [f"| {name} | {value / 1e9:,.4g} |" for name, value in memory(size).items()]
    lines.append(f"| all but pairs and order | {_held(size) / 1e9:,.4g} |")
    return "\n".join(lines)


def _held(size: Size) -> int:
    return sum(v for k, v in memory(size).items() if k not in ("pairs", "order of an epoch"))


def _assumed(source: str) -> str:
    c = Cluster()
    return (
        f"Assumed of a machine, not measured: {c.memory / 2**30:.0f} GiB for tables, {c.processes} "
        f"processes on a core each, {c.bandwidth / 1e9:.0f} GB a second of memory that they share, "
        f"and a network of {c.network * 8 / 1e9:.0f} Gbit a second. A process has a batch of "
        f"{GOAL.batch:,} pairs and the rates that were measured for {source}."
    )


def _plans(rates: StepRates) -> str:
    least = fewest_machines(GOAL, Cluster())
    lines = [
        "| machines | processes | ms a step: processor | memory | network | hours an epoch | MB a "
        "process sends a step: rows, gradients, ids | of Gramians | MB if all embeddings of the "
        "batch were gathered |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for machines in (least * times for times in TIMES):
        made = plan(GOAL, rates, machines)
        rows = sum(v for k, v in made.exchanged.items() if k != "Gramians")
        cells = [
            *(f"{1e3 * value:,.1f}" for value in made.step.values()),
            *(f"{made.hours:,.1f}", f"{rows / 1e6:.1f}", f"{made.exchanged['Gramians'] / 1e6:.2f}"),
            f"{gathered_batch(GOAL, made.processes) / 1e6:,.0f}",
        ]
        lines.append(f"| {machines} | {made.processes:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _checks(by_row: Mapping[str, Mapping[str, Figure]]) -> str:
    lines = [
        "| run | ms a step, measured | predicted | predicted / measured | MB, measured | predicted "
        "| predicted / measured | within 20 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, columns in by_row.items():
        ratios = [
            columns[f"{what}, predicted over measured"].middle for what in ("seconds", "bytes")
        ]
        resident = [columns[f"resident, {what}"].middle / 1e6 for what in ("measured", "predicted")]
        cells = [
            *(f"{columns[what].middle:.2f}" for what in ("measured", "predicted")),
            *(f"{ratios[0]:.2f}", *(f"{value:,.0f}" for value in resident), f"{ratios[1]:.2f}"),
            " and ".join(
                what
                for what, ratio in zip(("seconds", "bytes"), ratios, strict=True)
                if abs(ratio - 1) <= 0.2
            )
            or "neither",
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        print(write_page())
    except DataError as error:
        sys.exit(f"Error: {error}")
