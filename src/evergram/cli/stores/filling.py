"""Commands that fill stores with embeddings, and build their indexes."""

from __future__ import annotations

import sys
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from evergram.cli.app import store_commands
from evergram.cli.command_line.completion import versions
from evergram.cli.options import Json, LineageFolder, stores_by_side
from evergram.cli.printing import dump
from evergram.cli.stores.options import WHERE, Stores, print_progress

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
    as_json: Json = False,
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


def _print_side(side: str, version: int, done: int, total: int) -> None:
    print_progress(done, total, f"rows of side {side}")
