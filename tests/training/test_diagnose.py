"""Looking on changes nothing, and what is seen is what exact sums say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError
from evergram.evaluation.reports.diagnosis_report import write_diagnosis
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train
from evergram.training.callbacks import Callback, Point
from evergram.training.corpora import load_corpus, split_for
from evergram.training.diagnose import diagnose, rivals
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.monitors.gramian_tracking import OWN, Tracking
from evergram.training.progress import Progress
from evergram.training.recipe import GramianRecipe, Recipe

CPU = torch.device("cpu")
QUIET = Progress(quiet=True)


def tracking(recipe: Recipe, chosen: dict[str, GramianRecipe], every: int = 1) -> Tracking:
    training = split_for(recipe, load_corpus(recipe), 0).training
    return Tracking(chosen, {s: training.counts(s) for s in SIDES}, every=every)


@pytest.mark.parametrize("kind", ["factorization", "two_tower", "graphsage"])
def test_looking_on_changes_nothing(small: Recipe, kind: str) -> None:
    recipe = Recipe.of(small.model_dump(), [f"model.kind={kind}", "training.epochs=1"])
    split = split_for(recipe, load_corpus(recipe), 0)
    unwatched = fit_encoder(recipe, split, 0, RunContext(CPU))
    look = tracking(recipe, rivals([64]), every=3)
    watched = fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[look]))
    assert torch.equal(unwatched.query, watched.query)
    assert look.steps
    assert set(look.gramian_errors) == {*rivals([64]), OWN}
    assert all(len(errors) == len(look.steps) for errors in look.gradient_errors.values())


def test_an_exact_estimator_has_no_error_and_a_frozen_one_has(small: Recipe) -> None:
    chosen = {
        "exact": GramianRecipe.of({"kind": "exact"}),
        "slow": GramianRecipe.of({"rate": 0.001, "batch_size": 64}),
        "fast": GramianRecipe.of({"rate": 1.0, "batch_size": 64}),
    }

    class Freeze(Callback):
        """Embeddings that stand still are what every average must find."""

        def on_step(self, at: Point, batch: Batch, objective: torch.Tensor) -> None:
            for optimizer in at.training.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = 0.0

    recipe = Recipe.of(small.model_dump(), ["training.epochs=6"])
    look = tracking(recipe, chosen, every=10)
    split = split_for(recipe, load_corpus(recipe), 0)
    fit_encoder(recipe, split, 0, RunContext(CPU, callbacks=[Freeze(), look]))
    last = {name: errors[-1] for name, errors in look.gramian_errors.items()}
    # `exact` is asked to begin before the step that it is measured after: nothing moved.
    assert last["exact"] < 1e-5
    assert last["slow"] < 0.5 * last["fast"]


@pytest.mark.long
def test_a_version_is_diagnosed(small: Recipe, tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "l", "small")
    lineage.publish(train(small))
    diagnosis = diagnose(small, lineage, steps=12, every=4, batch_sizes=[32])
    assert diagnosis.tracking.steps == [4, 8, 12]
    report = diagnosis.as_json()
    assert report["scores"]["observed_mean"] > report["scores"]["random_mean"]
    assert 0.5 < report["scores"]["separation"] <= 1
    for side in SIDES:
        assert 1 <= report["sides"][side]["effective_rank"] <= report["sides"][side]["dim"]
    assert set(report["mean_gramian_error"]) == {*rivals([32]), OWN}
    tracking = diagnosis.tracking
    picture = write_diagnosis(
        tmp_path / "d.png",
        diagnosis.histograms,
        tracking.steps,
        tracking.gramian_errors,
        tracking.gradient_errors,
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_gramian_there_is_no_error_to_look_at(small: Recipe, tmp_path: Path) -> None:
    recipe = Recipe.of(small.model_dump(), ["task.kind=bpr", "task.penalty=0"])
    lineage = Lineage.create(tmp_path / "l", "small")
    lineage.publish(train(recipe))
    with pytest.raises(RecipeError, match=r"task\.penalty is 0"):
        diagnose(recipe, lineage, steps=2)


@pytest.mark.long
def test_tensorboard_is_told(small: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = Recipe.of(small.model_dump(), ["training.epochs=6", "training.batch_size=32"])
    train(recipe, board=tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board" / "version-0"))
    events.Reload()
    tags = events.Tags()
    assert {"objective", "recall@20", f"Gramian error/{OWN}"} <= set(tags["scalars"])
    assert tags["images"] == ["scores"]
    assert len(events.Scalars("recall@20")) == 6
