"""Settings of estimators reach the estimators that they build."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.support.gramian_population import DIM, FACTORS, SHARE

from evergram.gramian.kinds import ESTIMATORS, SAGramSettings, SampledSettings, SOGramSettings
from evergram.gramian.sagram import SAGram
from evergram.gramian.sampled import SampledGramian
from evergram.gramian.sogram import SOGram


def test_a_cache_larger_than_the_memory_is_kept_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "cache.bin"
    size = 4 * len(SHARE) * DIM / 2**20  # MiB
    for memory, kept in ((2 * size, None), (size / 2, file)):
        estimator = SAGramSettings(memory=memory).build(DIM, SHARE, FACTORS, file)
        assert isinstance(estimator, SAGram)
        assert estimator.file == kept
        assert file.exists() == (kept is not None)


def test_settings_reach_the_estimator() -> None:
    sogram = SOGramSettings(rate=0.5, decay=0.25).build(DIM, SHARE, FACTORS)
    assert isinstance(sogram, SOGram)
    assert (float(sogram.rate()), sogram.rate.decay) == (0.5, 0.25)
    sampled = SampledSettings(form="pairs").build(DIM, SHARE, FACTORS)
    assert isinstance(sampled, SampledGramian)
    assert sampled.form == "pairs"
    # β is text, and a recipe may write the number 1.
    assert SAGramSettings.model_validate({"beta": 1}).beta == "1"


@pytest.mark.parametrize("rate", [0, 1.5, "fast"])
def test_a_rate_outside_its_range_is_refused(rate: object) -> None:
    with pytest.raises(ValidationError):
        SOGramSettings.model_validate({"rate": rate})


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_settings_say_whether_their_estimator_looks_ahead(kind: str) -> None:
    settings = ESTIMATORS[kind]()
    assert settings.build(DIM, SHARE, FACTORS).wants_before == settings.wants_before
