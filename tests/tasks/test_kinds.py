"""Settings of tasks: the targets that they ask for, and the corpora that they refuse."""

from __future__ import annotations

import pyarrow as pa
import pytest
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.errors import DataError, RecipeError
from evergram.tasks.clustered_softmax import ClusteredSoftmax
from evergram.tasks.kinds import (
    ClusteredSoftmaxSettings,
    PointwiseSettings,
    SecondOrderSettings,
    SoftmaxSettings,
    SphericalSettings,
)
from evergram.tasks.pointwise import Pointwise
from evergram.tasks.pointwise_losses import LOSSES
from evergram.tasks.second_order import SecondOrderSoftmax
from evergram.tasks.softmax import Softmax
from evergram.tasks.spherical import Spherical
from evergram.training.recipe import Recipe

STARS = Corpus.from_tables(
    pa.table({"query": [1, 2, 3], "candidate": [1, 1, 2], "value": [0.5, 4.0, 1.0]})
)


def test_a_logistic_loss_of_values_needs_them_between_0_and_1() -> None:
    settings = PointwiseSettings(loss="logistic", target="value")
    assert settings.pair_target == "value"
    with pytest.raises(DataError, match=r"between 0 and 1, and these range from 0\.5 to 4\.0; set"):
        settings.build(STARS)
    shares = Corpus.from_tables(
        pa.table({"query": [1, 2], "candidate": [1, 1], "value": [0.0, 1.0]})
    )
    settings.build(shares)
    with pytest.raises(DataError, match=r"The hinge loss needs values between 0 and 1, and"):
        PointwiseSettings(loss="hinge", target="value").build(STARS)
    PointwiseSettings(target="value").build(STARS)
    PointwiseSettings(loss="logistic").build(STARS)


def test_settings_reach_the_task() -> None:
    softmax = SoftmaxSettings(temperature=0.5).build(STARS)
    assert isinstance(softmax, Softmax)
    assert softmax.temperature == 0.5
    assert len(softmax.frequency.gap) == 2  # one for each candidate
    spherical = SphericalSettings(temperature=2.0, form="square").build(STARS)
    assert isinstance(spherical, Spherical)
    assert (spherical.temperature, spherical.form) == (2.0, "square")
    clustered = ClusteredSoftmaxSettings(temperature=0.1, clusters=8, cluster_rate=0.2).build(STARS)
    assert isinstance(clustered, ClusteredSoftmax)
    assert (clustered.size, clustered.temperature, clustered.number) == (2, 0.1, 8)
    assert clustered.rate == 0.2
    second = SecondOrderSettings(temperature=2.0, centred=False).build(STARS)
    assert isinstance(second, SecondOrderSoftmax)
    assert (second.temperature, second.centred) == (2.0, False)


def test_a_loss_of_ones_own_is_chosen_by_the_name_that_it_was_put_under(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = {"data": {"kind": "synthetic"}, "task": {"loss": "quartic"}}
    with pytest.raises(RecipeError, match=r"task\.loss is 'quartic'; it must be one of"):
        Recipe.of(base)

    def quartic(score: Tensor, target: Tensor) -> Tensor:
        return (score - target) ** 4

    monkeypatch.setitem(LOSSES, "quartic", quartic)
    task = Recipe.of(base).task.chosen.build(STARS)
    assert isinstance(task, Pointwise)
    assert task.function is quartic
