"""Run benchmarks, print their tables and write one JSON file per section. `make evidence` (--write
--changed) writes the tables in the documents anew, and can be interrupted."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import ROOT, gowalla
from benchmarks.records import circumstances, figures_of, new_record
from benchmarks.sections import SECTIONS, listing
from evergram.atomic_files import make_folder, write_text

KEPT = ROOT / "benchmarks" / "kept" / "sections"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def put(name: str, text: str) -> None:
    """Replace the text between `<!-- name -->` and `<!-- end name -->` in the documents.

    If no document has these marks, print a warning on stderr.
    """
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    if not any(start in path.read_text() for path in DOCUMENTS):
        print(f"No document contains {start}, so {name} was not written.", file=sys.stderr)
    for path in DOCUMENTS:
        document = path.read_text()
        if start in document:
            before, rest = document.split(start)
            _, after = rest.split(end)
            path.write_text(f"{before}{start}\n{text}\n{end}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run sections and return the exit code: 1 if any section failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("sections", nargs="*", metavar="SECTION", help="see --list; all by default")
    add("--list", action="store_true", help="list the sections")
    add("--write", action="store_true", help=f"update the documents, and the JSON in {KEPT.name}/")
    add("--changed", action="store_true", help="leave out what this code has already written")
    add("--tiny", action="store_true", help="test in seconds that sections run; no real data")
    add("--out", type=Path, help="folder for the JSON files; default: build/benchmarks")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {sorted(unknown)[0]}; known are {', '.join(SECTIONS)}")
    if chosen.tiny and chosen.write:
        parser.error("--tiny only tests that sections run; its figures must not be written")
    if chosen.list:
        print(listing(SECTIONS))
        return 0
    names = chosen.sections or [*SECTIONS]
    failed = measured([n for n in names if not (chosen.changed and current(n))], chosen)
    if failed:
        print(f"\nFailed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def current(name: str) -> bool:
    """Return True if the documents have this section's table as the code of today made it."""
    path, code = KEPT / f"{name}.json", ["src", "recipes", "benchmarks", ":!benchmarks/kept"]
    made = json.loads(path.read_text())["commit"] if path.is_file() else "none"
    command = ["git", "diff", "--quiet", made, "--", *code]
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode == 0


def measured(names: Sequence[str], chosen: argparse.Namespace) -> list[str]:
    """Run sections, write the record of each, and return the names of those that failed."""
    out = chosen.out or (KEPT if chosen.write else ROOT / "build" / "benchmarks")
    record, failed, left_out = new_record(), [], []
    for name in names:
        if SECTIONS[name].needs_data and not chosen.tiny and not gowalla.available():
            left_out.append(name)
            continue
        started = time.perf_counter()
        try:
            text = show(name, record, tiny=chosen.tiny, write=chosen.write)
        except Exception:
            # Continue with the other sections.
            failed.append(name)
            print(f"\n## {name}\n\nfailed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            continue
        if not chosen.tiny:
            record["seconds"] = round(time.perf_counter() - started, 1)
            cells = figures_of(text).items()
            record["figures"] = [{"row": r, "column": c, "value": v} for (r, c), v in cells]
            make_folder(out, 0o644)
            write_text(
                out / f"{name}.json", json.dumps(record, ensure_ascii=False, indent=1) + "\n"
            )
    if left_out:
        print(f"\nSkipped, because there is no real data at {gowalla.DATA}: {', '.join(left_out)}.")
    return failed


def show(name: str, record: dict[str, Any], *, tiny: bool, write: bool) -> str:
    """Run a section, print and return its table; with `write`, also update the documents."""
    section = SECTIONS[name]
    figures = section.tiny() if tiny else section.measure()
    text = section.table(figures) + ("" if tiny else f"\n\n*{circumstances(record)}*")
    print(f"\n## {name}\n\n{text}", flush=True)
    if write:
        put(name, text)
        for picture, content in section.pictures(figures).items():
            (ROOT / "docs" / picture).write_bytes(content)
    return text


if __name__ == "__main__":
    sys.exit(main())
