"""The program of [BC]'s experiments: compare methods over several versions, and return JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from evergram import Corpus, Lineage, load_corpus
from evergram.training import Progress
from reproduction.comparison.compare import compare
from reproduction.comparison.settings import REFERENCE, Comparison
from reproduction.comparison.summary import COLUMNS


def compare_methods(
    comparison: Comparison, progress: Progress, device: str, folder: Path
) -> dict[str, Any]:
    """Run a comparison with its recipe's seed only, and return its measurements.

    An interrupted comparison resumes in the folder, version by version.

    Returns: `comparison`, with `methods` (the columns of [BC] Table 3, also by version), `sweep`
        (the columns by method and λ), `trained` (the length of training by run and version),
        `keep_all`, `known` (the share of the last version's objects that version 0 can embed),
        `queries` (number of test queries per version), `tasks`, `left_out`.
    Raises: as `compare`.
    """
    recipe = comparison.base
    corpus = load_corpus(recipe)
    out = folder / "comparison"
    results = compare(comparison, out, corpus, device=device, progress=progress, fresh=True)
    lineage = Lineage.open(out / f"seed-{recipe.seed}" / REFERENCE)
    methods = {
        row["method"]: {
            **_columns(row),
            "over_time": _by_version(results["over_time"][row["method"]]),
            "by_task": _by_version(results["by_task"][row["method"]]),
        }
        for row in results["table"]
    }
    sweep = {
        method: {f"{row['lambda']:g}": _columns(row) for row in rows}
        for method, rows in results["by_lambda"].items()
    }
    kept = results["keep_all"]
    return {
        "comparison": {
            "methods": methods,
            "sweep": sweep,
            "trained": {
                name: {str(k): model for k, model in run["trained"].items()}
                for name, run in results["runs"][recipe.seed].items()
            },
            "keep_all": {name: _number(kept[name]) for name in ("intended", "unintended")},
            "known": min(results["runs"][recipe.seed][REFERENCE]["known"].values()),
            "times": results["times"],
            "lambda": results["lambda"],
            "protocol": results["protocol"],
            "queries": {
                str(m.version): lineage.metrics(m.version)["data"]["test_queries"]
                for m in lineage.versions
            },
            "sizes": sizes(corpus),
            "tasks": results["tasks"],
            "left_out": results["left_out"],
        }
    }


def sizes(corpus: Corpus) -> dict[str, Any]:
    """Return the numbers of queries, candidates and interactions in a corpus, and the number of
    keys in use for each candidate feature."""
    features = corpus.candidates.features
    keys = {name: len(torch.unique(feature.indices)) for name, feature in features.items()}
    return {
        "queries": len(corpus.queries),
        "candidates": len(corpus.candidates),
        "interactions": len(corpus),
        "keys": keys,
    }


def _columns(row: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: _number(row[name]) for name in COLUMNS}


def _number(spread: Mapping[str, Any] | None) -> float | None:
    """Return the mean of a number over seeds, or None if it was not measured."""
    return None if spread is None else float(spread["mean"])


def _by_version(rows: Mapping[str, Mapping[Any, Any]]) -> dict[str, dict[str, float | None]]:
    return {name: {str(k): _number(v) for k, v in by.items()} for name, by in rows.items()}
