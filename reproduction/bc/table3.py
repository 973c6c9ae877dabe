"""Nine methods and our two on three corpora. [BC] Tables 2, 3."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from reproduction.bc import methods
from reproduction.bc.claims import SENTENCES, near_chance
from reproduction.bc.columns import comparison, keep_all, of_corpus, value
from reproduction.bc.comparison import compare_methods
from reproduction.comparison.settings import Comparison
from reproduction.experiment import Experiment, Preset, Runs, Table, Training, nothing
from reproduction.intervals import shown

NAME = "bc/table3"
BASIS = (
    "",
    "users, items, interactions, brands, sub-categories",
    "Keep-All: recall@50",
    "ROC-AUC",
    "objects that version 0 can embed",
    "test queries of a version",
    "passes",
    "models that end on a plateau",
)


def trainings(recipes: Mapping[str, Path], **settings: Any) -> tuple[Training, ...]:
    """Return one comparison per corpus."""
    return tuple(
        Training(corpus, recipe, settings, program=compare_methods, reads=Comparison.of)
        for corpus, recipe in recipes.items()
    )


def tables(runs: Runs) -> list[Table]:
    """Return Table 3 with all corpora side by side, and a table with the basis of its figures."""
    columns = [
        (corpus, key)
        for corpus, key in product(runs.labels, methods.COLUMNS)
        if key in ("intended", "error") or not near_chance(runs, corpus)
    ]
    rows = []
    for method, name in methods.NAMES.items():
        if method != methods.KEEP_ALL and all(
            method in comparison(runs.of(corpus)[0])["methods"] for corpus in runs.labels
        ):
            rows.append([name, *(_cell(runs, corpus, method, key) for corpus, key in columns)])
    header = ["", *(f"{methods.COLUMNS[key]}, {methods.SHORT[c]}" for c, key in columns)]
    return [
        Table("Table 3", header, rows),
        Table(
            "What the figures rest on ([BC] has 500 passes)",
            BASIS,
            [_basis(runs, c) for c in runs.labels],
        ),
    ]


def _cell(runs: Runs, corpus: str, method: str, column: str) -> str:
    values = of_corpus(runs, corpus, lambda result: value(result, method, column))
    return shown(values, 3 if column == "error" else 1)


def _basis(runs: Runs, corpus: str) -> list[str]:
    """Return the basis of a corpus's figures: its size, test queries and length of training."""
    found = [comparison(result) for result in runs.of(corpus)]
    sizes = found[0]["sizes"]
    counts = [sizes[name] for name in ("queries", "candidates", "interactions")]
    counts += [sizes["keys"][name] for name in ("brand", "category") if name in sizes["keys"]]
    queries = [n for each in found for n in each["queries"].values()]
    models = [m for each in found for run in each["trained"].values() for m in run.values()]
    own = [
        shown(of_corpus(runs, corpus, partial(keep_all, metric=metric)))
        for metric in ("intended", "unintended")
    ]
    return [
        methods.SHORT.get(corpus, corpus),
        ", ".join(f"{size:,}" for size in counts),
        *own,
        f"{100 * fmean(each['known'] for each in found):.0f} %",
        f"{min(queries):,} to {max(queries):,}",
        str(max(model["passes"] for model in models)),
        f"{sum(model['on_plateau'] is True for model in models)} of {len(models)}",
    ]


PRESETS = {
    "tiny": Preset(trainings({"synthetic": methods.TINY}), methods.TINY_NOTE),
    "small": Preset(trainings(methods.SMALL), methods.SMALL_NOTE),
}
EXPERIMENT = Experiment(
    NAME,
    {"BC": "Tables 2, 3"},
    "Nine methods, and two of ours, on three corpora",
    "(1) is the change of the intended task from Keep-All, in %, (2) that of the consumers of "
    "version 0, left out where these are near chance, and (3) the mean distance to version 0's "
    "embeddings, whose scale differs from corpus to corpus and from the paper's.",
    PRESETS,
    tables,
    nothing,
    tuple(sentence.claim for sentence in SENTENCES.values()),
)
