"""The length of training compared with [BC]'s budget, and which models reached a plateau."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evergram.lineage.lineage import Lineage
from evergram.training.recipe import Recipe
from reproduction.comparison.settings import METHODS, REFERENCE, Run, epochs_of

# A plateau is a gain below PLATEAU over this last share of the epochs.
LAST = 0.2
PLATEAU = 0.01


@dataclass(frozen=True)
class Budget:
    """The length of a training."""

    epochs: int  # passes over the pairs, or as many random draws
    batch_size: int  # pairs per step
    # Whether the last, smaller batch of an epoch is used, as in [BC]'s code.
    short_batch: bool = True

    def steps(self, pairs: int) -> int:
        """Return the number of steps for this number of pairs."""
        full, rest = divmod(pairs, min(self.batch_size, pairs))
        return self.epochs * (full + (self.short_batch and rest > 0))


# [BC]'s budget from scratch: 500 epochs, each with as many draws as edges, in batches of 2,048.
PAPER = Budget(500, 2048)


@dataclass(frozen=True)
class TrainingLength:
    """The length of a model's training."""

    passes: int  # passes over its pairs
    # Relative to the reference budget on the same pairs.
    share_of_passes: float
    share_of_steps: float
    # Relative increase of the best selection metric over the last fifth of the epochs; None if it
    # was not measured.
    last_gain: float | None

    @property
    def on_plateau(self) -> bool | None:
        """Whether the metric gained less than 1 % over the last fifth; None if not measured."""
        return None if self.last_gain is None else self.last_gain < PLATEAU


def training_length(
    own: Budget,
    reference: Budget,
    pairs: int,
    history: Sequence[Mapping[str, float]],
    metric: str,
    *,
    after: int = 0,
) -> TrainingLength:
    """Return the length of a model's training, relative to a reference budget.

    Args:
        own: the model's epochs and batch size.
        pairs: number of pairs in an epoch.
        history: one entry per evaluation, with `epoch` and the metric.
        after: only epochs after this one could be selected.
    """
    return TrainingLength(
        own.epochs,
        own.epochs / reference.epochs,
        own.steps(pairs) / reference.steps(pairs),
        last_gain(history, metric, own.epochs, after=after),
    )


def last_gain(
    history: Sequence[Mapping[str, float]], metric: str, epochs: int, *, after: int = 0
) -> float | None:
    """Return the relative increase of the metric's best value over the last fifth of the epochs.

    Returns: (best of all − best before) / best before; None without an evaluation both in and
        before the last fifth, or if the values are not positive and finite.
    """
    start = (1 - LAST) * epochs
    chosen = [(h["epoch"], h[metric]) for h in history if h["epoch"] > after and metric in h]
    before = [value for epoch, value in chosen if epoch <= start]
    last = [value for epoch, value in chosen if epoch > start]
    if not before or not last or not all(math.isfinite(value) for value in before + last):
        return None
    best = max(before)
    return max(0.0, max(last) - best) / best if best > 0 else None


def trained_models(run: Run, lineage: Lineage, recipe: Recipe) -> dict[int, dict[str, Any]]:
    """Return the length of training by version, for the models that the run trained itself.

    M_0 counts as Keep-All's. Versions that reuse another model, and runs that use Keep-All's
    models, are left out.

    Args:
        recipe: the recipe of the run's method.
    Returns: the fields of `TrainingLength` and `on_plateau`, by version.
    """
    if run.shares_models or METHODS[run.method].start == "frozen":
        return {}
    reference = replace(PAPER, epochs=epochs_of(run.method, PAPER.epochs))
    lengths = {}
    for manifest in lineage.versions[0 if run.method == REFERENCE else 1 :]:
        report = lineage.metrics(manifest.version)
        training = report["training"]
        length = training_length(
            Budget(training["epochs"], training["batch_size"], not recipe.training.fills_batches),
            reference,
            report["data"]["interactions"],
            training["history"],
            recipe.training.metric,
            after=getattr(recipe.upgrade, "select_after", 0),
        )
        lengths[manifest.version] = {**asdict(length), "on_plateau": length.on_plateau}
    return lengths
