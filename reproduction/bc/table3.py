"""Nine methods and two of ours on three corpora. [BC] Table 3."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from reproduction.bc import basis, methods
from reproduction.bc.claims import SENTENCES
from reproduction.bc.columns import comparison, of_corpus, value
from reproduction.bc.comparison import compare_methods
from reproduction.comparison.settings import Comparison
from reproduction.experiment import Experiment, Panel, Preset, Runs, Table, Training
from reproduction.intervals import shown

NAME = "bc/table3"


def trainings(recipes: Mapping[str, Path], **settings: Any) -> tuple[Training, ...]:
    """Return one comparison a corpus."""
    return tuple(
        Training(corpus, recipe, settings, program=compare_methods, reads=Comparison.of)
        for corpus, recipe in recipes.items()
    )


def tables(runs: Runs) -> list[Table]:
    """Return Table 3 on all corpora side by side, and what its figures rest on."""
    columns = list(product(runs.labels, methods.PRINTED))
    rows = []
    for method, name in methods.NAMES.items():
        if method != methods.KEEP_ALL and all(
            method in comparison(runs.of(corpus)[0])["methods"] for corpus in runs.labels
        ):
            rows.append([name, *(_cell(runs, corpus, method, key) for corpus, key in columns)])
    header = ["", *(f"{methods.COLUMNS[key]}, {methods.SHORT[c]}" for c, key in columns)]
    return [Table("Table 3", header, rows), basis.table(runs)]


def _cell(runs: Runs, corpus: str, method: str, column: str) -> str:
    values = of_corpus(runs, corpus, lambda result: value(result, method, column))
    return shown(values, 3 if column == "error" else 1)


def panels(runs: Runs) -> list[Panel]:
    """Table 3 is a table; `figure3` draws its runs over time."""
    return []


PRESETS = {
    "tiny": Preset(trainings({"synthetic": methods.TINY}), methods.TINY_NOTE),
    "small": Preset(trainings(methods.SMALL), methods.SMALL_NOTE),
}
EXPERIMENT = Experiment(
    NAME,
    {"BC": "Table 3"},
    "Nine methods, and two of ours, on three corpora",
    "(1) is the change of the intended task from Keep-All, in %, (2) that of the consumers of "
    "version 0, (3) the mean distance to version 0's embeddings, whose scale differs from corpus "
    "to corpus and from the paper's.",
    PRESETS,
    tables,
    panels,
    tuple(sentence.claim for sentence in SENTENCES.values()),
)
