"""The commands of `evergram store`: fill, index and check stores, and refresh older rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from evergram.cli.app import group, is_json, store_commands
from evergram.cli.options import (
    WHERE,
    Columns,
    LineageFolder,
    OneStore,
    Stores,
    columns_of,
    one_store,
    print_progress,
    stores_by_side,
)
from evergram.cli.printing import dump, number, paragraph, show, table
from evergram.errors import DataError
from evergram.log_lines import write_line

if TYPE_CHECKING:
    from evergram.retrieval.backfilling.backfill import Backfill
    from evergram.retrieval.backfilling.backfill_files import BackfillStatus
    from evergram.retrieval.reader import Metric
    from evergram.retrieval.search_check import SearchCheck


# Rows scored for each result, of an index of codes, where nothing else is asked for.
OVERSAMPLE = 4


class CodeKind(StrEnum):
    """What an index holds of a vector: `CODES` of `evergram.stores.index_codes`, named here so that
    the command starts without it."""

    float32 = "float32"
    float16 = "float16"
    int8 = "int8"
    binary = "binary"


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
        ),
    ] = None,
) -> None:
    """Write all embeddings of a version to stores, created where there are none."""
    from evergram.lineage.lineage import Lineage
    from evergram.retrieval.stores_by_address import fill_stores

    opened = Lineage.open(lineage)
    number = opened.resolve(version)
    filled = fill_stores(
        *(opened, stores_by_side(store)), version=number, index=index, progress=_print_side
    )
    show(
        {"version": number, "stores": [facts.as_json() for facts in filled]},
        *(f"{one.rows} rows of side {one.side}, version {number}: {one.store}" for one in filled),
    )


@store_commands.command(
    "index",
    epilog="Example: evergram store index vectors/films --codes int8 --oversample 4",
)
def index_store(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help=f"Store: {WHERE}")],
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
) -> None:
    """Build a store's native index, of whole vectors or of codes of fewer bytes."""
    from evergram.stores.adopted_store import read_only
    from evergram.stores.index_codes import FLOAT32, IndexCodes
    from evergram.stores.open_store import open_store
    from evergram.stores.store import Store

    default = FLOAT32.oversample if codes is CodeKind.float32 else OVERSAMPLE
    chosen = IndexCodes(codes.value, default if oversample is None else oversample)
    with open_store(address) as store:
        if not isinstance(store, Store):
            raise read_only(store.address)
        versions = store.build_index(chosen)
        unindexed = dict(sorted(store.unindexed.items()))
        shown = store.address
    sentences = [f"Version {v} of {shown} has an index of {chosen.kind}." for v in versions]
    for version, why in unindexed.items():
        sentences.append(
            f"Version {version} of {shown} has no index, and searches compare all its rows: {why}."
        )
    nothing = (
        f"No version of {shown} has an index of {chosen.kind}: it has no row, or is of a kind "
        "without an index. Searches compare all rows."
    )
    facts = {"store": shown, "versions": versions, **asdict(chosen)}
    show(
        facts | ({"unindexed": unindexed} if unindexed else {}),
        *(sentences or [nothing]),
    )


def _print_side(side: str, version: int, done: int, total: int) -> None:
    print_progress(done, total, f"rows of side {side}")


class MetricName(StrEnum):
    """How a query is compared with a row."""

    ip = "ip"
    l2 = "l2"
    cosine = "cosine"


