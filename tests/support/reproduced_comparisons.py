"""Results of comparisons that never ran, with [BC]'s own figures or any others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproduction.bc.methods import ALIGNER, JOINT, NAMES, POST_CLOSED, PRINTED_COLUMNS
from reproduction.printed import printed
from reproduction.results import Result
from tests.support.reproduction_results import result

TIMES = (0.5, 0.6, 0.7)
Figures = Mapping[str, Mapping[str, float]]


def theirs(corpus: str) -> dict[str, dict[str, float]]:
    """Return [BC] Table 3 by our names; our two methods have BC-Aligner's figures."""
    rows = printed("bc")["Table 3"]["rows"][corpus]
    figures = {
        method: {ours: rows[name][key] for ours, key in PRINTED_COLUMNS.items()}
        for method, name in NAMES.items()
        if name in rows
    }
    return figures | dict.fromkeys(set(NAMES) - set(figures), figures[ALIGNER])


def comparison_result(
    label: str, figures: Figures, seed: int = 0, *, strengths: tuple[float, ...] = (), **more: Any
) -> Result:
    """Return a result with these figures by method and column; errors grow evenly over time, and
    a sweep has them all at each λ.

    Args:
        more: replaces parts of the comparison.
    """
    methods = {
        method: {
            **columns,
            "error_after_first": columns["error"],
            "over_time": {
                "intended": dict.fromkeys("012", columns["intended"]),
                "unintended": {"2": columns["unintended"]},
                "error": {str(k): k * columns["error"] for k in range(3)},
            },
            "by_task": {"activity": {"2": columns["unintended"]}},
        }
        for method, columns in figures.items()
    }
    model = {"passes": 20, "share_of_passes": 0.04, "share_of_steps": 0.01, "last_gain": 0.0}
    sweep = {method: {f"{w:g}": figures[method] for w in strengths} for method in JOINT}
    measured = {
        "methods": methods,
        "sweep": sweep if strengths else {},
        "trained": {
            name: {} if name == POST_CLOSED else {"1": {**model, "on_plateau": True}}
            for name in methods
        },
        "keep_all": {"intended": 0.1, "unintended": 0.7},
        "times": list(TIMES),
        "lambda": 16.0,
        "protocol": "strict",
        "queries": {"0": 3000, "1": 2500, "2": 4000},
        "sizes": {"queries": 5000, "candidates": 400, "interactions": 90_000, "keys": {}},
        "tasks": {},
        "left_out": [],
        "closed_forms": {"2": 1e-12},
    }
    return result(label, seed, comparison=measured | more)
