"""The behaviour that every task has, and batches as a task sees them."""

from __future__ import annotations

import copy
from dataclasses import replace

import pyarrow as pa
import pytest
import torch
from tests.support.subclasses import concrete_subclasses
from tests.support.task_batches import moment
from torch import Tensor

import evergram.tasks
from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch
from evergram.errors import RecipeError
from evergram.gramian.estimator import Moment
from evergram.tasks.kinds import LOSSES, TASKS
from evergram.tasks.task import Encoded, Pointwise, Task, WeightedRows
from evergram.training.recipe import Recipe

B, N, DIM = 6, 8, 3
IDS = torch.tensor([0, 1, 2, 3, 4, 4])
CORPUS = Corpus.of(
    pa.table({"query": list(range(N)), "candidate": list(range(N)), "value": [0.5] * N})
)
ONES = torch.ones(B, 1, dtype=torch.float64)
BATCH = Batch(IDS, IDS, ONES[:, 0], ONES, ONES)


def normal(rows: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, DIM, dtype=torch.float64, generator=draw).requires_grad_()


def moments(task: Task) -> dict[str, list[Moment]]:
    """Exact moments of uniform measures."""
    share = torch.full((N,), 1 / N, dtype=torch.float64)
    sides = {"query": normal(N, 0), "candidate": normal(N, 1)}
    return {side: [moment(rows, share)] for side, rows in sides.items()}


def encoded(task: Task) -> Encoded:
    negative = normal(B, 4) if task.wants_negatives else None
    all_entities = normal(N, 5) if task.wants_all_candidates else None
    return Encoded(normal(B, 2), normal(B, 3), negative, all_candidates=all_entities)


def make(kind: str) -> Task:
    return TASKS[kind]().build(CORPUS)


def test_every_task_of_the_package_is_in_the_table() -> None:
    ours = concrete_subclasses(evergram.tasks, Task)
    assert {type(make(kind)) for kind in TASKS} == ours


@pytest.mark.parametrize("kind", TASKS)
class TestTask:
    def test_its_settings_state_its_demands(self, kind: str) -> None:
        task, settings = make(kind), TASKS[kind]
        assert task.wants_negatives == settings.wants_negatives
        assert task.wants_all_candidates == settings.wants_all_candidates
        # Something has to keep scores apart.
        assert settings.needs_penalty or settings().pair_target == "one"

    def test_its_loss_is_a_finite_number_whose_gradient_reaches_every_input(
        self, kind: str
    ) -> None:
        task = make(kind)
        rows = encoded(task)
        loss = task(rows, BATCH, moments(task))
        assert loss.shape == ()
        given = (rows.query, rows.candidate, rows.negative, rows.all_candidates)
        leaves = [r for r in given if r is not None]
        for gradient in torch.autograd.grad(loss, leaves):
            assert torch.isfinite(gradient).all()
            assert gradient.abs().sum() > 0

    def test_observed_pairs_are_pulled_together(self, kind: str) -> None:
        """Small steps along the gradient raise the scores of small embeddings."""
        task = make(kind)
        rows = encoded(task)
        query, candidate = (
            r.detach().mul(0.1).requires_grad_() for r in (rows.query, rows.candidate)
        )
        small = replace(rows, query=query, candidate=candidate)
        slopes = torch.autograd.grad(task(small, BATCH, moments(task)), [query, candidate])
        moved = [r - 0.01 * slope for r, slope in zip((query, candidate), slopes, strict=True)]
        assert (moved[0] * moved[1]).sum() > (query * candidate).sum()

    def test_all_its_state_is_in_its_buffers(self, kind: str) -> None:
        first, second = make(kind), make(kind)
        rows = encoded(first)
        for _ in range(3):
            first(rows, BATCH, moments(first))
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        assert torch.equal(first(rows, BATCH, moments(first)), second(rows, BATCH, moments(second)))


def test_the_batch_stands_for_all_entities_unless_they_are_there() -> None:
    query, candidate = normal(B, 0), normal(B, 1)
    factors = torch.ones(B, 2)
    spread = Encoded(query, candidate, None, factors).entities(BATCH)
    assert spread["query"].rows is query
    assert spread["query"].factors is factors
    assert spread["candidate"].factors is None
    assert spread["candidate"].weight is BATCH.candidate_weight
    all_entities = {
        side: WeightedRows(normal(N, 0), torch.ones(N, 1)) for side in ("query", "candidate")
    }
    assert Encoded(query, candidate, all_entities=all_entities).entities(BATCH) is all_entities


def test_a_loss_of_ones_own_is_chosen_by_the_name_that_it_was_put_under(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = {"data": {"kind": "synthetic"}, "task": {"loss": "quartic"}}
    with pytest.raises(RecipeError, match=r"task\.loss is 'quartic'; it must be one of"):
        Recipe.of(base)

    def quartic(score: Tensor, target: Tensor) -> Tensor:
        return (score - target) ** 4

    monkeypatch.setitem(LOSSES, "quartic", quartic)
    task = Recipe.of(base).task.build(CORPUS)
    assert isinstance(task, Pointwise)
    assert task.loss is quartic
