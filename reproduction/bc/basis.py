"""What the figures of a comparison rest on: its size, its test queries, its length of training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Any

from reproduction.bc.columns import comparison, keep_all, of_corpus
from reproduction.bc.methods import SHORT
from reproduction.experiment import Runs, Table
from reproduction.intervals import shown
from reproduction.results import Result

HEADER = (
    "",
    "users, items, interactions",
    "Keep-All: recall@50",
    "ROC-AUC",
    "objects that version 0 can embed",
    "test queries of a version",
    "passes",
    "models that end on a plateau",
)


def table(runs: Runs) -> Table:
    """Return a row for each corpus."""
    rows = [_row(runs, corpus) for corpus in runs.labels]
    return Table("What the figures rest on ([BC] has 500 passes)", HEADER, rows)


def models_of(result: Result) -> list[Mapping[str, Any]]:
    """Return how long each model of a comparison was trained."""
    return [m for models in comparison(result)["trained"].values() for m in models.values()]


def _row(runs: Runs, corpus: str) -> list[str]:
    results = runs.of(corpus)
    sizes = comparison(results[0])["sizes"]
    queries = [n for result in results for n in comparison(result)["queries"].values()]
    models = [model for result in results for model in models_of(result)]
    plateaus = [model["on_plateau"] for model in models]
    unmeasured = plateaus.count(None)
    known = [c["known"] for c in map(comparison, results) if "known" in c]
    own = [
        shown(of_corpus(runs, corpus, partial(keep_all, metric=metric)))
        for metric in ("intended", "unintended")
    ]
    return [
        SHORT.get(corpus, corpus),
        f"{sizes['queries']:,}, {sizes['candidates']:,}, {sizes['interactions']:,}",
        *own,
        f"{100 * fmean(known):.0f} %" if known else "",
        f"{min(queries):,} to {max(queries):,}",
        str(max(model["passes"] for model in models)),
        f"{plateaus.count(True)} of {len(models)}"
        + (f" ({unmeasured} not measured)" if unmeasured else ""),
    ]
