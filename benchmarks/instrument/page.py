"""docs/benchmarks.md and docs/internet-scale.md, made of the kept runs by one command.

python -m benchmarks.instrument.page
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ROOT
from benchmarks.instrument import plots, scale_page
from benchmarks.instrument.compare import busy_note, shown
from benchmarks.instrument.figures import Figure
from benchmarks.instrument.runs import KEPT, Run, kept, last_of_each
from evergram.atomic_files import replace_file
from evergram.errors import DataError

HEAD = """# Benchmarks

`make bench` measures, prints, and writes one JSON a run with the machine, its load, versions
and the commit. `python -m benchmarks --list` lists the sections, and names choose some of them;
`--repeats 3` measures a spread; `--keep` writes into
[benchmarks/results](../benchmarks/results) and `--out` elsewhere; `--compare last` or
`--compare FILE` lays ratios beside those of a kept run and marks what moved by more than either
run varies. Times are not compared, for they do not carry over to another machine.

`python -m benchmarks.instrument.page` makes this page, its pictures and [Internet
scale](internet-scale.md) of the last kept run of each section, never by hand. A cell has the
median of the measurements, and in brackets the lowest and the highest."""
# Of a section's picture: the columns that are drawn, and a line across.
DRAWN = {
    "training-rate": (("loop over bare step", "loop over bare step, processor time"), 0.85),
    "scale-model": (("seconds, predicted over measured", "bytes, predicted over measured"), 1.0),
}
HIDDEN = ("rate: ", "part: ")  # they are on the page of internet scale


def pages(runs: Sequence[Run]) -> dict[str, str]:
    """Return the files of docs/ that kept runs make, by name."""
    files: dict[str, str] = {}
    parts = [HEAD]
    for name, run in last_of_each(runs).items():
        figures = [f for f in run.sections[name].figures if not f.column.startswith(HIDDEN)]
        parts += [f"## {name}", _origin(run, name)]
        if name in DRAWN:
            columns, line = DRAWN[name]
            drawn = [f for f in figures if f.column in columns]
            files[f"benchmarks/{name}.svg"] = plots.ratios(drawn, line)
            mark = plots.fingerprint(drawn)
            parts.append(f"![{name}](benchmarks/{name}.svg)<!-- {mark} -->")
        parts.append(_table(figures))
    files["benchmarks.md"] = "\n\n".join(parts) + "\n"
    return files | scale_page.pages(runs)


def write_pages(folder: Path = ROOT / "docs", results: Path = KEPT) -> list[Path]:
    """Write the pages and pictures of the kept runs. Raises: DataError: there is none."""
    runs = kept(results)
    if not runs:
        raise DataError(f"{results} has no run; python -m benchmarks --keep writes one.")
    files = pages(runs)
    for name, text in files.items():
        replace_file(folder / name, text.encode())
    return [folder / name for name in files]


def _origin(run: Run, name: str) -> str:
    machine, numbers = run.machine, run.versions
    said = (
        f"{run.date[:10]}, commit {run.commit}: {machine['processor']}, {machine['cores']} cores, "
        f"{int(machine['memory']) / 2**30:.0f} GiB, {machine['threads']} thread(s); "
        + ", ".join(f"{package} {number}" for package, number in numbers.items())
        + f"; {run.sections[name].seconds:.0f} s."
    )
    return f"{said} **{busy_note(run, name)}**" if run.is_busy(name) else said


def _table(figures: Sequence[Figure]) -> str:
    """Return one row a name and one column a figure, with the unit in the column's head."""
    heads = list(dict.fromkeys((f.column, f.unit) for f in figures))
    cells = {(f.row, f.column, f.unit): shown(f) for f in figures}
    named = [c if u == "ratio" else f"{c}, {u}" for c, u in heads]
    lines = ["| | " + " | ".join(named) + " |", "|---" * (len(heads) + 1) + "|"]
    for row in dict.fromkeys(f.row for f in figures):
        lines.append(f"| {row} | " + " | ".join(cells.get((row, *h), "") for h in heads) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        for path in write_pages():
            print(path.relative_to(ROOT))
    except DataError as error:
        sys.exit(f"Error: {error}")
