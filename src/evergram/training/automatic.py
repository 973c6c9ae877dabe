"""λ and l2 that scale with the data, where a recipe has "auto"."""

from __future__ import annotations

from dataclasses import dataclass

from evergram.data.corpus import Corpus
from evergram.training.recipe import Recipe


@dataclass(frozen=True)
class Strengths:
    """λ of each measure, and the weight of squared norms."""

    penalty: list[float]
    l2: float


def strengths_of(recipe: Recipe, corpus: Corpus) -> Strengths:
    """What a recipe's `task.penalty` and `task.l2` are on this corpus."""
    task = recipe.task
    penalty = [30.0] if task.penalty == "auto" else list(task.penalty)
    l2 = 0.02 if task.l2 == "auto" else task.l2
    return Strengths(penalty, l2)
