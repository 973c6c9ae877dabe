"""The three metrics of [BC] §4: the cost of a method compared with keeping all models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reproduction.comparison.settings import REFERENCE

ByVersion = Mapping[int, float]
ByTask = Mapping[str, ByVersion]
COLUMNS = ("intended", "unintended", "total", "error", "error_after_first")


@dataclass(frozen=True)
class Degradation:
    """The metrics of one run; 1 and 2 are in percent of Keep-All's, and closer to 0 is better."""

    intended: float  # metric 1, from means over all versions including 0
    # Metric 2, from means over each task's test versions, then over tasks; None without tasks.
    unintended: float | None
    error: float  # metric 3, mean ‖z̃_0 − z_0‖₂ over all versions including 0
    error_after_first: float | None  # the same over versions 1 and later
    # Metrics 1, 2 and 3 by version; tasks are averaged first.
    intended_at: dict[int, float]
    unintended_at: dict[int, float]
    error_at: dict[int, float]
    by_task: dict[str, dict[int, float]]  # metric 2 by task and version

    @property
    def total(self) -> float | None:
        """(1) + (2)."""
        return None if self.unintended is None else self.intended + self.unintended


def degradation(
    intended: ByVersion,
    unintended: ByTask,
    error: ByVersion,
    keep_all_intended: ByVersion,
    keep_all_unintended: ByTask,
) -> Degradation:
    """Return the metrics of a run, from its performance by version, and by task and version.

    Keep-All's performance must have the same keys.

    Source: [BC] §4, §5.1.5 and Table 3's caption: average first, then compute the degradation.
    """
    versions = sorted({k for by_version in unintended.values() for k in by_version})

    def at(tasks: ByTask, k: int) -> float:
        return mean([by_version[k] for by_version in tasks.values() if k in by_version])

    def overall(tasks: ByTask) -> float:
        return mean([mean(list(by_version.values())) for by_version in tasks.values()])

    later = [value for k, value in error.items() if k]
    return Degradation(
        relative(mean(list(intended.values())), mean([keep_all_intended[k] for k in intended])),
        relative(overall(unintended), overall(keep_all_unintended)) if unintended else None,
        mean(list(error.values())),
        mean(later) if later else None,
        {k: relative(value, keep_all_intended[k]) for k, value in intended.items()},
        {k: relative(at(unintended, k), at(keep_all_unintended, k)) for k in versions},
        dict(error),
        {
            name: {k: relative(auc, keep_all_unintended[name][k]) for k, auc in by_version.items()}
            for name, by_version in unintended.items()
        },
    )


def relative(performance: float, reference: float) -> float:
    """Return 100 (P − P_KeepAll) / P_KeepAll; NaN if the reference is 0."""
    return 100 * (performance - reference) / reference if reference else float("nan")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def summarise(
    measured: Mapping[int, Mapping[str, Mapping[str, Any]]],
    methods: Sequence[str],
    sweep: Mapping[str, Mapping[float, str]],
) -> dict[str, Any]:
    """Return means and deviations of the three metrics over seeds.

    Args:
        measured: by seed and run (including "keep-all"): `intended` by version; `auc` of each
            consumer by task and version; `error` by version; and `seconds`.
        methods: the rows of the table.
        sweep: the run's name by method and λ.
    Returns: `keep_all` (its absolute performance), `table`, `over_time`, `by_task`, `by_lambda`.
        A number is {"mean", "deviation", "each"} over seeds; deviation is None for one seed. A
        number about consumer tasks is None if no task could be scored.
    """
    judged = {
        name: [_degradation(runs[name], runs[REFERENCE]) for runs in measured.values()]
        for name in next(iter(measured.values()))
    }
    reference = [runs[REFERENCE] for runs in measured.values()]
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
    """Return the mean over seeds, the sample deviation, and each value."""
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
