"""SAGram in a training: its Gramian is that of a cache which each step has brought up to date."""

from __future__ import annotations

import pytest
import torch
from tests.support.shared_training import shared_corpus

from evergram.encoders.features import SIDES
from evergram.gramian.estimator import exact_moment
from evergram.gramian.sagram import SAGram
from evergram.training.build import prepare
from evergram.training.callbacks import Callback, Point
from evergram.training.loop import Trainer
from evergram.training.monitors.gramian_tracking import Tracking
from evergram.training.recipe import GramianRecipe, Recipe
from evergram.training.recipe.fit_settings import FitSettings

CORPUS = shared_corpus()
SGD = ["training.optimizer=sgd", "training.table_rate=0.2", "task.penalty=2.0"]
CASES = {
    "no prior": [],
    "a prior": ["prior.kind=svd", "prior.rank=2"],
    "two measures": [
        *("task.penalty=[2, 1]", "task.query_measure=[0, 1]", "task.candidate_measure=[0, 0.5]")
    ],
    "negatives": ["task.kind=bpr"],
    "sampled gradient": ["gramian.gradient=sampled"],
    "sums anew": [],
}


def trainer(settings: list[str], *callbacks: Callback) -> Trainer:
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3},
            "training": {"batch_size": 12, "epochs": 2},
            "gramian": {"kind": "sagram"},
        },
        settings,
    )
    fit = FitSettings.of(recipe, CORPUS, 0)
    step, sampler, draws = prepare(fit, CORPUS, torch.device("cpu"))
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

    def on_step(self, at: Point, batch: object, objective: object) -> None:
        run, largest = at.training, 0.0
        with run.look() as now:
            for side in SIDES:
                for r, estimator in enumerate(run.estimators[side]):
                    exact = exact_moment(run.population(now, side, r))
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

        def on_step(self, at: Point, batch: object, objective: object) -> None:
            run, estimator = at.training, at.training.estimators["query"][0]
            assert isinstance(estimator, SAGram)
            with run.look() as now:
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
    looking = GramianRecipe.of({"kind": "sagram", "beta": beta, "batch_size": 5})
    counts = {side: CORPUS.counts(side) for side in SIDES}
    tracking = Tracking({"sagram": looking}, counts, every=1)
    trainer([*SGD, "gramian.kind=sogram"], tracking).fit(epochs=1)
    assert len(tracking.gramian_errors["sagram"]) >= 8
    assert max(tracking.gramian_errors["sagram"]) < 1e-5
