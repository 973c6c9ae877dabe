"""Errors of Gramian estimators on one trajectory. [G1] Fig. 2, 3, 7; [G2] Fig. 2, 6, 8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from evergram import Recipe
from evergram.data import Split
from evergram.training import Tracking, Trained, Trainer
from reproduction.readings.reading import Reading, Watch
from reproduction.recipe import PaperRecipe


@dataclass(frozen=True)
class GramianErrors(Reading):
    """‖Ĝ − G‖ / ‖G‖ and ‖∇ĝ − ∇g‖ / ‖∇g‖ of each estimator, averaged over both sides.

    The estimators only observe the training: each draws its own entities and sees the same
    parameters."""

    name: ClassVar[str] = "errors"
    # The table [gramian] of each, by name; `sampler` and `batch_size` determine the entities it
    # uses per step.
    estimators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    every: int = 20  # steps between two measurements; each embeds all entities

    def watch(self, recipe: Recipe, split: Split) -> Watch:
        return _ErrorsWatch(self, recipe, split)


class _ErrorsWatch(Watch):
    def __init__(self, reading: GramianErrors, recipe: Recipe, split: Split) -> None:
        values = recipe.model_dump()
        rivals = {
            name: PaperRecipe.stored({**values, "gramian": {"sampler": "linear", **table}}).gramian
            for name, table in reading.estimators.items()
        }
        corpus = split.training
        counts = {side: corpus.counts(side) for side in ("query", "candidate")}
        self.tracking = Tracking(rivals, counts, every=reading.every, seed=recipe.seed)

    def on_step(self, run: Trainer, batch: Any, objective: Tensor) -> None:
        self.tracking.on_step(run, batch, objective)

    def read(self, trained: Trained) -> dict[str, Any]:
        return {
            "step": self.tracking.steps,
            "gramian": self.tracking.gramian_errors,
            "gradient": self.tracking.gradient_errors,
        }
