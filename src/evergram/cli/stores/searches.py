"""The command that compares searches of a store with all of its rows."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evergram.cli.app import store_commands
from evergram.cli.command_line.completion import versions
from evergram.cli.options import IdColumn, Json, LineageFolder, VectorColumn, columns_of
from evergram.cli.printing import dump, number, paragraph, table
from evergram.cli.stores.options import OneStore, one_store, print_progress
from evergram.errors import DataError

if TYPE_CHECKING:
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
            show_default="all that can be read",
            autocompletion=versions,
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Results of a search.")] = 10,
    metric: Annotated[MetricName, typer.Option(help="How vectors are compared.")] = MetricName.ip,
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
    """Compare what searches return with the best of all rows, at each version.

    Exit code 1 if at a version they return less than --least, or if it could not be measured.
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
        rows = partial(print_progress, what="rows compared")
        checks = check_searches(opened, there, side, asked, k, metric.value, rows)
        facts = {"store": there.address, "side": side, "k": k, "metric": metric.value}
    passes = all(one.reaches(least) for one in checks)
    if as_json:
        dump({**facts, "least": least, "passes": passes, "versions": [c.as_json() for c in checks]})
    else:
        _print_checks(facts, checks, least)
    if not passes:
        raise typer.Exit(1)


def _print_checks(facts: dict[str, Any], checks: list[SearchCheck], least: float) -> None:
    header = ["version", "queries", f"recall@{facts['k']}", "worst query"]
    lines = [[str(c.version), str(c.queries), number(c.recall), number(c.worst)] for c in checks]
    table(f"Searches by {facts['metric']} in {facts['store']}", header, lines)
    for one in checks:
        if one.problem is not None:
            paragraph(f"Version {one.version} was not measured: {one.problem}.")
        elif not one.reaches(least):
            paragraph(
                f"Version {one.version} is below {least}: searches miss rows that its readers look "
                'for; docs/stores.md, "Check searches at every version", says what to do.'
            )
