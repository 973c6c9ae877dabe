"""Training and publishing in one call, as the commands do."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergram.errors import DataError, DegradationError
from evergram.lineage.lineage import Lineage
from evergram.releasing.release import ReleaseOptions, train_and_publish, upgrade_and_publish
from evergram.training.checkpoints.settings import CheckpointSettings
from evergram.training.recipe import Recipe


@pytest.fixture
def recipe(small: Recipe) -> Recipe:
    return Recipe.of(small.model_dump(), ["training.epochs=2"])


def test_a_first_version_and_an_upgrade_that_is_not_promoted(
    recipe: Recipe, tmp_path: Path
) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    artefact = train_and_publish(recipe, lineage)
    assert lineage.metrics(0)["metrics"] == artefact.metrics["metrics"]
    published = upgrade_and_publish(recipe, lineage, ReleaseOptions(promote=False))
    assert published.version == lineage.newest == 1
    assert lineage.production == 0


def test_limits_that_cannot_be_met_are_refused_before_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: object, **__: object) -> None:
        raise AssertionError("it was trained")

    lineage = Lineage.create(tmp_path / "lineage")
    monkeypatch.setattr("evergram.releasing.release.upgrade", train)
    monkeypatch.setattr("evergram.releasing.release.upgrade_lost", train)
    with pytest.raises(DegradationError, match="no consumer has a probe"):
        upgrade_and_publish(recipe, lineage, ReleaseOptions(strict_probes=True))
    with pytest.raises(DataError, match="--kept trains no model"):
        upgrade_and_publish(recipe, lineage, ReleaseOptions(kept=True), board=tmp_path)
    frozen = Recipe.of(recipe.model_dump(exclude={"upgrade"}), ["upgrade.method=fix-m0"])
    with pytest.raises(DataError, match="'frozen' trains no model"):
        upgrade_and_publish(frozen, lineage, board=tmp_path)
    often = CheckpointSettings(steps=1)
    with pytest.raises(DataError, match="--kept trains no model, so there are no checkpoints"):
        upgrade_and_publish(recipe, lineage, ReleaseOptions(kept=True), checkpoints=often)
    with pytest.raises(DataError, match="'frozen' trains no model, so there are no checkpoints"):
        upgrade_and_publish(frozen, lineage, checkpoints=often)
