"""The command that reproduces the papers, by the package `reproduction` of a checkout."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

import evergram
from evergram.cli.app import app, is_json
from evergram.cli.options import Device, new_progress, refuse_idle
from evergram.cli.printing import show, table
from evergram.errors import DataError


def checkout() -> Path:
    """Return the folder of the repository: the one that this Evergram was installed from, or the
    working directory.

    Raises: DataError: neither has `reproduction/`.
    """
    installed_from = Path(evergram.__file__).parents[2]
    for folder in (installed_from, Path.cwd()):
        if (folder / "reproduction" / "catalogue.py").is_file():
            return folder
    raise DataError(
        "reproduction/ is not part of the installed package, and it is not in this folder either; "
        "run the command in a checkout of Evergram's repository, which has it beside src/."
    )


def reproduction(module: str) -> ModuleType:
    """Return a module of the package `reproduction`, imported from the checkout."""
    folder = str(checkout())
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module(f"reproduction.{module}")


REPORT, ALL, STALE = "report", "all", "stale"


@app.command(epilog="Example: evergram reproduce gramian/table2 --preset tiny")
def reproduce(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|all|stale|report]",
            help="What to run, such as gramian/table2 (default: list all).",
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(help="Size of the experiment: small, gowalla, paper or tiny."),
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
) -> None:
    """Reproduce a table or figure of the papers; without NAME, list all with their state.

    An interrupted run goes on: each training that is done is kept as one JSON. `all` runs every
    experiment, `stale` runs again what the code would give other results for today, and `report`
    makes the pages and figures of all results.
    """
    if name is None or name == REPORT:
        shown = "a list of all" if name is None else "the report of all results"
        why = f"is for running an experiment, and {shown} is asked for"
        refuse_idle(context, ("preset", "data", "seeds", "device"), why)
    commands = reproduction("commands")
    if name is None:
        lines = commands.list_all(out)
        facts = {"experiments": [line.as_json() for line in lines]}
        return show(facts, *commands.list_lines(lines))
    if name == REPORT:
        paths = commands.make_report(out)
        return show({"report": [str(path) for path in paths]}, f"Report: {paths[0]}")
    run = commands.Run(name, preset, seeds, data, out, device)
    if name == STALE:
        refuse_idle(
            context, ("preset", "seeds"), "are those of the results, and stale is asked for"
        )
        outcomes = commands.reproduce_stale(run, new_progress())
    elif name == ALL:
        outcomes = commands.reproduce_all(run, new_progress())
    else:
        outcomes = [commands.reproduce(run, new_progress())]
    if not is_json():
        for made in (made for outcome in outcomes for made in outcome.tables):
            table(made.title, list(made.header), [list(row) for row in made.rows])
    lines = [line for o in outcomes for line in (*o.sentences, f"Results: {o.folder}")]
    facts = {"experiments": [outcome.as_json() for outcome in outcomes]}
    return show(facts if name in (ALL, STALE) else outcomes[0].as_json(), *lines)
