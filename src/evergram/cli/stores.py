"""The commands of `evergram store`: fill, index and check stores, and refresh older rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from evergram.cli.options import (
    WHERE,
    columns_of,
    command,
    described,
    one_store,
    open_lineage,
    print_progress,
    stores_by_side,
)
from evergram.cli.printing import Grid, number, paragraph, show
from evergram.errors import DataError
from evergram.log_lines import write_line

if TYPE_CHECKING:
    from evergram.retrieval.backfill import Backfill, BackfillStatus
    from evergram.retrieval.metric_search import Metric
    from evergram.retrieval.search_check import SearchCheck


MetricName = StrEnum("MetricName", ["ip", "l2", "cosine"])


@command(
    "store fill",
    "lineages/shop --store candidate=lance:vectors#films",
    store=described(f"SIDE=ADDRESS | Store of a side; repeatable, once for each side: {WHERE}"),
    index="Build the store's native index afterwards.",
    as_=described(
        "VERSION | Write the rows of this version or label, whose own embeddings are stored.",
        show_default="production",
    ),
)
def fill(lineage: str, *, store: list[str], index: bool = False, as_: str | None = None) -> None:
    """Write all embeddings of a version to stores, created where there are none."""
    from evergram.retrieval.fill import fill_stores

    opened = open_lineage(lineage)
    number, chosen = opened.resolve(as_), stores_by_side(store)
    filled = fill_stores(opened, chosen, version=number, index=index, progress=_print_side)
    show(
        {"version": number, "stores": [asdict(facts) for facts in filled]},
        *(f"{one.rows} rows of side {one.side}, version {number}: {one.store}" for one in filled),
    )


def _print_side(side: str, version: int, done: int, total: int) -> None:
    print_progress(done, total, f"rows of side {side}")


@command("store index", "vectors/films", address=described(f"ADDRESS | Store: {WHERE}"))
def index_store(address: str) -> None:
    """Build a store's native index."""
    from evergram.stores.adopted_store import read_only
    from evergram.stores.open_store import open_store
    from evergram.stores.store import Store

    with open_store(address) as store:
        if not isinstance(store, Store):
            raise read_only(store.address)
        versions, shown = store.build_index(), store.address
    nothing = f"No version of {shown} has an index: searches compare all rows."
    sentences = [f"Version {v} of {shown} has an index." for v in versions]
    show({"store": shown, "versions": versions}, *(sentences or [nothing]))


@command(
    "store check",
    "lineages/shop --store candidate=lance:vectors#films",
    as_=described(
        "VERSION | Search as this version or label; repeatable.",
        show_default="all that are read from it",
    ),
    k=described("Results of a search.", name="-k", min=1),
    metric=described("How vectors are compared; repeatable.", show_default="all of them"),
    queries=described(
        "FILE | Vectors of queries, of the version that --as names.",
        show_default="the version's canaries",
    ),
    least=described("The share of the best rows to be returned.", min=0, max=1),
)
def check(
    lineage: str,
    *,
    store: list[str],
    as_: list[str] | None = None,
    k: int = 10,
    metric: list[MetricName] | None = None,
    queries: Path | None = None,
    least: float = 0.95,
    column: list[str] | None = None,
) -> None:
    """Compare what searches return with the best of all rows, at each version and by each metric.

    Exit code 1 if the lower end of a 95 % interval is less than --least, or if that could not be
    measured.
    """
    from evergram.retrieval.search_check import (
        canary_queries,
        check_searches,
        checked_versions,
        file_queries,
    )
    from evergram.retrieval.side_stores import open_side
    from evergram.vector_files.open_embeddings import open_embeddings

    opened = open_lineage(lineage)
    side, address = one_store(store, "A check")
    chosen = [opened.resolve(one) for one in as_ or ()]
    if queries is None and column:
        raise DataError("--column is of the file --queries, which is not given.")
    if queries is not None and len(chosen) != 1:
        raise DataError("--queries are vectors of one version; name it by one --as.")
    with open_side(opened, side, address) as there:
        chosen = chosen or checked_versions(opened, there)
        if queries is None:
            asked = canary_queries(opened, chosen, side)
        else:
            file = open_embeddings(queries, **columns_of([queries], column))
            asked = {chosen[0]: file_queries(opened, chosen[0], file)}
        metrics = cast("list[Metric]", [one.value for one in metric or MetricName])
        progress = partial(print_progress, what="rows compared")
        checks = check_searches(opened, there, side, asked, k, metrics, progress)
        shown, rows = there.address, there.count()
    unread = [v for v in opened.readable if not as_ and v not in asked]
    wrong = [_sentence(one, rows, least) for one in checks if not one.reaches(least)]
    passes = bool(checks) and not wrong
    facts = {"store": shown, "side": side, "k": k, "least": least, "passes": passes, "rows": rows}
    facts |= {"not_read_from_it": unread, "searches": [asdict(one) for one in checks]}
    header = ["version", "metric", "queries", f"recall@{k}", "95 %", "lowest of a query"]
    held = ", ".join(f"{count} of version {v}" for v, count in rows.items())
    parts = [f"Rows: {held}."]
    if unread:
        listed = ", ".join(map(str, unread))
        why = "Not searched, as readers do not read it from this store"
        parts.append(paragraph(f"{why}: version {listed}."))
    show(facts, Grid(f"Searches in {shown}", header, [_cells(one) for one in checks]), *parts)
    for sentence in wrong:
        write_line("past_limit", sentence, level="warning")
    if not passes:
        raise typer.Exit(1)


