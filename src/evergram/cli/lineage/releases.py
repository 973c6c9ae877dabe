"""Commands that decide which versions may be read, and which one is in production."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from evergram.cli.app import lineage_commands
from evergram.cli.command_line.completion import versions
from evergram.cli.options import (
    Json,
    LineageFolder,
)
from evergram.cli.printing import dump
from evergram.errors import LineageError

if TYPE_CHECKING:
    from evergram.lineage.lineage import Lineage

_Version = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        help="A number, a label or 'newest'.",
        autocompletion=versions,
        show_default=True,
    ),
]


@lineage_commands.command(epilog="Example: evergram lineage label lineages/shop trusted v1")
def label(
    lineage: LineageFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the label.")],
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="VERSION", help="A number, a label or 'newest'.", autocompletion=versions
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the label.")] = False,
    as_json: Json = False,
) -> None:
    """Set a label on a version, move it there, or remove it; `stable` marks production."""
    from evergram.lineage.lineage import Lineage

    if remove == (version is not None):
        raise LineageError("Give the version to put the label on, or --remove and no version.")
    opened = Lineage.open(lineage)
    if version is None:
        opened.unlabel(name)
    else:
        opened.label(name, version)
    _print_labels(opened, as_json)


@lineage_commands.command(epilog="Example: evergram lineage promote lineages/shop v1")
def promote(
    lineage: LineageFolder,
    version: _Version = "newest",
    as_json: Json = False,
) -> None:
    """Put a version into production, or put an earlier one back: the label `stable` moves to it."""
    from evergram.lineage.lineage import Lineage

    opened = Lineage.open(lineage)
    opened.promote(version)
    _print_labels(opened, as_json)


@lineage_commands.command(epilog="Example: evergram lineage withdraw lineages/shop --reason broken")
def withdraw(
    lineage: LineageFolder,
    reason: Annotated[str, typer.Option(help="The reason, which is kept.")],
    as_json: Json = False,
) -> None:
    """Withdraw the newest version, if no label and no consumer is on it.

    Its number is never used again.
    """
    from evergram.lineage.lineage import Lineage

    opened = Lineage.open(lineage)
    opened.withdraw(opened.newest, reason)
    _print_labels(opened, as_json)


@lineage_commands.command(epilog="Example: evergram lineage retire lineages/shop v0")
def retire(
    lineage: LineageFolder,
    version: _Version,
    as_json: Json = False,
) -> None:
    """Make an old version unreadable, if no label and no consumer is on it."""
    from evergram.lineage.lineage import Lineage

    opened = Lineage.open(lineage)
    opened.retire(version)
    _print_labels(opened, as_json)


def _print_labels(lineage: Lineage, as_json: bool) -> None:
    """Print the version of every label, and which versions may be read."""
    if as_json:
        dump(
            {
                "lineage": str(lineage),
                "newest": lineage.newest,
                "production": lineage.production,
                "labels": lineage.labels,
                "readable": lineage.readable,
                "held": lineage.versions_with_embeddings,
                "retired": lineage.retired,
                "withdrawn": {str(n): w.model_dump() for n, w in lineage.withdrawn.items()},
            }
        )
        return
    labels = ", ".join(f"{name}: {n}" for name, n in sorted(lineage.labels.items())) or "none"
    sys.stdout.write(
        f"Production: version {lineage.production}; newest: version {lineage.newest}; "
        f"labels: {labels}.\n"
    )