@store_commands.command(
    epilog="Example: evergram store check lineages/shop --store candidate=lance:vectors#films"
)
def check(
    lineage: LineageFolder,
    store: OneStore,
    version: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="VERSION",
            help="Search as this version or label; repeatable.",
            show_default="all that are read from it",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Results of a search.")] = 10,
    metric: Annotated[
        list[MetricName] | None,
        typer.Option(help="How vectors are compared; repeatable.", show_default="all of them"),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Vectors of queries, of the version that --as names.",
            show_default="the version's canaries",
        ),
    ] = None,
    least: Annotated[
        float, typer.Option(min=0, max=1, help="The share of the best rows to be returned.")
    ] = 0.95,
    column: Columns = None,
) -> None:
    """Compare what searches return with the best of all rows, at each version and by each metric.

    Exit code 1 if the lower end of a 95 % interval is less than --least, or if that could not be
    measured.
    """
    from evergram.lineage.lineage import Lineage
    from evergram.retrieval.search_check import (
        canary_queries,
        check_searches,
        checked_versions,
        file_queries,
    )
    from evergram.retrieval.stores_by_address import open_side
    from evergram.vector_files.open_embeddings import open_embeddings

    opened = Lineage.open(lineage)
    side, address = one_store(store, "A check")
    chosen = [opened.resolve(one) for one in version or ()]
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
            asked = {chosen[0]: file_queries(opened, chosen[0], file, file.rows)}
        metrics = cast("list[Metric]", [one.value for one in metric or MetricName])
        progress = partial(print_progress, what="rows compared")
        checks = check_searches(opened, there, side, asked, k, metrics, progress)
        shown, rows = there.address, there.count()
    unread = [v for v in opened.readable if not version and v not in asked]
    wrong = [_sentence(one, rows, least) for one in checks if not one.reaches(least)]
    passes = bool(checks) and not wrong
    if is_json():
        facts = {"store": shown, "side": side, "k": k, "least": least, "passes": passes}
        searches = [one.as_json() for one in checks]
        dump({**facts, "rows": rows, "not_read_from_it": unread, "searches": searches})
    else:
        header = ["version", "metric", "queries", f"recall@{k}", "95 %", "lowest of a query"]
        table(f"Searches in {shown}", header, [_cells(one) for one in checks])
        held = ", ".join(f"{count} of version {v}" for v, count in rows.items())
        sys.stdout.write(f"Rows: {held}.\n")
        if unread:
            listed = ", ".join(map(str, unread))
            paragraph(f"Not searched, as readers do not read it from this store: version {listed}.")
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
) -> None:
    """Find the rows to refresh, and order them by their predicted error, the worst first."""
    with _backfill(lineage, store) as opened:
        _print(opened.plan(batch))


@backfill.command(
    "apply",
    epilog="Example: evergram store backfill apply lineages/shop --store "
    "candidate=lance:vectors#films --rows 100000",
)
def apply(
    lineage: LineageFolder,
    store: OneStore,
    rows: Annotated[int | None, typer.Option(min=1, help="Stop after this many rows.")] = None,
) -> None:
    """Refresh rows in the planned order; an interrupted run resumes where it stopped."""
    with _backfill(lineage, store) as opened:
        _print(opened.apply(rows, progress=partial(print_progress, what="rows")))


@backfill.command(
    "status",
    epilog="Example: evergram store backfill status lineages/shop --store "
    "candidate=lance:vectors#films",
)
def status(lineage: LineageFolder, store: OneStore) -> None:
    """Show how far a backfill is."""
    with _backfill(lineage, store) as opened:
        _print(opened.status())


@backfill.command(
    "rollback",
    epilog="Example: evergram store backfill rollback lineages/shop --store "
    "candidate=lance:vectors#films",
)
def rollback(lineage: LineageFolder, store: OneStore) -> None:
    """Put the refreshed rows back as they were."""
    with _backfill(lineage, store) as opened:
        _print(opened.rollback(progress=partial(print_progress, what="batches")))


@contextmanager
def _backfill(lineage: str, store: list[str]) -> Iterator[Backfill]:
    from evergram.lineage.lineage import Lineage
    from evergram.retrieval.stores_by_address import open_backfill

    side, address = one_store(store, "A backfill")
    with open_backfill(Lineage.open(lineage), side, address) as opened:
        yield opened


def _print(status: BackfillStatus) -> None:
    if is_json():
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
