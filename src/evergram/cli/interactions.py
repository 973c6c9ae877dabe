"""Commands that read interactions: a first recipe, and corpora beyond memory."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evergram.cli.options import columns_by_role, command, described, new_progress
from evergram.cli.printing import show
from evergram.errors import DataError


@command(
    "init",
    "clicks.csv --column query=user_id --column candidate=page",
    path=(
        "PATH | Interactions: .parquet, .arrow, .feather, .csv, .tsv (also .gz), lines of ids "
        "(.txt), a prepared folder, or MovieLens."
    ),
    out="RECIPE.toml | The recipe to write.",
    column=(
        "ROLE=NAME | The file's column of the query, candidate, value, time or weight; repeatable "
        "(default: by their names)."
    ),
    kind="KIND | What PATH is, as data.kind of a recipe (default: told by PATH).",
)
def init(
    path: Path,
    *,
    out: Path = Path("recipe.toml"),
    column: list[str] | None = None,
    kind: str | None = None,
    drop_bad_rows: bool = False,
    force: bool = False,
) -> None:
    """Look at a file of interactions, and write a commented recipe that fits its size.

    Nothing is trained. The recipe can be changed before 'evergram train' runs it.
    """
    from evergram.atomic_files import write_text
    from evergram.training.first_recipe import first_recipe
    from evergram.training.recipe.tables import StepSettings

    if out.suffix != ".toml":
        raise DataError(f"--out {out} must end in .toml.")
    if out.exists() and not force:
        raise DataError(f"{out} is there already; --force overwrites it, --out names another.")
    columns = columns_by_role(column)
    where: Any = {"folder": out.parent, "drop_bad_rows": drop_bad_rows}
    first = first_recipe(path, kind=kind, columns=columns, **where)
    write_text(out, first.text)
    recipe = first.recipe
    assert isinstance(recipe.training, StepSettings)
    show(
        {"recipe": str(out), **first.facts},
        *first.sentences,
        f"Recipe: {out}, with {recipe.model.dim_of(0)} dims, batches of "
        f"{recipe.training.batch_size} and at most {recipe.training.epochs} epochs.",
        f"Next: evergram train {shlex.quote(str(out))} --lineage lineages/{recipe.name}",
    )


@command(
    "prepare",
    "clicks/*.parquet corpus --column query=user_id --column candidate=page",
    sources="SOURCE... | Files, folders, globs or addresses (s3://…).",
    out="OUT | Folder to write.",
    column="ROLE=NAME | The files' column of a role, as in query=user_id; repeatable.",
    query_features="PATH | Table of features of queries; repeatable.",
    candidate_features="PATH | Table of features of candidates; repeatable.",
    shared_ids="Query and candidate ids name the same things.",
    overwrite="Replace what is in OUT.",
    memory=described(
        "SIZE | Most memory that the engine takes, such as 2GiB.",
        show_default="a quarter, at most 2GiB",
    ),
)
def prepare(
    sources: list[str],
    out: Path,
    *,
    column: list[str] | None = None,
    query_features: list[str] | None = None,
    candidate_features: list[str] | None = None,
    shared_ids: bool = False,
    drop_bad_rows: bool = False,
    overwrite: bool = False,
    memory: str | None = None,
) -> None:
    """Write interactions of any size to a folder that training reads piece by piece."""
    from evergram.data.prepared.prepare import PrepareSettings
    from evergram.data.prepared.prepare import prepare as prepare_corpus

    settings = PrepareSettings(
        columns=columns_by_role(column),
        query_features=list(query_features) if query_features else None,
        candidate_features=list(candidate_features) if candidate_features else None,
        shared_ids=shared_ids,
        bad_rows="drop" if drop_bad_rows else "refuse",
        memory=memory,
    )
    progress = new_progress().say
    summary = prepare_corpus(sources, out, settings, overwrite=overwrite, progress=progress)
    show(asdict(summary), str(summary))
