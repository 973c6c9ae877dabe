"""Check Gramian estimators, of which some are a user's: what `build` returns, and what they say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError, TrainingError
from evergram.gramian.estimator import GramianEstimator
from evergram.gramian.kinds import EstimatorSettings
from evergram.training.callbacks import Callback, Point
from evergram.training.step import Step

if TYPE_CHECKING:
    from evergram.training.loop import Trainer

# Steps of a run after each of which moments are looked at.
FIRST = 3
# Of the largest entry: what rounding may add to a symmetric matrix, or take from its diagonal.
ROUNDING = 1e-3
# What a slip in a settings class or an estimator raises while it is made.
SLIPS = (TypeError, AttributeError, NameError, ImportError)


def build_estimator(
    settings: EstimatorSettings,
    dim: int,
    measure: Tensor,
    factors: Tensor,
    file: Path | None = None,
) -> GramianEstimator:
    """Return `settings.build(…)`, which has the same arguments.

    Raises: RecipeError: it fails, or does not return an estimator with a float32 matrix [D, D + K].
    """
    name = f"{type(settings).__name__}.build"
    try:
        made = settings.build(dim, measure, factors, file)
    except SLIPS as error:
        raise RecipeError(
            f"{name}(dim, measure, factors, file) must return a GramianEstimator, and raises "
            f"{type(error).__name__}: {error}; correct the class (docs/extend/estimator.md)."
        ) from error
    if not isinstance(made, GramianEstimator):
        raise RecipeError(
            f"{name} returns {'None' if made is None else f'a {type(made).__name__}'}; it must "
            "return a GramianEstimator."
        )
    matrix, shape = getattr(made, "matrix", None), (dim, dim + factors.shape[1])
    # float32, unless a test of the mathematics asks torch for float64.
    kind = torch.get_default_dtype()
    if not isinstance(matrix, Tensor) or matrix.shape != shape or matrix.dtype != kind:
        has = "no" if matrix is None else f"{type(matrix).__name__} as its"
        if isinstance(matrix, Tensor):
            has = f"a {_words(matrix)}"
        raise RecipeError(
            f"{name} returns a {type(made).__name__} with {has} matrix; it must be float32 of "
            f"[D, D + K] = {list(shape)}: call super().__init__(dim, factors.shape[1]) first."
        )
    return made


NOT_FINITE = "is not finite"


class EstimatorChecks(Callback):
    """Raises TrainingError where an estimator's moment is not a Gramian, after each of a run's
    first steps, before the loss is wrong, and after each epoch."""

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        # Of several processes one alone must not end inside an epoch.
        looks = at.step <= FIRST and at.training.collectives.size == 1
        if looks and bool(torch.isfinite(objective)):
            refuse_wrong_moments(at.training)

    def on_epoch(self, run: Trainer, objective: float, last: bool) -> None:
        if math.isfinite(objective):
            refuse_wrong_moments(run.step)
            return
        # Either may have made the other so; the package's own only follow the embeddings.
        for side, estimator in _estimators(run.step):
            name, own = type(estimator).__name__, type(estimator).__module__
            finite = bool(torch.isfinite(estimator.moment().dense).all())
            if not finite and own.partition(".")[0] != "evergram":
                raise TrainingError(
                    f"The loss is {objective} in epoch {run.epoch}, and the {side} moment of "
                    f"{name} is not finite; correct its update, or train with another "
                    "gramian.kind to see whether the learning rates are too high."
                )


def refuse_wrong_moments(step: Step) -> None:
    """Raises: TrainingError: an estimator's moment is no float32 matrix [D, D + K], is not finite,
    or its Gramian is not symmetric or has a negative diagonal."""
    for side, estimator in _estimators(step):
        moment = estimator.moment().dense
        wrong = _wrong(moment, (estimator.dim, estimator.dim + step.factors[side].shape[1]))
        if wrong == NOT_FINITE and type(estimator).__module__.startswith("evergram."):
            raise TrainingError(
                f"The loss is not finite in the next step, as {side} embeddings have grown past "
                "float32; lower the learning rates of [training]."
            )
        if wrong:
            raise TrainingError(
                f"The {side} moment of {type(estimator).__name__} {wrong}; correct its update "
                "(docs/extend/estimator.md)."
            )


def _estimators(step: Step) -> Iterator[tuple[str, GramianEstimator]]:
    return ((side, each) for side in SIDES for each in step.estimators[side])


def _wrong(moment: Tensor, shape: tuple[int, int]) -> str:
    """Return what is wrong with a moment, as a predicate; "" if nothing is."""
    wide = moment.dtype == torch.float64 != torch.get_default_dtype()
    if moment.shape != shape or wide:
        return f"is {_words(moment)} and must be float32 {list(shape)}"
    if not bool(torch.isfinite(moment).all()):
        return NOT_FINITE
    square = moment[:, : len(moment)].float()
    slack = ROUNDING * float(square.abs().max())
    if float((square - square.T).abs().max()) > slack:
        return "is not symmetric, as a Gramian Σ p u ⊗ u is"
    if float(square.diagonal().min()) < -slack:
        return "has a negative diagonal, which a Gramian Σ p u ⊗ u never has"
    return ""


def _words(matrix: Tensor) -> str:
    return f"{str(matrix.dtype).removeprefix('torch.')} {list(matrix.shape)}"
