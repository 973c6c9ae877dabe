"""One step: its gradient, its estimators, and a look that changes nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.training.build import prepare
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.step import Step

CPU = torch.device("cpu")


@pytest.mark.long
@pytest.mark.parametrize(
    ("batch", "gradient"),
    [("previous", "examples"), ("independent", "examples"), ("independent", "sampled")],
)
@pytest.mark.parametrize("measure", [0.0, 0.5])
def test_the_gradient_is_independent_of_its_own_batch(
    batch: str, gradient: str, measure: float
) -> None:
    """Averaged over batches at fixed embeddings, the step's gradient is that of the objective,
    whether the penalty's is over the pairs' entities or over those that were drawn.

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
            | ({"sampler": "sqrt", "gradient": gradient} if batch == "independent" else {}),
            "training": {"batch_size": 4, "precondition": 0.0},
        }
    )
    step, sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    step.optimizers = []
    encoder = step.encoder
    total: dict[str, Tensor] = {n: torch.zeros_like(p) for n, p in encoder.named_parameters()}
    steps = 0
    for epoch in range(1000):
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


def small_step(**gramian: Any) -> tuple[Step, list[Batch]]:
    """A step on six pairs, and the batches of an epoch."""
    corpus = Corpus.from_tables(pa.table({"query": [*"aabbcc"], "candidate": [*"xyxzyz"]}))
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"dim": 3},
            "task": {"penalty": 1.0, "l2": 0.0},
            "gramian": gramian,
            "training": {"batch_size": 2},
        }
    )
    step, sampler, _ = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    step.begin_epoch()
    return step, list(sampler.epoch(0))


def test_the_exact_gramian_is_that_of_the_parameters_before_the_step() -> None:
    step, batches = small_step(kind="exact")
    with step.look() as embeddings:
        rows = embeddings.rows("query", torch.arange(3)).double()
    exact = rows.T @ rows / 3
    step(batches[0])
    estimate = step.estimators["query"][0].moment().dense.double()
    torch.testing.assert_close(estimate, exact, rtol=1e-5, atol=1e-6)


def test_a_look_leaves_running_statistics_as_they_were() -> None:
    step, _ = small_step()
    step.encoder.register_buffer("runs", torch.zeros(()))
    step.encoder.register_forward_hook(lambda module, *_: module.get_buffer("runs").add_(1))
    with step.look():
        assert float(step.encoder.get_buffer("runs")) == 0
    assert float(step.encoder.get_buffer("runs")) == 0
    assert all(p.grad is None for p in step.encoder.parameters())


def test_only_estimators_that_compare_two_steps_ask_for_the_next_batch() -> None:
    assert small_step(kind="storm", rate=0.1)[0].wants_before
    assert not small_step()[0].wants_before


def test_a_population_gives_every_entity_once_with_shares_that_sum_to_one() -> None:
    step, _ = small_step()
    with step.look() as embeddings:
        blocks = list(step.population(embeddings, "candidate")())
    rows, share, factors = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    assert torch.equal(rows, embeddings.rows("candidate", torch.arange(3)))
    assert float(share.sum()) == pytest.approx(1)
    assert factors.shape == (3, 0)
