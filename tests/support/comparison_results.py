"""Two seeds and two methods with numbers that are easy to sum."""

from __future__ import annotations

from typing import Any

from evergram.evaluation.reports.comparison_report import summarise


def run(intended: float, auc: float, error: float) -> dict[str, Any]:
    """Two versions; two consumers a task, around `auc`."""
    return {
        "intended": {0: 0.2, 1: intended},
        "auc": {"activity": {1: [auc - 0.1, auc + 0.1]}, "pair-rating": {1: [auc, auc]}},
        "error": {0: 0.0, 1: error},
        "seconds": 2.0,
        "trained": {},
    }


def length(gain: float | None, passes: int = 30) -> dict[str, Any]:
    """How long a model was trained, with steps that are four times as large as the reference's."""
    return {
        "passes": passes,
        "share_of_passes": passes / 500,
        "share_of_steps": passes / 2000,
        "last_gain": gain,
        "on_plateau": None if gain is None else gain < 0.01,
    }


MEASURED: dict[int, dict[str, Any]] = {
    0: {"keep-all": run(0.2, 0.8, 0.0), "new": run(0.1, 0.6, 1.0), "new-1": run(0.2, 0.4, 3.0)},
    1: {"keep-all": run(0.3, 0.8, 0.0), "new": run(0.3, 0.4, 2.0), "new-1": run(0.3, 0.4, 3.0)},
}


def results(measured: dict[int, Any]) -> dict[str, Any]:
    """The results of a comparison with these measures."""
    return {
        "name": "planted",
        "protocol": "strict",
        "metric": "recall@50",
        "lambda": 16.0,
        "unit": "paper",
        "times": [0.5, 0.6],
        "seeds": list(measured),
        "reference_budget": {"epochs": 500, "batch_size": 2048},
        "tasks": {"activity": {}, "pair-rating": {}},
        "left_out": ["Something is left out."],
        **summarise(measured, ["keep-all", "new"], {"new": {1.0: "new-1", 16.0: "new"}}),
        "runs": measured,
    }
