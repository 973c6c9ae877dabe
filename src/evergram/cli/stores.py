"""The commands of `evergram store`: fill and index stores, and refresh old rows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import typer

from evergram.cli.options import (
    WHERE,
    command,
    described,
    one_store,
    open_lineage,
    print_progress,
    stores_by_side,
)
from evergram.cli.printing import show

if TYPE_CHECKING:
    from evergram.retrieval.backfill import Backfill


@command(
    "store fill",
    "lineages/shop --store candidate=lance:vectors#films",
    store=described(f"SIDE=ADDRESS | Store of a side; repeatable, once for each side: {WHERE}"),
    index="Build the store's native index afterwards.",
    as_=described(
        "VERSION | The version or label to write; its embeddings must be stored.",
        show_default="production",
    ),
)
def fill(lineage: str, *, store: list[str], index: bool = False, as_: str | None = None) -> None:
    """Write all embeddings of a version to stores, and create missing stores."""
    from evergram.retrieval.backfill import fill_stores

    opened = open_lineage(lineage)
    number, chosen = opened.resolve(as_), stores_by_side(store)

    def say(side: str, _: int, done: int, total: int) -> None:
        print_progress(done, total, f"rows of side {side}")

    with _stoppable():
        filled = fill_stores(opened, chosen, version=number, index=index, progress=say)
    show({"version": number, "stores": [asdict(facts) for facts in filled]})


@command("store index", "vectors/films", address=described(f"ADDRESS | Store: {WHERE}"))
def index_store(address: str) -> None:
    """Build a store's native index."""
    from evergram.stores.open_store import open_store

    with open_store(address) as store:
        versions, shown = store.build_index(), store.address
    show({"store": shown, "versions": versions})


_EXAMPLE = "lineages/shop --store candidate=lance:vectors#films"


@command("store backfill plan", _EXAMPLE, batch=described("Rows written at a time.", min=1))
def plan(lineage: str, *, store: list[str], batch: int = 10_000) -> None:
    """Find the rows to refresh, and order them by their error, the worst first."""
    with _backfill(lineage, store) as opened:
        show(asdict(opened.plan(batch)))


@command(
    "store backfill apply",
    f"{_EXAMPLE} --rows 100000",
    rows=described("Stop after this many rows.", min=1),
)
def apply(lineage: str, *, store: list[str], rows: int | None = None) -> None:
    """Refresh rows in the planned order; an interrupted run resumes where it stopped."""
    with _backfill(lineage, store) as opened:
        show(asdict(opened.apply(rows, progress=partial(print_progress, what="rows"))))


@command("store backfill status", _EXAMPLE)
def status(lineage: str, *, store: list[str]) -> None:
    """Show the progress of a backfill."""
    with _backfill(lineage, store) as opened:
        show(asdict(opened.status()))


@command("store backfill rollback", _EXAMPLE)
def rollback(lineage: str, *, store: list[str]) -> None:
    """Restore the old rows that a backfill replaced."""
    with _backfill(lineage, store) as opened:
        show(asdict(opened.rollback(progress=partial(print_progress, what="batches"))))


@contextmanager
def _backfill(lineage: str, store: list[str]) -> Iterator[Backfill]:
    from evergram.retrieval.backfill import Backfill
    from evergram.stores.open_store import open_store

    side, address = one_store(store)
    opened = open_lineage(lineage)
    # Check the side before opening the store, which may be a remote database.
    opened.stored(side, opened.production)
    with _stoppable(), open_store(address) as there:
        yield Backfill(opened, there, side)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM interrupt a `with` block like Ctrl-C, with the exit code 143."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as error:
        raise typer.Exit(128 + (error.args or (signal.SIGINT,))[0]) from None
    finally:
        signal.signal(signal.SIGTERM, before)
