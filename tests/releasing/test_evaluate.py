"""Stored embeddings are measured as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.errors import LineageError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.lineage.pair_history import PairHistory
from evergram.releasing.evaluate import evaluate
from evergram.releasing.upgrade import upgrade


def test_the_newest_version_has_its_published_metrics_and_an_older_one_its_own(
    tmp_path: Path,
) -> None:
    lineage, recipe = tiny_lineage(tmp_path / "l"), tiny_recipe("upgrade.alone=false")
    lineage.publish(upgrade(recipe, lineage, progress=False))
    published = lineage.metrics(1)
    metrics = evaluate(recipe, lineage)
    assert metrics["model"] == pytest.approx(published["metrics"]["model"])
    assert metrics["popularity"] == pytest.approx(published["metrics"]["popularity"])
    read_as_first = evaluate(recipe, lineage, 0)["model"]
    chain = published["compatibility"]["0"]["ranking"]["chain"]
    assert read_as_first == pytest.approx(chain)


def test_without_a_version_or_held_out_pairs_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownVersionError, match="no version yet"):
        evaluate(tiny_recipe(), Lineage.create(tmp_path / "none"))
    lineage = tiny_lineage(tmp_path / "l")
    untested = PairHistory("tiny", untested="No test figure: why.")
    monkeypatch.setattr(Lineage, "pair_history", untested)
    with pytest.raises(LineageError, match="No test figure: why"):
        evaluate(tiny_recipe(), lineage)
