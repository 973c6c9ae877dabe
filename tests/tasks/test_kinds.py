"""Settings of tasks: the targets that they ask for, and the corpora that they refuse."""

from __future__ import annotations

import pyarrow as pa
import pytest

from evergram.data.corpus import Corpus
from evergram.errors import DataError
from evergram.tasks.kinds import PointwiseSettings, SecondOrderSettings, SoftmaxSettings
from evergram.tasks.second_order import SecondOrderSoftmax
from evergram.tasks.softmax import Softmax

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
    PointwiseSettings(target="value").build(STARS)
    PointwiseSettings(loss="logistic").build(STARS)


def test_settings_reach_the_task() -> None:
    softmax = SoftmaxSettings(temperature=0.5).build(STARS)
    assert isinstance(softmax, Softmax)
    assert softmax.temperature == 0.5
    assert len(softmax.frequency.gap) == 2  # one for each candidate
    second = SecondOrderSettings(temperature=2.0, centred=False).build(STARS)
    assert isinstance(second, SecondOrderSoftmax)
    assert (second.temperature, second.centred) == (2.0, False)
