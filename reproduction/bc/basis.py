"""What the figures of a comparison rest on: its size, its test queries, its length of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import stdev
from typing import Any

from reproduction.bc.columns import comparison, keep_all, of_corpus, value
from reproduction.bc.methods import NAMES
from reproduction.experiment import Runs, Table
from reproduction.intervals import shown
from reproduction.results import Result

HEADER = (
    "",
    "seeds",
    "users, items, interactions",
    "Keep-All: recall@50, ROC-AUC",
    "test queries of a version",
    "largest deviation of (1) over seeds",
    "passes, of theirs",
    "steps, of theirs",
    "models that end on a plateau",
)


def table(runs: Runs) -> Table:
    """Return a row for each corpus; shares are of [BC]'s 500 passes in batches of 2,048."""
    return Table("What the figures rest on", HEADER, [_row(runs, c) for c in runs.labels])


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
    own = [
        shown(of_corpus(runs, corpus, partial(keep_all, metric=metric)))
        for metric in ("intended", "unintended")
    ]
    return [
        corpus,
        str(len(results)),
        f"{sizes['queries']:,}, {sizes['candidates']:,}, {sizes['interactions']:,}",
        ", ".join(own),
        f"{min(queries):,} to {max(queries):,}",
        _largest_deviation(runs, corpus),
        f"{max(model['passes'] for model in models)}, {_share(models, 'share_of_passes')}",
        _share(models, "share_of_steps"),
        f"{plateaus.count(True)} of {len(models)}"
        + (f" ({unmeasured} not measured)" if unmeasured else ""),
    ]


def _share(models: Sequence[Mapping[str, Any]], key: str) -> str:
    low, high = (f"{100 * f(m[key] for m in models):.2g}" for f in (min, max))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _largest_deviation(runs: Runs, corpus: str) -> str:
    """Return the largest of all methods' deviations of (1), with its method."""
    results = runs.of(corpus)
    if len(results) < 2:
        return "–"
    by_method = {
        method: stdev(of_corpus(runs, corpus, partial(value, method=method, column="intended")))
        for method in comparison(results[0])["methods"]
    }
    method = max(by_method, key=by_method.__getitem__)
    return f"{by_method[method]:.2f} points ({NAMES[method]})"
