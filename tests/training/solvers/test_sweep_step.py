"""A sweep minimises the trainer's own objective, and a run of sweeps is a run like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.tiny_training import tiny_recipe

from evergram.collectives import Collectives
from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError
from evergram.gramian.estimator import Moment
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.tasks.task import Encoded
from evergram.training.build import Companions, prepare
from evergram.training.callbacks import Callback
from evergram.training.checkpoints.settings import CheckpointSettings
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.solvers.sweep_solver import SweepSolver
from evergram.training.solvers.sweep_step import SweepStep, squares_of

CPU = torch.device("cpu")


def prepared(task: dict[str, Any], optimizer: str, **more: Any) -> Any:
    """Return a run's step and sampler, whose one batch is all pairs."""
    made = torch.Generator().manual_seed(0)
    pairs = torch.randint(6, (24, 2), generator=made)
    weight, value = torch.rand(2, 24, generator=made)
    columns = {"query": pairs[:, 0], "candidate": pairs[:, 1], "weight": weight, "value": value}
    corpus = Corpus.from_tables(pa.table({k: v.numpy() for k, v in columns.items()}))
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3, "scale": 1.0},
            "task": task,
            "training": {"optimizer": optimizer},
        }
        | more
    )
    return prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU, Companions())[:2]


TASKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"penalty": 0.4, "l2": 0.02, "target": "value"}, {}),
    ({"penalty": 0.4, "l2": 0.02, "l2_measure": "penalty", "query_measure": 0.5}, {}),
    ({"penalty": 0.1, "sparse": "exclude", "l2": 1e-3}, {}),
    ({"penalty": 0.4, "sparse": "weight"}, {"prior": {"kind": "svd", "rank": 2}}),
    ({"penalty": 0.4}, {"prior": {"kind": "constant", "value": 0.3}}),
    ({"penalty": [0.3, 0.2], "query_measure": [0.0, 1.0], "candidate_measure": [0.5, 1.0]}, {}),
    ({"penalty": 0.0, "l2": 0.02}, {}),
]


@pytest.mark.parametrize(("task", "more"), TASKS)
def test_a_solved_run_has_no_gradient_by_the_trainers_objective(
    task: dict[str, Any], more: dict[str, Any]
) -> None:
    step, sampler = prepared(task, "adaptive", **more)
    squares = squares_of(step, sampler)
    tables = {s: getattr(step.encoder, s).weight.detach().double() for s in SIDES}

    def slopes() -> tuple[float, torch.Tensor]:
        """The largest gradient of the objective, and its value, on one batch of all pairs."""
        (batch,) = sampler.epoch(0, 0)
        rows = {s: table.clone().requires_grad_() for s, table in tables.items()}
        moments = {}
        for s, table in tables.items():
            factors = step.factors[s].double()
            beside = torch.cat([table, factors], dim=1)
            measures = step.measures[s].double().T
            moments[s] = [Moment(table.T @ (p[:, None] * beside)) for p in measures]
        encoded = Encoded(
            rows["query"][batch.query],
            rows["candidate"][batch.candidate],
            query_factors=step.factors["query"].double()[batch.query],
            candidate_factors=step.factors["candidate"].double()[batch.candidate],
        )
        loss = step.objective(encoded, batch, moments)
        gradients = torch.autograd.grad(loss.total, list(rows.values()))
        return max(float(g.abs().max()) for g in gradients), loss.objective

    before, value = slopes()
    torch.testing.assert_close(value.double(), squares.value(tables), rtol=1e-5, atol=1e-6)
    assert before > 0.01
    solver = SweepSolver(squares)
    for _ in range(1000):
        solver.sweep(tables)
    after, value = slopes()
    torch.testing.assert_close(value.double(), squares.value(tables), rtol=1e-5, atol=1e-6)
    # Weights of batches are float32.
    assert after < 1e-6


def test_a_step_is_a_sweep_and_returns_the_value_after_it() -> None:
    step, sampler = prepared(*TASKS[0][:1], "als")
    assert isinstance(step, SweepStep)
    assert step.optimizers == []
    (batch,) = sampler.epoch(0)
    values = [float(step(batch)) for _ in range(5)]
    assert values == sorted(values, reverse=True)
    expected = squares_of(step, sampler).value(step.tables)
    assert values[-1] == pytest.approx(float(expected), rel=1e-5)


