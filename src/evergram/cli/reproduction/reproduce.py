"""The command that reproduces the papers' tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from evergram.cli.app import app
from evergram.cli.command_line.completion import choices
from evergram.cli.options import Device, Json, new_progress, refuse_idle
from evergram.cli.printing import dump, table
from evergram.cli.reproduction.checkout import reproduction

REPORT = "report"


@app.command(epilog="Example: evergram reproduce gramian/table2 --preset tiny")
def reproduce(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|report]", help="What to run, such as gramian/table2 (default: list all)."
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Size of the experiment: small, gowalla, paper or tiny.",
            autocompletion=choices("small", "gowalla", "paper", "tiny"),
        ),
    ] = "small",
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Folder of data sets ($EVERGRAM_DATA).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of results (default: reproduction/results)."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Train with seeds 0 to N - 1.")] = 1,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the papers; without NAME, list all with their state.

    An interrupted run goes on: each training that is done is kept as one JSON. `report` makes the
    pages and figures of all results.
    """
    if name is None or name == REPORT:
        shown = "a list of all" if name is None else "the report of all results"
        why = f"is for running an experiment, and {shown} is asked for"
        refuse_idle(context, ("preset", "data", "seeds", "device"), why)
    commands = reproduction("commands")
    if name is None:
        lines = commands.list_all(out)
        if as_json:
            dump({"experiments": [line.as_json() for line in lines]})
            return
        sys.stdout.write("\n".join(commands.list_lines(lines)) + "\n")
        return
    if name == REPORT:
        paths = commands.make_report(out)
        if as_json:
            dump({"report": [str(path) for path in paths]})
            return
        sys.stdout.write(f"Report: {paths[0]}\n")
        return
    run = commands.Run(name, preset, seeds, data, out, device)
    outcome = commands.reproduce(run, new_progress())
    if as_json:
        dump(outcome.as_json())
        return
    for made in outcome.tables:
        table(made.title, list(made.header), [list(row) for row in made.rows])
    for sentence in outcome.sentences:
        sys.stdout.write(sentence + "\n")
    sys.stdout.write(f"Results: {outcome.folder}\n")
