"""Commands that fill stores with embeddings, and refresh stores that hold older rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from evergram.cli.app import group, is_quiet, store_commands
from evergram.cli.command_line.completion import versions
from evergram.cli.options import Json, LineageFolder, stores_by_side
from evergram.cli.printing import dump
from evergram.errors import DataError
from evergram.log_lines import LogFormat, log_format, write_line

if TYPE_CHECKING:
    from evergram.retrieval.backfilling.backfill import Backfill
    from evergram.retrieval.backfilling.backfill_state import BackfillStatus

_WHERE = (
    "a folder, postgresql://…#TABLE, lance:DIR#TABLE, qdrant:URL#COLLECTION or sqlite:FILE#NAME. "
    "A database's password is best in PGPASSWORD or ~/.pgpass, a Qdrant server's key in "
    "QDRANT_API_KEY."
)
Stores = Annotated[
    list[str],
    typer.Option(
        "--store",
        metavar="SIDE=ADDRESS",
        help=f"Store of a side; repeatable, once for each side: {_WHERE}",
    ),
]
# Rows scored for each result, of an index of codes, where nothing else is asked for.
OVERSAMPLE = 4


class CodeKind(StrEnum):
    """What an index holds of a vector: `CODES` of `evergram.stores.index_codes`, named here so that
    the command starts without it."""

    float32 = "float32"
    float16 = "float16"
    int8 = "int8"
    binary = "binary"


# A list, though one store is taken: of several, typer would silently take the last.
OneStore = Annotated[
    list[str],
    typer.Option("--store", metavar="SIDE=ADDRESS", help=f"Store of a side: {_WHERE}"),
]
backfill: typer.Typer = group(
    "Refresh a store's older rows to production's version, the worst first."
)
store_commands.add_typer(backfill, name="backfill")


@store_commands.command(
    epilog="Example: evergram store fill lineages/shop --store candidate=lance:vectors#films"
)
def fill(
    lineage: LineageFolder,
    store: Stores,
    index: Annotated[
        bool, typer.Option("--index", help="Build the store's native index afterwards.")
    ] = False,
    version: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="VERSION",
            help="Write the rows of this version or label, whose own embeddings are stored.",
            show_default="production",
            autocompletion=versions,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write all embeddings of a version to stores, created where there are none."""
    from evergram.lineage.lineage import Lineage
    from evergram.retrieval.stores_by_address import fill_stores

    opened = Lineage.open(lineage)
    number = opened.resolve(version)
    filled = fill_stores(
        *(opened, stores_by_side(store)), version=number, index=index, progress=_print_side
    )
    if as_json:
        dump({"version": number, "stores": [facts.as_json() for facts in filled]})
        return
    for facts in filled:
        sys.stdout.write(
            f"{facts.rows} rows of side {facts.side}, version {number}: {facts.store}\n"
        )


@store_commands.command(
    "index",
    epilog="Example: evergram store index vectors/films --codes int8 --oversample 4",
)
def index_store(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help=f"Store: {_WHERE}")],
    codes: Annotated[
        CodeKind, typer.Option(help="What the index holds of a vector; scores stay exact.")
    ] = CodeKind.float32,
    oversample: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="Rows scored by their vectors for each result; of codes of fewer bytes (4).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build a store's native index, of whole vectors or of codes of fewer bytes."""
    from evergram.stores.index_codes import FLOAT32, IndexCodes
    from evergram.stores.open_store import open_store

    default = FLOAT32.oversample if codes is CodeKind.float32 else OVERSAMPLE
    chosen = IndexCodes(codes.value, default if oversample is None else oversample)
    with open_store(address) as store:
        versions = store.build_index(chosen)
        unindexed = dict(sorted(store.unindexed.items()))
        shown = store.address
    if as_json:
        facts = {"store": shown, "versions": versions, **asdict(chosen)}
        dump({**facts, "unindexed": unindexed} if unindexed else facts)
        return
    for version in versions:
        sys.stdout.write(f"Version {version} of {shown} has an index of {chosen.kind}.\n")
    for version, why in unindexed.items():
        sys.stdout.write(
            f"Version {version} of {shown} has no index, and searches compare all its rows: "
            f"{why}.\n"
        )
    if not versions and not unindexed:
        sys.stdout.write(
            f"No version of {shown} has an index of {chosen.kind}: it has no row, or is of a kind "
            "without an index. Searches compare all rows.\n"
        )


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

    if len(store) > 1:
        raise DataError(
            f"A backfill is of one store; {len(store)} were given by --store: run the command once "
            "for each."
        )
    ((side, address),) = stores_by_side(store).items()
    with open_backfill(Lineage.open(lineage), side, address) as opened:
        yield opened


def _print_side(side: str, version: int, done: int, total: int) -> None:
    print_progress(done, total, f"rows of side {side}")


def print_progress(done: int, total: int, what: str) -> None:
    if is_quiet():
        return
    sentence = f"{done} of {total} {what}"
    if sys.stderr.isatty() and log_format() is LogFormat.text:
        sys.stderr.write(f"\r{sentence}" + ("\n" if done >= total else ""))
        return
    write_line("progress", sentence, task=what, done=done, total=total)


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
