"""Summarise the measures of all seeds and runs as the numbers of [BC]'s table and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evergram.evaluation.degradation import Degradation, degradation, mean

COLUMNS = ("intended", "unintended", "total", "error", "error_after_first")


def summarise(
    measured: Mapping[int, Mapping[str, Mapping[str, Any]]],
    methods: Sequence[str],
    sweep: Mapping[str, Mapping[float, str]],
) -> dict[str, Any]:
    """Return means and deviations over seeds of the three metrics.

    Args:
        measured: by seed and run, "keep-all" among them: `intended` by version; `auc` of each
            consumer by task and version; `error` by version; and `seconds`.
        methods: the rows of the table.
        sweep: for each method of the sweep, the name of the run of each λ.
    Returns: `keep_all` (its absolute performances), `table`, `over_time`, `by_task`, `by_lambda`.
        A number is {"mean", "deviation", "each"} over seeds, with the deviation None for one seed.
        It is None if it is of consumer tasks and none could be scored.
    """
    judged = {
        name: [_degradation(runs[name], runs["keep-all"]) for runs in measured.values()]
        for name in next(iter(measured.values()))
    }
    reference = [runs["keep-all"] for runs in measured.values()]
    has_tasks = bool(reference[0]["auc"])
    return {
        "keep_all": {
            "intended": spread([mean(list(r["intended"].values())) for r in reference]),
            "unintended": spread(
                [mean([mean(list(by.values())) for by in _aucs(r).values()]) for r in reference]
            )
            if has_tasks
            else None,
        },
        "table": [
            {
                "method": name,
                **_row(judged[name]),
                "seconds": spread([runs[name]["seconds"] for runs in measured.values()]),
            }
            for name in methods
        ],
        "over_time": {
            name: {
                key: _by_version([getattr(d, f"{key}_at") for d in judged[name]])
                for key in ("intended", "unintended", "error")
            }
            for name in methods
        },
        "by_task": {
            name: {
                task: _by_version([d.by_task[task] for d in judged[name]])
                for task in judged[name][0].by_task
            }
            for name in methods
        },
        "by_lambda": {
            name: [{"lambda": weight, **_row(judged[run])} for weight, run in runs.items()]
            for name, runs in sweep.items()
        },
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean over seeds, the sample's deviation, and each value."""
    middle = mean(values)
    squares = sum((v - middle) ** 2 for v in values)
    deviation = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else None
    return {"mean": middle, "deviation": deviation, "each": list(values)}


def _degradation(run: Mapping[str, Any], reference: Mapping[str, Any]) -> Degradation:
    return degradation(
        run["intended"], _aucs(run), run["error"], reference["intended"], _aucs(reference)
    )


def _aucs(run: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Return the mean over consumers, by task and version."""
    return {task: {k: mean(each) for k, each in by.items()} for task, by in run["auc"].items()}


def _row(degradations: Sequence[Degradation]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key in COLUMNS:
        values = [getattr(d, key) for d in degradations]
        row[key] = None if None in values else spread(values)
    return row


def _by_version(by_seed: Sequence[Mapping[int, float]]) -> dict[int, dict[str, Any]]:
    return {k: spread([by[k] for by in by_seed]) for k in by_seed[0]}
