"""Compute the three metrics of [BC] §4: the cost of a method compared with keeping all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ByVersion = Mapping[int, float]
ByTask = Mapping[str, ByVersion]


@dataclass(frozen=True)
class Degradation:
    """The metrics of one run; 1 and 2 are percentages of Keep-All's, and nearer to zero is better.

    Args:
        intended: metric 1, after the mean over all versions including 0.
        unintended: metric 2, after the means over each task's test versions, then over tasks;
            None without tasks.
        error: metric 3, mean ‖z̃_0 − z_0‖₂ over all versions including 0.
        error_after_first: the same over versions 1 and later.
        intended_at, unintended_at, error_at: the same by version; tasks are averaged first.
        by_task: metric 2 of each task by version.
    """

    intended: float
    unintended: float | None
    error: float
    error_after_first: float | None
    intended_at: dict[int, float]
    unintended_at: dict[int, float]
    error_at: dict[int, float]
    by_task: dict[str, dict[int, float]]

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
    """Return the metrics of performances by version, and by task and version.

    Keep-All's have the same keys.

    Source: [BC] §4, §5.1.5 and Table 3's caption: degradation is taken after averages.
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
