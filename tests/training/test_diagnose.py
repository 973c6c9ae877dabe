"""A version is diagnosed: its spectrum, its scores and its estimators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evergram.encoders.features import SIDES
from evergram.errors import DataError
from evergram.evaluation.reports.diagnosis_report import write_diagnosis
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train
from evergram.training.diagnose import WITHOUT_GRAMIAN, _side, diagnose, rivals
from evergram.training.monitors.gramian_tracking import OWN
from evergram.training.recipe import Recipe


@pytest.mark.long
def test_a_version_is_diagnosed(small: Recipe, tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "l", "small")
    lineage.publish(train(small))
    diagnosis = diagnose(small, lineage, steps=12, every=4, batch_sizes=[32])
    tracking = diagnosis.tracking
    assert tracking is not None
    assert tracking.steps == [4, 8, 12]
    report = diagnosis.as_json()
    assert report["scores"]["observed_mean"] > report["scores"]["random_mean"]
    assert 0.5 < report["scores"]["separation"] <= 1
    for side in SIDES:
        assert 1 <= report["sides"][side]["effective_rank"] <= report["sides"][side]["dim"]
    assert set(report["mean_gramian_error"]) == {*rivals([32]), OWN}
    picture = write_diagnosis(
        tmp_path / "d.png",
        diagnosis.histograms,
        tracking.steps,
        tracking.gramian_errors,
        tracking.gradient_errors,
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_gramian_what_is_published_is_measured_and_the_rest_says_why_not(
    small: Recipe, tmp_path: Path
) -> None:
    recipe = Recipe.of(
        small.model_dump(), ["task.kind=bpr", "task.penalty=0", "training.refit=true"]
    )
    lineage = Lineage.create(tmp_path / "l", "small")
    lineage.publish(train(recipe))
    diagnosis = diagnose(recipe, lineage, steps=2)
    assert diagnosis.tracking is None
    assert diagnosis.left_out == WITHOUT_GRAMIAN
    assert diagnosis.gramian_error == diagnosis.gradient_error == {}
    report = diagnosis.as_json()
    assert report["left_out"] == WITHOUT_GRAMIAN
    assert (report["this_run"], report["steps"], report["sampled"]) == (None, [], {})
    assert report["gramian_errors"] == report["mean_gradient_interval"] == {}
    assert report["scores"]["observed_mean"] > report["scores"]["random_mean"]
    picture = write_diagnosis(tmp_path / "d.png", diagnosis.histograms, [], {}, {})
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_data_that_lacks_published_objects_is_refused(small: Recipe, tmp_path: Path) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.epochs=1"])
    lineage = Lineage.create(tmp_path / "l", "small")
    lineage.publish(train(recipe))
    fewer = Recipe.of(small.model_dump(), ["data.candidates=150"])
    with pytest.raises(DataError, match=r"lacks \d+ of the \d+ objects of side"):
        diagnose(fewer, lineage, steps=2)


def test_the_spectrum_of_a_side_counts_its_directions() -> None:
    """D directions of equal weight have rank D; a line has rank 1, whatever its length."""
    share = torch.full((8,), 1 / 8, dtype=torch.float64)
    even = _side(torch.eye(4).repeat(2, 1), share)
    assert even["effective_rank"] == pytest.approx(4)
    assert even["largest_share"] == pytest.approx(0.25)
    assert (even["norm_mean"], even["norm_deviation"]) == (1, 0)
    line = _side(torch.arange(8.0)[:, None] * torch.tensor([[3.0, 4.0]]), share)
    assert line["effective_rank"] == pytest.approx(1, abs=1e-6)
    # An entity without weight does not count.
    one = _side(torch.eye(2), torch.tensor([1.0, 0.0]))
    assert one["effective_rank"] == pytest.approx(1)
