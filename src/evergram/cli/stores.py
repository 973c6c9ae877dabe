"""Commands that fill a store with embeddings, and refresh one that holds older rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergram.cli.options import Json, LineageFolder, app, stores_by_side
from evergram.cli.printing import dump
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.retrieval.backfill import Backfill, Status

_WHERE = (
    "a folder, postgresql://…#TABLE, lance:DIR#TABLE or qdrant:URL#COLLECTION. A database's "
    "password is best in PGPASSWORD or ~/.pgpass, a Qdrant server's key in QDRANT_API_KEY."
)
Stores = Annotated[
    list[str],
    typer.Option(
        "--store",
        metavar="SIDE=ADDRESS",
        help=f"Which side goes where; repeatable, once for each side: {_WHERE}",
    ),
]
# Typer would take the last of several without a word.
OneStore = Annotated[
    list[str],
    typer.Option("--store", metavar="SIDE=ADDRESS", help=f"Which side is where: {_WHERE}"),
]
backfill = typer.Typer(
    help="Refresh a store's older rows to production's version, the worst first.",
    no_args_is_help=True,
)
app.add_typer(backfill, name="backfill")


@app.command()
def fill(
    lineage: LineageFolder,
    store: Stores,
    index: Annotated[
        bool, typer.Option("--index", help="Build the store's native index afterwards.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write all embeddings of production's version to stores, made where they are not there."""
    from evergram.lineage.lineage import Lineage
    from evergram.retrieval.fill import fill as fill_store
    from evergram.retrieval.fill import stores_to_fill

    addresses = stores_by_side(store)
    found = Lineage.open(lineage)
    version = found.production
    filled: list[dict[str, Any]] = []
    with stores_to_fill(found, addresses) as stores:
        for side, opened in stores.items():
            progress = partial(_say, what=f"rows of side {side}")
            rows = fill_store(found, opened, side, version, progress=progress)
            if index:
                opened.build_index()
            facts = {"store": opened.address, "side": side, "rows": rows, "held": opened.count()}
            filled.append(facts)
    if as_json:
        dump({"version": version, "stores": filled})
        return
    for facts in filled:
        sys.stdout.write(
            f"{facts['rows']} rows of side {facts['side']}, version {version}: {facts['store']}\n"
        )


@backfill.command("plan")
def plan(
    lineage: LineageFolder,
    store: OneStore,
    batch: Annotated[int, typer.Option(min=1, help="Rows written at a time.")] = 10_000,
    as_json: Json = False,
) -> None:
    """Find the rows to refresh and order them by the error that they are predicted to have."""
    with _opened(lineage, store) as work:
        _print(work.plan(batch), as_json)


@backfill.command("apply")
def apply(
    lineage: LineageFolder,
    store: OneStore,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many (whole batches).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Refresh rows in the planned order; started again, it goes on where it was."""
    with _opened(lineage, store) as work:
        _print(work.apply(rows, progress=_say_rows), as_json)


@backfill.command("status")
def status(
    lineage: LineageFolder,
    store: OneStore,
    as_json: Json = False,
) -> None:
    """How far it is."""
    with _opened(lineage, store) as work:
        _print(work.status(), as_json)


@backfill.command("rollback")
def rollback(
    lineage: LineageFolder,
    store: OneStore,
    as_json: Json = False,
) -> None:
    """Put back the rows that were refreshed, as they were."""
    with _opened(lineage, store) as work:
        _print(work.rollback(progress=partial(_say, what="batches")), as_json)


@contextmanager
def _opened(lineage: str, store: list[str]) -> Iterator[Backfill]:
    from evergram.lineage.lineage import Lineage
    from evergram.retrieval.backfill import Backfill
    from evergram.stores.open_store import open_store

    if len(store) > 1:
        raise DataError(
            f"A backfill is of one store; {len(store)} were given by --store: run the command once "
            "for each."
        )
    ((side, address),) = stores_by_side(store).items()
    found = Lineage.open(lineage)
    found.stored(side, found.production)
    with open_store(address) as opened:
        yield Backfill(found, opened, side)


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
