"""`python -m reproduction.comparison RECIPE.toml --out DIR`: compare methods."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evergram.cli.printing import table
from evergram.errors import EvergramError
from reproduction.comparison.compare import compare
from reproduction.comparison.report import HEADER, explanation, table_rows
from reproduction.comparison.settings import Comparison


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare methods, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m reproduction.comparison",
        description="Compare methods that start from the same version 0. Every method trains "
        "each of the recipe's split.versions. An interrupted comparison can be resumed.",
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE.toml")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for lineages and results"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="remove another recipe's results from DIR"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set a key of the recipe"
    )
    asked = parser.parse_args(arguments)
    try:
        chosen = Comparison.load(asked.recipe, asked.set)
        results = compare(chosen, asked.out, device=asked.device, fresh=asked.fresh)
    except EvergramError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    table(f"{chosen.base.name}, mean ± deviation over seeds", list(HEADER), table_rows(results))
    for sentence in explanation(results):
        sys.stdout.write(sentence + "\n")
    sys.stdout.write(f"Table, figures and all numbers: {asked.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
