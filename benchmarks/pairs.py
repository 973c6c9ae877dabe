"""Compare the benchmarks of two checkouts, run alternately on one machine.

The order is old, new, new, old, …, so that slow periods affect both. Each figure is shown with its
lowest and highest value for each checkout; if the ranges do not overlap, the change exceeds noise.

    git worktree add BEFORE COMMIT     # and an environment in BEFORE/.venv
    python -m benchmarks.pairs BEFORE steps serving-fetch --repeats 3
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks import ROOT
from benchmarks.records import figures_of

Cell = tuple[str, str]  # row and column of a table


def run(checkout: Path, section: str, *, tiny: bool = False) -> dict[Cell, float]:
    """Run one section in the checkout and return its figures."""
    own = checkout / ".venv" / "bin" / "python"
    python = str(own) if own.is_file() else sys.executable
    environment = {**os.environ, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout}"}
    command = [python, "-m", "benchmarks", section, *(["--tiny"] if tiny else [])]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{section} failed in {checkout}:\n{done.stderr[-2000:]}")
    return figures_of(done.stdout)


def pairs(
    old: Path, new: Path, section: str, repeats: int, *, tiny: bool = False
) -> dict[Cell, tuple[list[float], list[float]]]:
    """Return the figures that both checkouts print, from `repeats` runs each."""
    runs: dict[Path, list[dict[Cell, float]]] = {old: [], new: []}
    for repeat in range(repeats):
        for checkout in (old, new) if repeat % 2 == 0 else (new, old):
            print(f"{section}: {checkout.name}, run {repeat + 1}", file=sys.stderr, flush=True)
            runs[checkout].append(run(checkout, section, tiny=tiny))
    common = [c for c in runs[new][0] if all(c in r for side in runs.values() for r in side)]
    return {c: ([r[c] for r in runs[old]], [r[c] for r in runs[new]]) for c in common}


def table(section: str, compared: dict[Cell, tuple[list[float], list[float]]]) -> str:
    lines = [f"| {section} | figure | before | now | now / before | |", "|" + "---|" * 6]
    for (row, column), (before, now) in compared.items():
        apart = min(now) > max(before) or max(now) < min(before)
        ratio = f"{median(now) / median(before):.2f}" if median(before) else "–"
        changed = "changed" if apart else ""
        lines.append(f"| {row} | {column} | {_span(before)} | {_span(now)} | {ratio} | {changed} |")
    return "\n".join(lines)


def _span(values: Sequence[float]) -> str:
    return f"{median(values):g} ({min(values):g}–{max(values):g})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=__doc__)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("sections", nargs="+", metavar="SECTION")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="the sections' tiny presets")
    chosen = parser.parse_args()
    for section in chosen.sections:
        compared = pairs(chosen.before, ROOT, section, chosen.repeats, tiny=chosen.tiny)
        if not compared:
            sys.exit(f"{section}: the checkouts have no figure in common.")
        print(f"\n{table(section, compared)}", flush=True)


if __name__ == "__main__":
    main()
