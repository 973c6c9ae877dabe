"""The command that compares searches of a store with all of its rows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from evergram.cli.app import store_commands
from evergram.cli.command_line.completion import versions
from evergram.cli.options import IdColumn, Json, LineageFolder, VectorColumn, columns_of
from evergram.cli.printing import dump, number, paragraph, table
from evergram.cli.stores.options import OneStore, one_store, print_progress
from evergram.errors import DataError
from evergram.log_lines import write_line

if TYPE_CHECKING:
    from evergram.retrieval.reader import Metric
    from evergram.retrieval.search_check import SearchCheck


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
            autocompletion=versions,
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
    sample: Annotated[
        int, typer.Option(min=1, help="How many queries of each version are searched for.")
    ] = 200,
    least: Annotated[
        float, typer.Option(min=0, max=1, help="The share of the best rows to be returned.")
    ] = 0.95,
    id_column: IdColumn = None,
    vector_column: VectorColumn = None,
    as_json: Json = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed that draws queries.")] = 0,
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
    if queries is None and (id_column or vector_column):
        raise DataError("--id-column and --vector-column are of --queries, which is not given.")
    if queries is not None and len(chosen) != 1:
        raise DataError("--queries are vectors of one version; name it by one --as.")
    with open_side(opened, side, address) as there:
        chosen = chosen or checked_versions(opened, there)
        if queries is None:
            asked = canary_queries(opened, chosen, side, sample, seed)
        else:
            names = columns_of([queries], id_column, vector_column)
            id_name, vector_name = names["id_column"], names["vector_column"]
            file = open_embeddings(queries, id_column=id_name, vector_column=vector_name)
            asked = {chosen[0]: file_queries(opened, chosen[0], file, sample, seed)}
        metrics = cast("list[Metric]", [one.value for one in metric or MetricName])
        progress = partial(print_progress, what="rows compared")
        checks = check_searches(opened, there, side, asked, k, metrics, progress)
        shown, rows = there.address, there.count()
    unread = [v for v in opened.readable if not version and v not in asked]
    wrong = [_sentence(one, rows, least) for one in checks if not one.reaches(least)]
    passes = bool(checks) and not wrong
    if as_json:
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
        more = "measure more queries (--sample, --queries)"
        return (
            f"{what} return {share}, and other queries might have {one.low:.4f} of theirs, less "
            f"than {least:g}: {more}{'.' if one.recall == 1 else f', or {remedy}'}"
        )
    return f"{what} return {share}, less than {least:g}: {remedy}"
