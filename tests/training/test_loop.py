"""The loop: the order of a step, determinism, what it learns and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest
import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import ExampleSampler
from evergram.encoders.features import SIDES, Schema
from evergram.errors import RecipeError, TrainingError
from evergram.gramian.sogram import SOGram
from evergram.tasks.pointwise import Pointwise
from evergram.training.corpora import load_corpus, split_for
from evergram.training.loop import Trained, _step, build_encoder, pick_device, train_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe

CPU = torch.device("cpu")
QUIET = Progress(quiet=True)


def run(recipe: Recipe) -> Trained:
    split = split_for(recipe, load_corpus(recipe), 0)
    return train_encoder(recipe, split, 0, CPU, QUIET)


def test_the_gradient_is_independent_of_its_own_batch() -> None:
    """Averaged over batches at fixed embeddings, the step's gradient is that of the objective.

    With the same batch in Ĝ and in the gradient it would not be: positives repel each other.
    """
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randint(6, (24, 2), generator=draw)
    corpus = Corpus.from_tables(
        pa.table({"query": pairs[:, 0].numpy(), "candidate": pairs[:, 1].numpy()})
    )
    encoder = build_encoder(
        "factorization", {"dim": 3, "scale": 1.0}, Schema.of(corpus, features=False), draw
    )
    sides = (corpus.queries, corpus.candidates)
    inputs = {s: encoder.schema.read(s, e) for s, e in zip(SIDES, sides, strict=True)}
    # Rate 1: all of Ĝ is one batch, so that a dependence shows in full.
    estimators = {side: SOGram(3, rate=1.0) for side in SIDES}
    populations = dict.fromkeys(SIDES, _nobody)
    sampler = ExampleSampler(corpus, batch_size=4, seed=0)
    task = Pointwise(penalty=1.0)
    total: dict[str, Tensor] = {n: torch.zeros_like(p) for n, p in encoder.named_parameters()}
    steps = 0
    for epoch in range(1500):
        for batch in sampler.epoch(epoch):
            encoder.zero_grad()
            _step(batch, encoder, inputs, task, estimators, populations, [], None)
            if epoch:  # the first steps have no Gramian yet
                steps += 1
                for name, parameter in encoder.named_parameters():
                    assert parameter.grad is not None
                    total[name] += parameter.grad.to_dense()
            encoder.zero_grad()
    query, candidate = encoder.get_parameter("query.weight"), encoder.get_parameter(
        "candidate.weight"
    )  # fmt: skip
    scores = query @ candidate.T
    observed = scores[corpus.column("query"), corpus.column("candidate")]
    objective = 0.5 * (observed - 1).square().mean() + scores.square().mean()
    expected = torch.autograd.grad(objective, [query, candidate])
    for mean, exact in zip(total.values(), expected, strict=True):
        assert float((mean / steps - exact).norm() / exact.norm()) < 0.05


def _nobody() -> Iterable[tuple[Tensor, Tensor]]:
    return []


@pytest.mark.parametrize("kind", ["factorization", "two_tower"])
@pytest.mark.parametrize("gramian", ["sogram", "exact"])
def test_it_learns_more_than_popularity(small: Recipe, kind: str, gramian: str) -> None:
    recipe = Recipe.of(
        small.model_dump(), [f"model.kind={kind}", f"gramian.kind={gramian}", "training.epochs=8"]
    )
    found = run(recipe)
    assert found.metrics["model"]["recall@20"] > 1.2 * found.metrics["popularity"]["recall@20"]


def test_the_same_seed_gives_the_same_bits(small: Recipe) -> None:
    one, two = run(small), run(small)
    assert torch.equal(one.query, two.query)
    assert torch.equal(one.candidate, two.candidate)
    assert one.metrics == two.metrics
    other = run(Recipe.of(small.model_dump(), ["seed=1"]))
    assert other.query.shape != one.query.shape or not torch.equal(other.query, one.query)


def test_the_best_epoch_is_kept(small: Recipe) -> None:
    found = run(Recipe.of(small.model_dump(), ["training.epochs=6"]))
    best = max(found.history, key=lambda h: h["recall@20"])
    assert found.best_epoch == best["epoch"]
    again = run(Recipe.of(small.model_dump(), [f"training.epochs={found.best_epoch}"]))
    assert torch.equal(again.query, found.query)


def test_a_budget_ends_training(small: Recipe) -> None:
    found = run(Recipe.of(small.model_dump(), ["training.epochs=500", "training.budget=0.05"]))
    assert 0 < len(found.history) < 500


def test_denormals_are_flushed(small: Recipe) -> None:
    run(small)
    assert float(torch.tensor([1e-310], dtype=torch.float64) * 0.5) == 0.0


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
    on_cpu = train_encoder(recipe, split, 0, CPU, QUIET)
    on_cuda = train_encoder(recipe, split, 0, torch.device("cuda"), QUIET)
    last = [found.history[-1]["objective"] for found in (on_cpu, on_cuda)]
    assert last[0] == pytest.approx(last[1], rel=0.02)
