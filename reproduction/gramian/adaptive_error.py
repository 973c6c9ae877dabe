"""Adaptive sampling along the trajectories of `gramian_error`: cited by the papers, not measured.

Each trajectory is trained a second time with other estimators that look on. These change nothing,
so that the embeddings are the same and the errors may stand in one table. On a small corpus only
the smaller batch has it: the pool of the larger one would hold more than a pass over all pages.
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


def with_adaptive(preset: Preset, sizes: Sequence[int]) -> Preset:
    """Return the preset with a second training of each trajectory, for adaptive sampling with these
    batch sizes."""
    second = (_second(training, sizes) for training in preset.trainings)
    return replace(preset, trainings=(*preset.trainings, *second))


def trajectories_of(runs: Runs) -> list[str]:
    """Return the labels of the trajectories, each once."""
    return [label for label in runs.labels if not label.endswith(SUFFIX)]


def measured_in(runs: Runs, label: str, name: str, size: int) -> list[Result]:
    """Return the results in which an estimator was measured along a trajectory; none where adaptive
    sampling was not run with this batch size."""
    if name != NAME:
        return runs.of(label)
    second = label + SUFFIX
    results = runs.of(second) if second in runs.labels else []
    return [r for r in results if f"{NAME} | {size}" in r.series["errors"]["gramian"]]


def _second(training: Training, sizes: Sequence[int]) -> Training:
    (reading,) = training.readings
    assert isinstance(reading, GramianErrors)
    estimators = {
        f"{name} | {size}": methods.looking_on(table, size)
        for size in sizes
        for name, table in (
            (NAME, methods.sampling("adaptive")),
            (LINEAR, methods.sampling("linear")),
        )
    }
    own = replace(reading, estimators=estimators)
    return replace(training, label=training.label + SUFFIX, readings=(own,))
