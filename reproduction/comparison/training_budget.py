"""How long models were trained, compared with [BC]'s budget, and which ended on a plateau."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evergram.lineage.lineage import Lineage
from evergram.training.recipe import Recipe
from reproduction.comparison.settings import METHODS, REFERENCE, Run, epochs_of

# Of all epochs, the last share that a plateau is looked for in, and the gain below which it is one.
LAST = 0.2
PLATEAU = 0.01


@dataclass(frozen=True)
class Budget:
    """The length of a training.

    Args:
        epochs: passes over the pairs, or as many draws of a pair as there are pairs.
        batch_size: pairs of a step.
        short_batch: whether pairs that do not fill a batch are a step of their own, as in [BC]'s
            code, whose loader is as long as there are edges.
    """

    epochs: int
    batch_size: int
    short_batch: bool = True

    def steps(self, pairs: int) -> int:
        """Return the number of steps on so many pairs."""
        full, rest = divmod(pairs, min(self.batch_size, pairs))
        return self.epochs * (full + (self.short_batch and rest > 0))


# [BC]'s from scratch: 500 epochs of as many draws as there are edges, 2,048 a step.
PAPER = Budget(500, 2048)


@dataclass(frozen=True)
class TrainingLength:
    """How long a model was trained.

    Args:
        passes: over its pairs.
        share_of_passes, share_of_steps: of the reference budget's on the same pairs.
        last_gain: by how much the best selection metric rose over the last fifth of the epochs,
            relative; None if it was not measured.
    """

    passes: int
    share_of_passes: float
    share_of_steps: float
    last_gain: float | None

    @property
    def on_plateau(self) -> bool | None:
        """Whether the metric gained less than 1 % over the last fifth; None if that was not
        measured."""
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
    """Return how long a model was trained, beside a reference budget.

    Args:
        own: the epochs that were trained, and their batch size.
        pairs: that an epoch passes over.
        history: one entry an evaluation, with `epoch` and the metric.
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
    """Return by how much the best value of the metric rose over the last fifth of the epochs.

    Returns: (best of all − best before) / best before; None without an evaluation in the last
        fifth, one before it, or a positive finite number to compare with.
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
    """Return, by version, how long each model was trained that the run has trained itself.

    M_0 counts as Keep-All's. A version without a history, whose model is another one's, is left
    out; so are those of a run that uses Keep-All's models.

    Args:
        recipe: of the run's method.
    Returns: the fields of `TrainingLength`, and `on_plateau`, of each.
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
