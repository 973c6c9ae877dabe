"""Estimators and MAP are measured along a training, which stays as it is, and checked in it; and
SAGram's Gramian is that of a cache which each step brings up to date."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.support.fits import changed, fitted, parts_of, split_of
from tests.support.shared_training import shared_corpus
from tests.support.tiny_training import recipe_class
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.encoders.encoder import SIDES
from evergram.errors import DataError, TrainingError
from evergram.gramian.estimator import EntityBatch, GramianEstimator, batch_moment, exact_moment
from evergram.gramian.kinds import ESTIMATORS, EstimatorSettings
from evergram.gramian.sagram import SAGram
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train
from evergram.training.callbacks import Callback
from evergram.training.diagnose import (
    OWN,
    WITHOUT_GRAMIAN,
    TensorBoard,
    Tracking,
    diagnose,
    effective_rank,
    rivals,
    spectrum,
)
from evergram.training.loop import Trainer
from evergram.training.recipe import Recipe


def tracking(recipe: Recipe, chosen: dict[str, Any], **options: Any) -> Tracking:
    training = split_of(recipe).training
    settings = {name: ESTIMATORS.of(table) for name, table in chosen.items()}
    return Tracking(settings, {s: training.counts(s) for s in SIDES}, **options)


@pytest.mark.parametrize("kind", ["two_tower", pytest.param("graphsage", marks=pytest.mark.long)])
def test_looking_on_changes_nothing(small: Recipe, kind: str) -> None:
    recipe = changed(small, f"model.kind={kind}", "training.epochs=1")
    look = tracking(recipe, rivals([64]), every=3)
    assert torch.equal(fitted(recipe).query, fitted(recipe, [look]).query)
    assert look.steps
    assert set(look.gramian_errors) == {*rivals([64]), OWN}
    assert all(len(errors) == len(look.steps) for errors in look.gradient_errors.values())


class Freeze(Callback):
    """Embeddings that stand still are what every average must find."""

    def on_step(self, run: Trainer, batch: Batch, objective: Tensor) -> None:
        for optimizer in run.step.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.0


def test_estimates_of_embeddings_that_stand_still(small: Recipe) -> None:
    drawn = {"kind": "sampled", "sampler": "linear", "batch_size": 200}
    chosen = {
        "exact": {"kind": "exact"},
        "slow": {"rate": 0.001, "batch_size": 64},
        "fast": {"rate": 1.0, "batch_size": 64},
        "linear": {**drawn, "sampler": "linear"},
        "adaptive": {**drawn, "sampler": "adaptive"},
    }
    recipe = changed(small, "training.epochs=6", "model.scale=1.0")
    look = tracking(recipe, chosen, every=2)
    fitted(recipe, [Freeze(), look])
    last = {name: errors[-1] for name, errors in look.gramian_errors.items()}
    # `exact` is asked to begin before the step that it is measured after: nothing moved.
    assert last["exact"] < 1e-5
    assert last["slow"] < 0.5 * last["fast"]
    # A rival draws adaptively by its own estimates.
    mean = look.mean(look.gramian_errors)
    assert 0 < mean["adaptive"] < mean["linear"]


@pytest.mark.long
def test_tensorboard_shows_metrics_errors_and_scores(small: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(changed(small, "training.epochs=6", "training.batch_size=32"), board=tmp_path / "board")
    events = EventAccumulator(str(tmp_path / "board" / "version-0"))
    events.Reload()
    tags = events.Tags()
    assert {"objective", "recall@20", f"Gramian error/{OWN}"} <= set(tags["scalars"])
    assert tags["histograms"] == ["scores/observed", "scores/random"]
    assert len(events.Scalars("recall@20")) == 6


def test_without_tensorboard_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(TrainingError, match=r"pip install 'evergram\[tensorboard\]'"):
        TensorBoard(tmp_path, (torch.arange(2), torch.arange(2)))
    assert list(tmp_path.iterdir()) == []


class Last(GramianEstimator):
    """The last batch, after `change` of its moment at the updates from `start` on."""

    change: Callable[[Tensor], Tensor] = staticmethod(lambda moment: moment)
    start = seen = 0

    def update(self, rows: EntityBatch) -> None:
        moment = batch_moment(rows)
        self.matrix = type(self).change(moment) if self.seen >= self.start else moment
        self.seen += 1


@pytest.mark.parametrize(
    ("change", "start", "named"),
    [
        (lambda m: m + torch.triu(torch.ones_like(m)), 0, "symmetric"),
        (lambda m: -m, 0, "negative diagonal"),
        (lambda m: m[:, :3], 0, r"\[8, 3\]"),
        # A later slip is seen at the epoch's end.
        (lambda m: -m, 8, "negative diagonal"),
    ],
)
def test_a_moment_that_is_no_gramian_ends_the_run(
    small: Recipe, monkeypatch: pytest.MonkeyPatch, change: Any, start: int, named: str
) -> None:
    class LastSettings(EstimatorSettings):
        kind: Literal["last"] = "last"

        def build(self, dim: int, measure: Tensor, factors: Tensor, file: Any = None) -> Any:
            return Last(dim, factors.shape[1])

    monkeypatch.setitem(ESTIMATORS, "last", LastSettings)
    monkeypatch.setattr(Last, "change", staticmethod(change))
    monkeypatch.setattr(Last, "start", start)
    with pytest.raises(TrainingError, match=rf"moment of Last .*{named}"):
        train(changed(small, "gramian.kind=last"), progress=False)


def test_without_a_gramian_what_is_published_is_measured_and_the_rest_says_why_not(
    small: Recipe, tmp_path: Path
) -> None:
    recipe = changed(small, "task.kind=bpr", "task.penalty=0", "training.refit=true")
    lineage = Lineage.create(tmp_path / "l", "small")
    lineage.publish(train(recipe))
    diagnosis = diagnose(recipe, lineage, steps=2)
    assert diagnosis.tracking is None
    assert diagnosis.gramian_error == diagnosis.gradient_error == {}
    report = diagnosis.as_json()
    assert report["left_out"] == WITHOUT_GRAMIAN
    assert (report["this_run"], report["steps"]) == (None, [])
    assert report["gramian_errors"] == report["mean_gradient_error"] == {}
    assert report["scores"]["observed_mean"] > report["scores"]["random_mean"]
    fewer = changed(recipe, "data.candidates=150")
    with pytest.raises(DataError, match=r"lacks \d+ of the \d+ \w+ ids"):
        diagnose(fewer, lineage, steps=2)


def test_the_spectrum_of_a_side_counts_its_directions() -> None:
    """D directions of equal weight have rank D; a line has rank 1, whatever its length."""
    share = torch.full((8,), 1 / 8, dtype=torch.float64)
    line = torch.arange(8.0)[:, None] * torch.tensor([[3.0, 4.0]])
    for vectors, weights, rank, largest in (
        (torch.eye(4).repeat(2, 1), share, 4, 0.25),
        (line, share, 1, 1),
        # An entity without weight does not count.
        (torch.eye(2), torch.tensor([1.0, 0.0]), 1, 1),
    ):
        parts = spectrum(vectors, weights)
        assert effective_rank(parts) == pytest.approx(rank, abs=1e-6)
        assert float(parts.max()) == pytest.approx(largest, abs=1e-6)


CORPUS = shared_corpus()


SGD = ["training.optimizer=sgd", "training.table_rate=0.2", "task.penalty=2.0"]


CASES = {
    "no prior": [],
    "a prior": ["prior.kind=svd"],
    "two measures": [
        *("task.penalty=[2, 1]", "task.query_measure=[0, 1]", "task.candidate_measure=[0, 0.5]")
    ],
    "negatives": ["task.kind=bpr"],
    "sampled gradient": ["gramian.gradient=sampled"],
    "sums anew": [],
}


def trainer(settings: list[str], *callbacks: Callback) -> Trainer:
    recipe = recipe_class(settings).of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3},
            "training": {"batch_size": 12, "epochs": 2},
            "gramian": {"kind": "sagram"},
        },
        settings,
    )
    step, sampler, draws = parts_of(recipe, CORPUS)
    if recipe.training.optimizer == "sgd":  # it keeps no float32 of its own
        step.encoder.double()
        step.factors = {side: factors.double() for side, factors in step.factors.items()}
        for side in SIDES:
            for estimator in step.estimators[side]:
                estimator.double()
    return Trainer(step, sampler, draws, callbacks=callbacks)


class Errors(Callback):
    """‖Ĝ − G‖ / ‖G‖ after each step, the largest of all sides and measures, and H with it."""

    def __init__(self) -> None:
        self.errors: list[float] = []

    def on_step(self, run: Trainer, batch: object, objective: object) -> None:
        step, largest = run.step, 0.0
        with step.look() as now:
            for side in SIDES:
                for r, estimator in enumerate(step.estimators[side]):
                    exact = exact_moment(step.population(now, side, r))
                    error = (estimator.moment().dense - exact).norm() / exact.norm()
                    largest = max(largest, float(error))
        self.errors.append(largest)


@pytest.mark.parametrize("beta", ["1/n", "1"])
@pytest.mark.parametrize("case", CASES)
def test_of_tables_by_sgd_the_gramian_is_exact_after_every_step(
    case: str, beta: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "sums anew":
        monkeypatch.setattr("evergram.gramian.sagram.REFRESH", 3)
    errors = Errors()
    run = trainer([*SGD, f"gramian.beta='{beta}'", *CASES[case]], errors)
    start = run.parameters()
    run.fit(epochs=2)
    assert len(errors.errors) >= 16
    assert max(errors.errors) < 1e-12
    assert any(not torch.equal(value, start[name]) for name, value in run.parameters().items())


def test_of_towers_the_cache_has_each_step_s_pairs_as_it_left_them() -> None:
    class Cache(Callback):
        stale = 0

        def on_step(self, run: Trainer, batch: object, objective: object) -> None:
            estimator = run.step.estimators["query"][0]
            assert isinstance(estimator, SAGram)
            with run.step.look() as now:
                rows = now.rows("query", batch.query)  # type: ignore[attr-defined]
                everyone = now.rows("query", torch.arange(len(estimator.cache)))
            assert torch.equal(estimator.cache[batch.query], rows)  # type: ignore[attr-defined]
            self.stale += not torch.equal(estimator.cache, everyone)

    cache = Cache()
    trainer(["model.kind=two_tower", "model.hidden=[6]"], cache).fit(epochs=1)
    assert cache.stale > 0


@pytest.mark.parametrize("beta", ["1/n", "1"])
def test_looking_on_at_a_trajectory_it_is_shown_the_pairs_of_each_step(beta: str) -> None:
    """A later draw corrects nothing, as no row of the tables is behind."""
    looking = ESTIMATORS.of({"kind": "sagram", "beta": beta, "batch_size": 5})
    counts = {side: CORPUS.counts(side) for side in SIDES}
    tracking = Tracking({"sagram": looking}, counts, every=1)
    trainer([*SGD, "gramian.kind=sogram"], tracking).fit(epochs=1)
    assert len(tracking.gramian_errors["sagram"]) >= 8
    assert max(tracking.gramian_errors["sagram"]) < 1e-5
