"""`make bench`: measure, print, and write one JSON a run; with --write put the figures where the
documents show them."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks import gowalla
from benchmarks.instrument import machine, runs
from benchmarks.instrument.figures import Figure, figures_of_table, together
from benchmarks.instrument.runs import KEPT, UNKEPT
from benchmarks.sections import SECTIONS, listing
from evergram.errors import DataError

ROOT = gowalla.ROOT


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def put(name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- end name -->` in the documents.

    Where no document has these marks, a line on stderr says so.
    """
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    if not any(start in path.read_text() for path in DOCUMENTS):
        print(f"No document has a place for {name}, {start}; nothing was written.", file=sys.stderr)
    for path in DOCUMENTS:
        document = path.read_text()
        if start in document:
            before, rest = document.split(start)
            _, after = rest.split(end)
            path.write_text(f"{before}{start}\n{text}\n{end}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run sections and return the exit code: 1 if one has failed, 2 if nothing could start."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {sorted(unknown)[0]}; there are {', '.join(SECTIONS)}")
    if chosen.tiny and (chosen.write or chosen.keep):
        parser.error("--tiny shows that a section runs; its figures are not for the documents")
    if chosen.repeats < 1:
        parser.error(f"--repeats is {chosen.repeats}; it must be 1 or more")
    if chosen.list:
        print(listing(SECTIONS))
        return 0
    try:
        run, failed = measured(chosen)
    except DataError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    if chosen.json:
        print(runs.as_json(run))
    if failed:
        print(f"\nFailed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("sections", nargs="*", metavar="SECTION", help="see --list; all by default")
    add("--list", action="store_true", help="list the sections")
    add("--write", action="store_true", help="put the figures into the documents")
    add("--tiny", action="store_true", help="show in seconds that a section runs; no real data")
    add("--repeats", type=int, default=1, help="measure so often; a spread takes three")
    add("--keep", action="store_true", help="write the run into benchmarks/results")
    add("--out", type=Path, help="write the run here: a folder, or a file that ends in .json")
    add("--json", action="store_true", help="print the run as JSON, and tables to stderr")
    return parser


def measured(chosen: argparse.Namespace) -> tuple[runs.Run, list[str]]:
    """Run the chosen sections, and write the run after each.

    Returns: the run, and the names of sections that failed. Raises: DataError: it cannot be
    written.
    """
    run = runs.begin()
    output = sys.stderr if chosen.json else sys.stdout
    failed, left_out = [], []
    for name in chosen.sections or SECTIONS:
        if SECTIONS[name].needs_data and not chosen.tiny and not gowalla.available():
            left_out.append(name)
            continue
        load, started = machine.load(), time.perf_counter()
        try:
            with contextlib.redirect_stdout(output):
                figures = show(name, tiny=chosen.tiny, write=chosen.write, repeats=chosen.repeats)
        except Exception:
            # One section's failure is not the next one's.
            failed.append(name)
            print(f"\n## {name}\n\nfailed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            continue
        run.sections[name] = runs.Measured(load, round(time.perf_counter() - started, 1), figures)
        if chosen.out or chosen.keep or not chosen.tiny:
            # After each section: what a killed run has measured is not lost.
            path = runs.write(run, chosen.out or (KEPT if chosen.keep else UNKEPT))
            print(f"\nWritten to {path}.", file=sys.stderr)
        if run.is_busy(name):
            print(f"\n{run.busy_note(name)}", file=output, flush=True)
    if left_out:
        missing = f"Left out, as real data is not at {gowalla.DATA}: {', '.join(left_out)}."
        print(f"\n{missing}", file=output)
    return run, failed


def show(name: str, *, tiny: bool, write: bool, repeats: int = 1) -> list[Figure]:
    """Measure a section, print its table, and with `write` put it into the documents.

    Returns: its figures, with the values of all repeats; the table is the last one's.
    """
    section = SECTIONS[name]
    repeated = []
    for _ in range(repeats):
        figures = section.tiny() if tiny else section.measure()
        text = section.table(figures)
        own = section.figures
        repeated.append(figures_of_table(text) if own is None else own(figures))
    print(f"\n## {name}\n\n{text}", flush=True)
    pictures = section.pictures(figures) if write else {}
    if write:
        put(name, text)
    for picture, content in pictures.items():
        (ROOT / "docs" / picture).write_bytes(content)
    return together(repeated)


if __name__ == "__main__":
    sys.exit(main())
