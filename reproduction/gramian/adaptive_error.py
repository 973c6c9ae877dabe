"""Adaptive sampling along the trajectories of `gramian_error`: cited by the papers, not measured.

Each trajectory is trained a second time with other estimators that look on. These change nothing,
so that the embeddings are the same and the errors may stand in one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reproduction.experiment import Preset, Runs, Training
from reproduction.gramian import methods
from reproduction.readings.gramian_errors import GramianErrors
from reproduction.results import Result

NAME = "sampling, adaptive"
# Measured again beside it: its errors are the same in both trainings.
LINEAR = "sampling, linear"
SUFFIX = ", adaptive sampling"


def with_adaptive(preset: Preset) -> Preset:
    """Return the preset with a second training of each trajectory, for adaptive sampling."""
    return replace(preset, trainings=(*preset.trainings, *map(_second, preset.trainings)))


def trajectories_of(runs: Runs) -> list[str]:
    """Return the labels of the trajectories, each once."""
    return [label for label in runs.labels if not label.endswith(SUFFIX)]


def adaptive_of(runs: Runs, label: str) -> list[Result]:
    """Return the results with adaptive sampling along a trajectory; none where it was not run."""
    second = label + SUFFIX
    return runs.of(second) if second in runs.labels else []


def _second(training: Training) -> Training:
    (reading,) = training.readings
    assert isinstance(reading, GramianErrors)
    estimators = {
        f"{name} | {size}": methods.looking_on(table, size)
        for size in _sizes(tuple(reading.estimators))
        for name, table in (
            (NAME, methods.sampling("adaptive")),
            (LINEAR, methods.sampling("linear")),
        )
    }
    own = replace(reading, estimators=estimators)
    return replace(training, label=training.label + SUFFIX, readings=(own,))


def _sizes(names: Sequence[str]) -> list[int]:
    return sorted({int(name.partition(" | ")[2]) for name in names})
