"""The corpora and their sizes, after the loaders' filters. [BC] Table 2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reproduction.bc import methods
from reproduction.bc.comparison import corpus_sizes
from reproduction.comparison.settings import Comparison
from reproduction.experiment import Experiment, Preset, Runs, Table, Training, nothing

HEADER = ("", "users", "items", "interactions", "brands", "sub-categories")
# The features with a column in the paper's table; MovieLens has others.
FEATURES = ("brand", "category")


def trainings(recipes: Mapping[str, Path]) -> tuple[Training, ...]:
    """Return one job per corpus that counts its sizes; like the paper, recipes keep keys with at
    least five items."""
    return tuple(
        Training(corpus, recipe, program=corpus_sizes, reads=Comparison.of)
        for corpus, recipe in recipes.items()
    )


def tables(runs: Runs) -> list[Table]:
    rows = []
    for label in runs.labels:
        sizes = runs.of(label)[0].series["sizes"]
        keys = [sizes["keys"].get(name) for name in FEATURES]
        counts = [sizes["queries"], sizes["candidates"], sizes["interactions"], *keys]
        rows.append([label, *(f"{n:,}" if n is not None else "" for n in counts)])
    return [Table("Sizes", HEADER, rows)]


EXPERIMENT = Experiment(
    "bc/table2",
    {"BC": "Table 2"},
    "The three corpora and their sizes",
    "Brands and sub-categories that five items or more have, as in the paper's code.",
    {
        "tiny": Preset(trainings({"synthetic": methods.TINY}), methods.TINY_NOTE),
        "small": Preset(
            trainings(methods.SMALL),
            "Amazon's 2014 edition, 5-core, and the first 2,687 users of MovieLens 25M.",
        ),
    },
    tables,
    nothing,
)
