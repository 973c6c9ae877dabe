"""A user's estimator is checked: what its settings make, and what it says while it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support.gramian_population import DIM, FACTORS, SHARE
from torch import Tensor

from evergram.errors import RecipeError, TrainingError
from evergram.gramian.estimator import EntityBatch, GramianEstimator, batch_moment
from evergram.gramian.kinds import ESTIMATORS, EstimatorSettings
from evergram.releasing.upgrade import train
from evergram.training.monitors.estimator_checks import build_estimator
from evergram.training.recipe import Recipe


class Last(GramianEstimator):
    """The last batch, after `change` of its moment at the updates from `start` on."""

    change: Callable[[Tensor], Tensor] = staticmethod(lambda moment: moment)
    start = 0
    seen = 0

    def update(self, rows: EntityBatch) -> None:
        moment = batch_moment(rows)
        self.matrix = type(self).change(moment) if self.seen >= self.start else moment
        self.seen += 1


class Unready(Last):
    def __init__(self, dim: int, factors: int = 0) -> None:
        self.register_buffer("matrix", torch.zeros(dim, dim + factors))


class Wide(Last):
    def __init__(self, dim: int, factors: int = 0) -> None:
        super().__init__(dim, factors)
        self.matrix = self.matrix.double()


class LastSettings(EstimatorSettings):
    kind = "last"

    def build(self, dim: int, measure: Tensor, factors: Tensor, file: Any = None) -> Any:
        return Last(dim, factors.shape[1])


def settings_of(make: Callable[..., Any]) -> EstimatorSettings:
    class MineSettings(LastSettings):
        def build(self, *args: Any) -> Any:
            return make(*args)

    return MineSettings()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda *_: None, "returns None; it must return a GramianEstimator"),
        (lambda dim: Last(dim), "TypeError: "),
        (lambda dim, *_: Unready(dim), r"AttributeError: .*before Module\.__init__"),
        (lambda dim, _, f, __: Wide(dim, f.shape[1]), r"Wide with a float64 .*must be float32"),
        (lambda dim, *_: Last(dim + 1), r"must be float32 of \[D, D \+ K\]"),
    ],
)
def test_a_slip_in_build_is_one_sentence_that_names_the_class(
    make: Callable[..., Any], sentence: str
) -> None:
    with pytest.raises(RecipeError, match=rf"MineSettings\.build.*({sentence})"):
        build_estimator(settings_of(make), DIM, SHARE, FACTORS)


def trained(small: Recipe, monkeypatch: pytest.MonkeyPatch, change: Any, start: int = 0) -> None:
    monkeypatch.setitem(ESTIMATORS, "last", LastSettings)
    monkeypatch.setattr(Last, "change", staticmethod(change))
    monkeypatch.setattr(Last, "start", start)
    train(Recipe.of(small.model_dump(), ["gramian.kind=last"]), progress=False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m + torch.triu(torch.ones_like(m)), "is not symmetric"),
        (lambda m: -m, "has a negative diagonal"),
        (lambda m: m[:, :3], r"is float32 \[8, 3\] and must be float32 \[8, 8\]"),
    ],
)
def test_a_moment_that_is_no_gramian_ends_the_run_at_its_start(
    small: Recipe, monkeypatch: pytest.MonkeyPatch, change: Any, sentence: str
) -> None:
    with pytest.raises(TrainingError, match=f"The query moment of Last {sentence}"):
        trained(small, monkeypatch, change)


def test_a_later_slip_is_seen_at_the_epochs_end_and_nan_names_the_estimator(
    small: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrainingError, match="The query moment of Last has a negative diagonal"):
        trained(small, monkeypatch, lambda m: -m, start=8)
    with pytest.raises(TrainingError, match=r"loss is nan .* moment of Last is not finite"):
        trained(small, monkeypatch, lambda m: m * torch.nan, start=8)