def _cells(one: SearchCheck) -> list[str]:
    ends = "–" if one.low is None else f"{number(one.low)} to {number(one.high)}"
    shares = number(one.recall), ends, number(one.worst)
    return [str(one.version), one.metric, str(one.queries), *shares]


def _sentence(one: SearchCheck, rows: Mapping[int, int], least: float) -> str:
    """Return what is wrong with searches, and what to do."""
    what = f"Searches by {one.metric} at version {one.version}"
    if one.recall is None:
        return f"{what} were not measured: {one.problem}."
    older = sum(count for version, count in rows.items() if version < one.version)
    remedy = (
        "have the index look further, or search without it: "
        'docs/stores.md, "Check searches at every version".'
    )
    if older and one.metric != "ip":
        remedy = (
            f"{older} rows are of versions before it, which such searches do not compare exactly; "
            "refresh them by 'evergram store backfill'."
        )
    share = f"{one.recall:.4f} of the best rows"
    if one.recall >= least:
        more = "measure more queries (--queries FILE)"
        return (
            f"{what} return {share}, and other queries might have {one.low:.4f} of theirs, less "
            f"than {least:g}: {more}{'.' if one.recall == 1 else f', or {remedy}'}"
        )
    return f"{what} return {share}, less than {least:g}: {remedy}"


_EXAMPLE = "lineages/shop --store candidate=lance:vectors#films"


@command("store backfill plan", _EXAMPLE, batch=described("Rows written at a time.", min=1))
def plan(lineage: str, *, store: list[str], batch: int = 10_000) -> None:
    """Find the rows to refresh, and order them by their predicted error, the worst first."""
    with _backfill(lineage, store) as opened:
        _show(opened.plan(batch))


@command(
    "store backfill apply",
    f"{_EXAMPLE} --rows 100000",
    rows=described("Stop after this many rows.", min=1),
)
def apply(lineage: str, *, store: list[str], rows: int | None = None) -> None:
    """Refresh rows in the planned order; an interrupted run resumes where it stopped."""
    with _backfill(lineage, store) as opened:
        _show(opened.apply(rows, progress=partial(print_progress, what="rows")))


@command("store backfill status", _EXAMPLE)
def status(lineage: str, *, store: list[str]) -> None:
    """Show how far a backfill is."""
    with _backfill(lineage, store) as opened:
        _show(opened.status())


@command("store backfill rollback", _EXAMPLE)
def rollback(lineage: str, *, store: list[str]) -> None:
    """Put the refreshed rows back as they were."""
    with _backfill(lineage, store) as opened:
        _show(opened.rollback(progress=partial(print_progress, what="batches")))


@contextmanager
def _backfill(lineage: str, store: list[str]) -> Iterator[Backfill]:
    from evergram.retrieval.backfill import Backfill
    from evergram.retrieval.side_stores import open_side

    side, address = one_store(store, "A backfill")
    opened = open_lineage(lineage)
    with open_side(opened, side, address) as there:
        yield Backfill(opened, there, side)


def _show(status: BackfillStatus) -> None:
    held = ", ".join(f"{rows} of version {v}" for v, rows in status.held.items()) or "none"
    new = (
        f"{status.absent} objects of it had no row when this was planned, and get none: "
        "'evergram store fill' adds them. "
        if status.absent
        else ""
    )
    show(
        asdict(status),
        f"{status.store} ({status.side}): {status.state}. {status.refreshed} of {status.rows} rows "
        f"refreshed to version {status.target}; {status.remaining:.1%} of the predicted error "
        f"remains. {status.without} older rows have no embedding of it and stay. "
        f"{new}Rows held: {held}.",
    )
