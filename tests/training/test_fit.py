"""A training: what it learns, which epoch it keeps, and what ends it."""

from __future__ import annotations

import gc

import pytest
import torch

from evergram.errors import TrainingError
from evergram.training.corpora import final_split, load_corpus, split_for
from evergram.training.fit import Refit, RunContext, Trained, fit_encoder
from evergram.training.loop import Trainer
from evergram.training.recipe import Recipe
from evergram.training.step import Step

CPU = torch.device("cpu")


def run(recipe: Recipe) -> Trained:
    split = split_for(recipe, load_corpus(recipe), 0)
    return fit_encoder(recipe, split, 0, RunContext(CPU))


SETTINGS = {
    "sogram": [],
    "exact": ["gramian.kind=exact"],
    "storm": ["gramian.kind=storm", "gramian.rate=0.1"],
    "storm, apart": ["gramian.kind=storm", "gramian.rate=auto", "gramian.batch=independent"],
    "sagram": ["gramian.kind=sagram"],
    "sagram 1": ["gramian.kind=sagram", "gramian.beta=1", "gramian.batch=independent"],
    "sampled": ["gramian.kind=sampled", "gramian.batch=independent", "gramian.sampler=sqrt"],
    "adaptive": ["gramian.kind=sampled", "gramian.batch=independent", "gramian.sampler=adaptive"],
    "adaptive, sogram": ["gramian.batch=independent", "gramian.sampler=adaptive"],
    "few": ["gramian.kind=sampled", "gramian.batch=independent", "gramian.batch_size=6"],
    "auto": ["gramian.rate=auto", "gramian.decay=0.0"],
    "tower": ["model.kind=two_tower"],
    "tower, storm": ["model.kind=two_tower", "gramian.kind=storm", "gramian.rate=0.1"],
    "power": ["task.query_measure=0.3", "task.candidate_measure=0.2"],
    "two measures": [
        "task.penalty=[4, 1]",
        "task.query_measure=[0, 1]",
        "task.candidate_measure=[0, 0.5]",
    ],
    "exclude": ["task.sparse=exclude"],
    "constant": ["prior.kind=constant", "prior.value=-0.05"],
    "svd": ["prior.kind=svd", "prior.rank=4"],
    "logistic": ["task.loss=logistic", "task.penalty=1"],
    "absolute": ["task.loss=absolute", "task.penalty=1"],
    "huber": ["task.loss=huber"],
    "hinge": ["task.loss=hinge", "task.penalty=1"],
    "squared hinge": ["task.loss=squared_hinge"],
    "bpr": ["task.kind=bpr", "task.penalty=0"],
    "bpr, penalty": ["task.kind=bpr", "task.penalty=1"],
    "softmax": ["task.kind=softmax", "task.penalty=0"],
    "softmax, penalty": ["task.kind=softmax", "task.penalty=1"],
    "second": ["task.kind=second_order", "task.penalty=0", "task.query_measure=1", "task.l2=0.1"],
    "rg2": [
        "task.kind=second_order",
        "task.penalty=0",
        "task.query_measure=1",
        "task.centred=false",
    ],
    "clustered": ["task.kind=softmax_clustered", "task.clusters=16", "task.l2=0.1"],
    "taylor": ["task.kind=spherical", "task.penalty=0", "task.query_measure=1", "task.l2=0.1"],
    "square": [
        "task.kind=spherical",
        "task.form=square",
        "task.temperature=0.3",
        "task.penalty=0",
        "task.query_measure=1",
        "task.l2=0.02",
    ],
    "unit": [
        "model.normalize=true",
        "task.kind=softmax",
        "task.temperature=0.2",
        "task.penalty=0",
        "task.candidate_orthogonal=0.5",
        "task.l2=0",
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_learns_more_than_popularity(small: Recipe, setting: str) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.epochs=8", *SETTINGS[setting]])
    trained = run(recipe)
    assert trained.metrics["model"]["recall@20"] > 1.2 * trained.metrics["popularity"]["recall@20"]


@pytest.mark.long
def test_the_same_seed_gives_the_same_bits(small: Recipe) -> None:
    one, two = run(small), run(small)
    assert torch.equal(one.query, two.query)
    assert torch.equal(one.candidate, two.candidate)
    assert one.metrics == two.metrics
    other = run(Recipe.of(small.model_dump(), ["seed=1"]))
    assert other.query.shape != one.query.shape or not torch.equal(other.query, one.query)


@pytest.mark.long
def test_the_best_epoch_is_kept(small: Recipe) -> None:
    trained = run(Recipe.of(small.model_dump(), ["training.epochs=6"]))
    best = max(trained.history, key=lambda h: h["recall@20"])
    assert trained.best_epoch == best["epoch"]
    again = run(Recipe.of(small.model_dump(), [f"training.epochs={trained.best_epoch}"]))
    assert torch.equal(again.query, trained.query)


def test_a_budget_ends_training(small: Recipe) -> None:
    trained = run(Recipe.of(small.model_dump(), ["training.epochs=500", "training.budget=0.05"]))
    assert 0 < len(trained.history) < 500


def test_a_loss_that_explodes_is_a_sentence(small: Recipe) -> None:
    bad = Recipe.of(
        small.model_dump(), ["training.table_rate=1e30", "training.epochs=3", "task.penalty=1e9"]
    )
    with pytest.raises(TrainingError, match=r"lower training\.table_rate"):
        run(bad)


def outcome(recipe: Recipe, *overrides: str) -> tuple[int, int, str, list[str]]:
    """Train. Returns: the best epoch, the last one, what ended it, and the warnings."""
    recipe = Recipe.of(recipe.model_dump(), overrides)
    split = split_for(recipe, load_corpus(recipe), 0)
    trained = fit_encoder(recipe, split, 0, RunContext(CPU, title="version 0"))
    last = int(trained.history[-1]["epoch"])
    return trained.best_epoch, last, trained.ended, trained.warnings


@pytest.mark.long
def test_epochs_are_a_maximum(small: Recipe, caplog: pytest.LogCaptureFixture) -> None:
    best, last, ended, warnings = outcome(small, "training.epochs=60", "training.patience=2")
    assert (last, ended, warnings) == (best + 2, "patience", [])
    best, last, ended, warnings = outcome(
        small, "training.epochs=60", "training.patience=2", "training.evaluate_every=3"
    )
    assert (last, ended) == (best + 6, "patience")
    assert caplog.text == ""


@pytest.mark.parametrize("refit", ["true"])
def test_nothing_of_a_run_waits_for_the_collector_to_be_freed(small: Recipe, refit: str) -> None:
    """A run is as large as what is published of it, and would stay beside it."""
    recipe = Recipe.of(small.model_dump(), ["training.epochs=2", f"training.refit={refit}"])
    split = split_for(recipe, load_corpus(recipe), 0)
    again = Refit(final_split(split, refits=True)) if refit == "true" else None
    # What the first one of a process imports leaves the frames that made it to the collector.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    gc.collect()
    gc.disable()
    try:
        trained = fit_encoder(recipe, split, 0, RunContext(CPU), None, again)
        assert trained.best_epoch
        assert not [kept for kept in gc.get_objects() if type(kept) in (Trainer, Step)]
    finally:
        gc.enable()
