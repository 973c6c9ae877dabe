"""What has no least-squares solution is refused before its training starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.collectives import Collectives
from evergram.errors import RecipeError
from evergram.training.recipe.fit_settings import FitSettings

if TYPE_CHECKING:
    from evergram.training.build import Companions


def refuse_unsweepable(
    settings: FitSettings, companions: Companions, collectives: Collectives
) -> None:
    """Refuse a training that alternating least squares cannot do. Raises: RecipeError."""
    reason = why_unsweepable(settings, companions, collectives)
    if reason:
        raise RecipeError(
            f"training.optimizer = 'als' {reason}, or set training.optimizer = 'adaptive'."
        )


def why_unsweepable(settings: FitSettings, companions: Companions, collectives: Collectives) -> str:
    """Return what forbids it and the remedy, as the middle of a sentence; empty if nothing
    does."""
    model, task = settings.model, settings.task
    loss = getattr(task.chosen, "loss", None)
    if model.kind != "factorization":
        return f"solves for model.kind = 'factorization', and it is {model.kind!r}; change it"
    if model.normalize:
        return "has no solution for rows of unit norm; set model.normalize = false"
    if getattr(model.chosen, "hash_rows", None) is not None:
        return "solves for a row of each id; leave model.hash_rows out"
    if task.kind != "pointwise" or loss != "squared":
        shown = f"task.kind = {task.kind!r}" + ("" if loss is None else f" with loss {loss!r}")
        return (
            f"needs squares, and the objective is {shown}; set task.kind = 'pointwise' and "
            "task.loss = 'squared'"
        )
    if task.drawn != "examples":
        return f"counts all pairs alike, and task.positives is {task.drawn!r}; leave it out"
    if companions.joint is not None:
        return (
            "trains no backward transform beside the model; set upgrade.fit = 'posthoc', which "
            "fits it afterwards"
        )
    if settings.training.tables in ("mapped", "sharded"):
        return (
            "moves every row of tables in memory, and training.tables is "
            f"{settings.training.tables!r}; set training.tables = 'memory'"
        )
    if collectives.size > 1:
        return f"runs in one process, and there are {collectives.size}; start one"
    return ""
