"""The commands that measure: stored embeddings, and the ways to another embedding model."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from evergram.cli.app import app
from evergram.cli.options import (
    As,
    Device,
    From,
    Json,
    LineageFolder,
    Seed,
    Set,
    refuse_unread,
    with_seed,
)
from evergram.cli.printing import dump, metrics_table

# Tables of a recipe that an evaluation does not read.
NOT_EVALUATED = ("name", "model", "task", "prior", "gramian", "training", "upgrade", "compare")


class Index(StrEnum):
    """Kinds of an index of candidates."""

    hnsw = "hnsw"
    ivf = "ivf"


@app.command(epilog="Example: evergram evaluate lineages/shop --as v0")
def evaluate(
    lineage: LineageFolder,
    as_version: As = None,
    from_version: From = None,
    queries: Annotated[
        int | None, typer.Option(min=2, help="Rank so many test queries, drawn (default: all).")
    ] = None,
    index: Annotated[
        Index | None,
        typer.Option(help="Rank by an index, whose recall is measured and shown."),
    ] = None,
    as_json: Json = False,
    seed: Seed = None,
    device: Device = "auto",
    set_: Set = None,
) -> None:
    """Measure the stored embeddings, read as any version, on the newest version's test pairs.

    The data is read from where the newest version's recipe says; --set data.path=PATH if it moved.
    """
    from evergram.lineage.lineage import Lineage
    from evergram.releasing.evaluate import Ranking
    from evergram.releasing.evaluate import evaluate as evaluate_version
    from evergram.training.recipe import Recipe
    from evergram.training.recipe.recipe import without_unknown_kinds

    opened = Lineage.open(lineage)
    refuse_unread(set_, NOT_EVALUATED)
    values = without_unknown_kinds(opened.recipe(opened.newest))
    recipe = Recipe.stored(values, with_seed(set_, seed))
    view = opened.view(as_version, from_version)
    source, read_as = view.source, view.version
    ranking = Ranking(queries, None if index is None else index.value)
    measured = evaluate_version(
        recipe, opened, read_as, source=source, device=device, ranking=ranking
    )
    metrics = {name: measured[name] for name in ("model", "popularity")}
    beside = {name: value for name, value in measured.items() if name not in metrics}
    if as_json:
        dump({"version": source, "as": read_as, "metrics": metrics, **beside})
        return
    title = f"Version {source} read as version {read_as}"
    metrics_table(title, metrics, beside.get("sampled"))
    if unknown := beside.get("unknown"):
        sys.stdout.write(
            f"{unknown['query']:,} queries and {unknown['candidate']:,} candidates of the data "
            "have no stored vector: such queries are left out, and such candidates are misses.\n"
        )
    if by := beside.get("index"):
        sys.stdout.write(
            f"Ranked by an index ({by['kind']}), which finds {by['recall']:.1%} of the "
            f"{by['k']} best candidates (measured on {by['queries']:,} queries).\n"
        )
