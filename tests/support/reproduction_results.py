"""Results of trainings that never ran, for tests of what is made of results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproduction.experiment import Runs, Training
from reproduction.results import Result

SIZES = {"queries": 5, "candidates": 4, "training": 9, "validation": 2, "test": 2}

PRINTED = Path(__file__).parents[1] / "reproduction" / "printed.json"


def printed(table: str) -> dict[str, Any]:
    """Return the figures of a table as a paper prints it: of "G2 Table 3" and "G2 Table 4" MAP@10
    by rate and method, of "BC Table 3" columns by corpus and method."""
    values: dict[str, Any] = json.loads(PRINTED.read_text())[table]
    return values


def result(label: str, seed: int = 0, **series: Any) -> Result:
    """Return a result with these series."""
    return Result(
        experiment="gramian/made-up",
        preset="small",
        label=label,
        seed=seed,
        key="0" * 12,
        settings={},
        machine={"processor": "made up", "cores": 2, "threads": 1, "system": "Linux"},
        versions={"evergram": "0"},
        date="2026-01-01",
        seconds=2.0,
        cpu_seconds=60.0,
        series={"data": SIZES, **series},
    )


def runs_of(results: Sequence[Result]) -> Runs:
    """Return the runs of results, their labels in order of appearance."""
    labels = dict.fromkeys(r.label for r in results)
    return Runs([Training(label, Path("recipe.toml")) for label in labels], results)


def map_result(label: str, validation: Sequence[float], seed: int = 0, **more: Any) -> Result:
    """Return a result whose MAP@10 on validation took these values, one a CPU second."""
    count = len(validation)
    series = {
        "step": list(range(1, count + 1)),
        "epoch": list(range(1, count + 1)),
        "seconds": [float(i + 1) for i in range(count)],
        "cpu_seconds": [float(i + 1) for i in range(count)],
        "training": list(more.pop("training", validation)),
        "validation": list(validation),
        "test": {"model": validation[-1], "popularity": 0.01},
        "best_epoch": count,
    }
    return result(label, seed, map=series, **more)
