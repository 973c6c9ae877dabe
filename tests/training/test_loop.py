"""The loop: the order of a step, determinism, what it learns and what it keeps."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError, TrainingError
from evergram.training.build import pick_device, prepare
from evergram.training.callbacks import Callback, Point
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, Trained, fit_encoder
from evergram.training.loop import run_epoch
from evergram.training.monitors.early_stopping import time_to_reach
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")
QUIET = Progress(quiet=True)


def run(recipe: Recipe) -> Trained:
    split = split_for(recipe, load_corpus(recipe), 0)
    return fit_encoder(recipe, split, 0, RunContext(CPU))


@pytest.mark.long
@pytest.mark.parametrize("batch", ["previous", "independent"])
@pytest.mark.parametrize("measure", [0.0, 0.5])
def test_the_gradient_is_independent_of_its_own_batch(batch: str, measure: float) -> None:
    """Averaged over batches at fixed embeddings, the step's gradient is that of the objective.

    With the same batch in Ĝ and in the gradient it would not be: positives repel each other.
    """
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randint(6, (24, 2), generator=draw)
    corpus = Corpus.from_tables(
        pa.table({"query": pairs[:, 0].numpy(), "candidate": pairs[:, 1].numpy()})
    )
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3, "scale": 1.0},
            "task": {
                "penalty": 1.0,
                "l2": 0.0,
                "query_measure": measure,
                "candidate_measure": measure,
            },
            # Rate 1: all of Ĝ is one batch, so that a dependence shows in full.
            "gramian": {"rate": 1.0, "batch": batch}
            | ({"sampler": "sqrt"} if batch == "independent" else {}),
            "training": {"batch_size": 4, "precondition": 0.0},
        }
    )
    step, sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    step.optimizers = []
    encoder = step.encoder
    total: dict[str, Tensor] = {n: torch.zeros_like(p) for n, p in encoder.named_parameters()}
    steps = 0
    for epoch in range(1500):
        for _ in run_epoch(step, sampler, draws, epoch, CPU):
            if epoch:  # the first steps have no Gramian yet
                steps += 1
                for name, parameter in encoder.named_parameters():
                    assert parameter.grad is not None
                    total[name] += parameter.grad.to_dense()
            encoder.zero_grad()
    query, candidate = (encoder.get_parameter(f"{side}.weight") for side in SIDES)
    scores = query @ candidate.T
    observed = scores[corpus.column("query"), corpus.column("candidate")]
    p, q = (corpus.counts(side).double() ** measure for side in SIDES)
    weight = torch.outer(p / p.sum(), q / q.sum()).float()
    objective = 0.5 * (observed - 1).square().mean() + (weight * scores.square()).sum()
    expected = torch.autograd.grad(objective, [query, candidate])
    for mean, exact in zip(total.values(), expected, strict=True):
        assert float((mean / steps - exact).norm() / exact.norm()) < 0.05


SETTINGS = {
    "sogram": [],
    "exact": ["gramian.kind=exact"],
    "storm": ["gramian.kind=storm", "gramian.rate=0.1"],
    "storm, apart": ["gramian.kind=storm", "gramian.rate=auto", "gramian.batch=independent"],
    "sagram": ["gramian.kind=sagram"],
    "sagram 1": ["gramian.kind=sagram", "gramian.beta=1", "gramian.batch=independent"],
    "sampled": ["gramian.kind=sampled", "gramian.batch=independent", "gramian.sampler=sqrt"],
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


def test_every_parameter_has_one_optimizer_and_its_own_rate() -> None:
    corpus = Corpus.from_tables(
        pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}),
        candidate_features=pa.table({"id": ["x", "y"], "tags": [["s"], ["s", "t"]]}),
    )
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"kind": "two_tower", "dim": 3, "hidden": [5]},
            "training": {"table_rate": 0.3, "feature_rate": 0.2, "layer_rate": 0.1},
        }
    )
    step = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)[0]
    rates = {
        p: group["lr"] for o in step.optimizers for group in o.param_groups for p in group["params"]
    }
    for name, parameter in step.encoder.named_parameters():
        table = 0.2 if "feature" in name else 0.3
        assert rates.pop(parameter) == (table if name.startswith("tables") else 0.1), name
    assert not rates


def test_the_clock_of_a_metric() -> None:
    history = [{"seconds": 2.0, "recall@20": 0.1}, {"seconds": 4.0, "recall@20": 0.3}]
    assert time_to_reach(history, "recall@20", 0.2) == 4.0
    assert time_to_reach(history, "recall@20", 0.4) is None
    assert time_to_reach(history, "recall@20", None) is None


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


def half_of_the_tiniest() -> float:
    return float(torch.tensor([1e-310], dtype=torch.float64) * 0.5)


class Denormals(Callback):
    def __init__(self) -> None:
        self.seen: set[float] = set()

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        self.seen.add(half_of_the_tiniest())


def test_denormals_are_flushed_in_training_and_nowhere_else(small: Recipe) -> None:
    assert half_of_the_tiniest() > 0
    look = Denormals()
    fit_encoder(
        small, split_for(small, load_corpus(small), 0), 0, RunContext(CPU, callbacks=[look])
    )
    assert look.seen == {0.0}
    assert half_of_the_tiniest() > 0


def test_a_loss_that_explodes_is_a_sentence(small: Recipe) -> None:
    bad = Recipe.of(
        small.model_dump(), ["training.table_rate=1e30", "training.epochs=3", "task.penalty=1e9"]
    )
    with pytest.raises(TrainingError, match=r"lower training\.table_rate"):
        run(bad)


def test_devices() -> None:
    assert pick_device("cpu") == CPU
    with pytest.raises(RecipeError, match="none of auto, cpu, cuda"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(RecipeError, match="has none"):
            pick_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("kind", ["factorization", "two_tower"])
def test_cuda_learns_what_the_cpu_learns(small: Recipe, kind: str) -> None:
    recipe = Recipe.of(small.model_dump(), [f"model.kind={kind}"])
    split = split_for(recipe, load_corpus(recipe), 0)
    on_cpu = fit_encoder(recipe, split, 0, RunContext(CPU))
    on_cuda = fit_encoder(recipe, split, 0, RunContext(torch.device("cuda")))
    last = [trained.history[-1]["objective"] for trained in (on_cpu, on_cuda)]
    assert last[0] == pytest.approx(last[1], rel=0.02)
