"""The commands of `evergram store backfill`, which refresh stores that hold older rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from evergram.cli.app import group, store_commands
from evergram.cli.options import Json, LineageFolder
from evergram.cli.printing import dump
from evergram.cli.stores.options import OneStore, one_store, print_progress

if TYPE_CHECKING:
    from evergram.retrieval.backfilling.backfill import Backfill
    from evergram.retrieval.backfilling.backfill_files import BackfillStatus

backfill: typer.Typer = group(
    "Refresh a store's older rows to production's version, the worst first."
)
store_commands.add_typer(backfill, name="backfill")


@backfill.command(
    "plan",
    epilog="Example: evergram store backfill plan lineages/shop --store "
    "candidate=lance:vectors#films",
)
def plan(
    lineage: LineageFolder,
    store: OneStore,
    batch: Annotated[int, typer.Option(min=1, help="Rows written at a time.")] = 10_000,
    as_json: Json = False,
) -> None:
    """Find the rows to refresh, and order them by their predicted error, the worst first."""
    with _backfill(lineage, store) as opened:
        _print(opened.plan(batch), as_json)


@backfill.command(
    "apply",
    epilog="Example: evergram store backfill apply lineages/shop --store "
    "candidate=lance:vectors#films --rows 100000",
)
def apply(
    lineage: LineageFolder,
    store: OneStore,
    rows: Annotated[int | None, typer.Option(min=1, help="Stop after this many rows.")] = None,
    as_json: Json = False,
) -> None:
    """Refresh rows in the planned order; an interrupted run resumes where it stopped."""
    with _backfill(lineage, store) as opened:
        _print(opened.apply(rows, progress=partial(print_progress, what="rows")), as_json)


@backfill.command(
    "status",
    epilog="Example: evergram store backfill status lineages/shop --store "
    "candidate=lance:vectors#films",
)
def status(
    lineage: LineageFolder,
    store: OneStore,
    as_json: Json = False,
) -> None:
    """Show how far a backfill is."""
    with _backfill(lineage, store) as opened:
        _print(opened.status(), as_json)


@backfill.command(
    "rollback",
    epilog="Example: evergram store backfill rollback lineages/shop --store "
    "candidate=lance:vectors#films",
)
def rollback(
    lineage: LineageFolder,
    store: OneStore,
    as_json: Json = False,
) -> None:
    """Put the refreshed rows back as they were."""
    with _backfill(lineage, store) as opened:
        _print(opened.rollback(progress=partial(print_progress, what="batches")), as_json)


@contextmanager
def _backfill(lineage: str, store: list[str]) -> Iterator[Backfill]:
    from evergram.lineage.lineage import Lineage
    from evergram.retrieval.stores_by_address import open_backfill

    side, address = one_store(store, "A backfill")
    with open_backfill(Lineage.open(lineage), side, address) as opened:
        yield opened


def _print(status: BackfillStatus, as_json: bool) -> None:
    if as_json:
        dump(status.as_json())
        return
    held = ", ".join(f"{rows} of version {v}" for v, rows in status.held.items()) or "none"
    new = (
        f"{status.absent} objects of it had no row when this was planned, and get none: "
        "'evergram store fill' adds them. "
        if status.absent
        else ""
    )
    sys.stdout.write(
        f"{status.store} ({status.side}): {status.state}. {status.refreshed} of {status.rows} rows "
        f"refreshed to version {status.target}; {status.remaining:.1%} of the predicted error "
        f"remains. {status.without} older rows have no embedding of it and stay. "
        f"{new}Rows held: {held}.\n"
    )
