"""`python -m reproduction [NAME]`: reproduce a table or figure of the papers, or list all."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evergram.errors import EvergramError
from evergram.training import Progress
from reproduction import commands, results
from reproduction.catalogue import listing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, print its output, and return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m reproduction",
        description="Reproduce a table or figure of the papers; without NAME, list all with their "
        "state. An interrupted run can be resumed: each finished training is saved as JSON.",
    )
    parser.add_argument(
        "name",
        nargs="?",
        help="an experiment, such as gramian/table2; all; stale: experiments with outdated "
        "results; or report: write the page and figures of all results",
    )
    parser.add_argument("--preset", default="small", help="small, gowalla or tiny")
    parser.add_argument("--data", type=Path, help="folder of data sets ($EVERGRAM_DATA)")
    parser.add_argument("--out", type=Path, default=results.FOLDER, help="folder of results")
    parser.add_argument("--seeds", type=int, default=1, help="train with seeds 0 to N - 1")
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    try:
        _run(asked)
    except EvergramError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _run(asked: argparse.Namespace) -> None:
    outcomes: list[commands.Outcome] = []
    run = commands.Run(asked.name, asked.preset, asked.seeds, asked.data, asked.out, asked.device)
    if asked.name is None:
        listed = listing(asked.out)
        facts: dict[str, Any] = {"experiments": [line.as_json() for line in listed]}
        lines = commands.list_lines(listed)
    elif asked.name == "report":
        paths = commands.make_report(asked.out)
        facts, lines = {"report": [str(path) for path in paths]}, [f"Report: {paths[0]}"]
    else:
        several = {"stale": commands.reproduce_stale, "all": commands.reproduce_all}
        if asked.name in several:
            outcomes = several[asked.name](run, Progress())
            facts = {"experiments": [outcome.as_json() for outcome in outcomes]}
        else:
            outcomes = [commands.reproduce(run, Progress())]
            facts = outcomes[0].as_json()
        lines = [line for o in outcomes for line in (*o.sentences, f"Results: {o.folder}")]
    if asked.json:
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
        return
    for one in (table for outcome in outcomes for table in outcome.tables):
        table = Table(*one.header, title=one.title, title_justify="left")
        for row in one.rows:
            table.add_row(*row)
        Console(markup=False, emoji=False).print(table)
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
