"""How long a first training takes, roughly, before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from evergram.data.split import Split
from evergram.training.monitors.evaluation_work import FREE, SELECTING, distinct
from evergram.training.recipe import Recipe
from evergram.training.recipe.automatic import batch_size_of

# Seconds of one core, on the machine of docs/training.md: for a pair and a dimension in an epoch,
# for a step over a batch, and for a multiply-add of a ranking.
PAIR, STEP, RANKED = 4e-8, 3e-3, 3.5e-11
# Epochs until patience ends most trainings.
SWEEPS, EPOCHS = 25, 50


@dataclass(frozen=True)
class ExpectedTime:
    """Seconds of a first training.

    Args:
        pilots: of the short trainings that choose settings, 0 without them.
        training: of the one that follows.
    """

    pilots: float
    training: float

    @property
    def total(self) -> float:
        return self.pilots + self.training

    def left(self, share: float, seconds: float) -> float:
        """Return the seconds that are left after a share of the pilots took so many seconds."""
        faster = seconds / max(1e-9, share * self.pilots)
        return faster * ((1 - share) * self.pilots + self.training)


def epoch_seconds(recipe: Recipe, split: Split, version: int) -> tuple[float, float]:
    """Return the seconds of an epoch and of its evaluation."""
    dim, pairs = recipe.model.dim_of(version), len(split.training)
    steps = 1 if recipe.training.sweeps else pairs / batch_size_of(recipe, split.training)
    work = distinct(split.selection.query) * len(split.training.candidates) * (dim + SELECTING)
    return PAIR * pairs * dim + STEP * steps, RANKED * min(work, FREE)


def in_words(seconds: float) -> str:
    """Return a rough number of seconds, minutes or hours."""
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.0f} {unit}"
    rounded = float(f"{seconds:.1g}")
    return f"about {rounded:.0f} seconds" if rounded >= 1.5 else "about a second"
