"""Commands that fill a store with embeddings, and refresh one that holds older rows."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from evergram.cli.options import Json, LineageFolder, app
from evergram.cli.printing import dump
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.lineage.backfill import Backfill, Status

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="SIDE=ADDRESS",
        help="Which side goes where: a folder, postgresql://…#TABLE, lance:DIR#TABLE or "
        "qdrant:URL#COLLECTION.",
    ),
]
backfill = typer.Typer(
    help="Refresh a store's older rows to production's version, the worst first.",
    no_args_is_help=True,
)
app.add_typer(backfill, name="backfill")


@app.command()
def fill(
    lineage: LineageFolder,
    store: StoreOption,
    index: Annotated[
        bool, typer.Option("--index", help="Build the store's native index afterwards.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write all embeddings of production's version to a store, which is made if it is not there."""
    from evergram.lineage.filling import fill as fill_store
    from evergram.lineage.filling import id_type
    from evergram.lineage.lineage import Lineage
    from evergram.lineage.reader import check_spaces
    from evergram.stores.opening import open_store

    side, address = _side_and_address(store)
    found = Lineage.open(lineage)
    version = found.production
    found.stored(side, version)
    with open_store(address, create=id_type(found, side, version)) as opened:
        check_spaces(found, opened, withdrawn=True)
        rows = fill_store(found, opened, side, version, progress=_say_rows)
        if index:
            opened.build_index()
        held = opened.count()
        facts = {"store": opened.address, "side": side, "version": version, "rows": rows}
    if as_json:
        dump({**facts, "held": held})
        return
    sys.stdout.write(f"{rows} rows of version {version}: {facts['store']}\n")


@backfill.command("plan")
def plan(
    lineage: LineageFolder,
    store: StoreOption,
    batch: Annotated[int, typer.Option(min=1, help="Rows written at a time.")] = 10_000,
    as_json: Json = False,
) -> None:
    """Find the rows to refresh and order them by the error that they are predicted to have."""
    _print(_open(lineage, store).plan(batch), as_json)


@backfill.command("apply")
def apply(
    lineage: LineageFolder,
    store: StoreOption,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many (whole batches).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Refresh rows in the planned order; started again, it goes on where it was."""
    _print(_open(lineage, store).apply(rows, progress=_say_rows), as_json)


@backfill.command("status")
def status(
    lineage: LineageFolder,
    store: StoreOption,
    as_json: Json = False,
) -> None:
    """How far it is."""
    _print(_open(lineage, store).status(), as_json)


@backfill.command("rollback")
def rollback(
    lineage: LineageFolder,
    store: StoreOption,
    as_json: Json = False,
) -> None:
    """Put back the rows that were refreshed, as they were."""
    _print(_open(lineage, store).rollback(progress=partial(_say, what="batches")), as_json)


def _open(lineage: str, store: str) -> Backfill:
    from evergram.lineage.backfill import Backfill
    from evergram.lineage.lineage import Lineage
    from evergram.stores.opening import open_store

    side, address = _side_and_address(store)
    found = Lineage.open(lineage)
    found.stored(side, found.production)
    return Backfill(found, open_store(address), side)


def _side_and_address(given: str) -> tuple[str, str]:
    side, equals, address = given.partition("=")
    if not (side and equals and address):
        raise DataError(
            f"--store {given!r} must be SIDE=ADDRESS, as in candidate=lance:vectors#films."
        )
    return side, address


def _say_rows(done: int, total: int) -> None:
    _say(done, total, "rows")


def _say(done: int, total: int, what: str) -> None:
    if not sys.stderr.isatty():
        sys.stderr.write(f"{done} of {total} {what}\n")
        return
    sys.stderr.write(f"\r{done} of {total} {what}" + ("\n" if done >= total else ""))


def _print(status: Status, as_json: bool) -> None:
    if as_json:
        dump(status.as_json())
        return
    held = ", ".join(f"{rows} of version {v}" for v, rows in status.held.items()) or "none"
    sys.stdout.write(
        f"{status.store} ({status.side}): {status.state}. {status.refreshed} of {status.rows} rows "
        f"refreshed to version {status.target}; {status.remaining:.1%} of the predicted error "
        f"remains. {status.without} older rows have no embedding of it and stay. Rows held: "
        f"{held}.\n"
    )