def test_entities_without_a_pair_keep_their_rows_whatever_their_measure(tmp_path: Path) -> None:
    ids = tmp_path / "weights.csv"
    ids.write_text("id,weight\n" + "".join(f"a{i},{i + 1}\n" for i in range(9)))
    corpus = Corpus.of([(f"a{i % 7}", f"b{i * i % 7}") for i in range(60)], shared_ids=True)
    recipe = tiny_recipe("training.optimizer=als", f"task.query_measure='{ids}'")
    step, sampler, _ = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    assert isinstance(step, SweepStep)
    before = {side: table.clone() for side, table in step.tables.items()}
    for batch in sampler.epoch(0):
        step(batch)
    for side, table in step.tables.items():
        met = corpus.counts(side) > 0
        assert torch.equal(table[~met], before[side][~met])
        assert not torch.isclose(table[met], before[side][met]).any(dim=1).all()
        assert not bool(met.all())


class KilledError(Exception):
    """Stands for a signal that no code can answer."""


class Killing(Callback):
    """Ends the process after the third sweep."""

    def on_epoch(self, run: Any, objective: float, last: bool) -> None:
        if run.epoch == 4:
            raise KilledError


def test_a_run_resumes_bit_for_bit_and_ends_by_its_patience(tmp_path: Path) -> None:
    ends = "training.epochs=40", "training.patience=3"
    recipe = tiny_recipe("training.optimizer=als", *ends, "model.dim=4")
    whole = train(recipe, progress=False)
    often = CheckpointSettings(steps=1)
    with pytest.raises(KilledError):
        train(recipe, progress=False, folder=tmp_path, checkpoints=often, callbacks=[Killing()])
    again = train(recipe, progress=False, folder=tmp_path, checkpoints=often)
    assert whole.encoder is not None
    assert again.encoder is not None
    for name, value in whole.encoder.state.items():
        assert torch.equal(value, again.encoder.state[name]), name
    trained = whole.metrics["training"]
    assert trained["ended"] == "patience"
    assert trained["batch_size"] == whole.metrics["data"]["interactions"]
    objectives = [record["objective"] for record in trained["history"]]
    assert objectives == sorted(objectives, reverse=True)


def recipe_of(*overrides: str) -> Recipe:
    return tiny_recipe("training.optimizer=als", "training.epochs=2", *overrides)


def test_what_has_no_least_squares_solution_is_refused_with_its_key() -> None:
    for overrides, named in (
        ("model.normalize=true", "model.normalize"),
        ("model.kind=two_tower", "two_tower"),
        ("model.hash_rows=4", "model.hash_rows"),
        ("task.loss=logistic", "logistic"),
        ("task.kind=bpr", "bpr"),
        ("task.positives=queries", "task.positives"),
        ("training.tables=mapped", "mapped"),
    ):
        with pytest.raises(RecipeError, match=r"training\.optimizer = 'als' .*" + named):
            train(recipe_of(overrides), progress=False)


def test_refuses_several_processes() -> None:
    class Two(Collectives):
        size = 2

    recipe = recipe_of()
    corpus = load_corpus(recipe)
    settings = FitSettings.of(recipe, corpus, 0)
    with pytest.raises(RecipeError, match="one process, and there are 2; start one, or"):
        prepare(settings, corpus, torch.device("cpu"), Companions(), None, Two())


def test_an_upgrade_fits_its_transform_afterwards(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path, "tiny")
    lineage.publish(train(recipe_of(), progress=False))
    with pytest.raises(
        RecipeError, match=r"set upgrade\.fit = 'posthoc', which fits it afterwards"
    ):
        upgrade(recipe_of(), lineage, progress=False)
    after = recipe_of("upgrade.fit=posthoc", "upgrade.solver=closed")
    version = lineage.publish(upgrade(after, lineage, progress=False))
    assert lineage.manifest(version).dim == 5
