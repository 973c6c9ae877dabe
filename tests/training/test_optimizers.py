"""Each parameter is trained by one optimiser, whose steps are those of its definition."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.fits import parts_of
from tests.support.largest_tensor import LargestTensor
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.data.sampling import ExampleSampler
from evergram.gramian.estimator import Moment
from evergram.gramian.preconditioner import preconditioner
from evergram.tasks.task import Encoded, Spread
from evergram.training.optimizers.build_optimizers import build_optimizers
from evergram.training.optimizers.dense_adam import DenseAdam
from evergram.training.optimizers.rate_decay import decay_rates
from evergram.training.optimizers.row_adagrad import RowAdagrad
from evergram.training.optimizers.turned_gradients import turn_gradients
from evergram.training.recipe import Recipe
from evergram.training.step import Step


def tower_run(**training: Any) -> tuple[Step, ExampleSampler]:
    """Return a step of towers with a feature, whose layers learn at 0.1 and features at 0.2."""
    corpus = Corpus.from_tables(
        pa.table({"query": ["a", "b", "a"], "candidate": ["x", "y", "y"]}),
        candidate_features=pa.table({"id": ["x", "y"], "tags": [["s"], ["s", "t"]]}),
    )
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"kind": "two_tower", "dim": 3, "hidden": [5], "residual": False},
            "training": {"feature_rate": 0.2, "layer_rate": 0.1, **training},
        }
    )
    return parts_of(recipe, corpus)[:2]


def rate_of(name: str, table: float) -> float:
    return 0.1 if not name.startswith("tables") else 0.2 if "feature" in name else table


@pytest.mark.parametrize(
    ("training", "table"),
    [({"table_rate": 0.3}, 0.3), ({"optimizer": "adam"}, 0.01)],  # "auto" of Adam
)
def test_every_parameter_has_one_optimizer_and_the_rate_of_its_kind(
    training: dict[str, Any], table: float
) -> None:
    step, _ = tower_run(**training)
    rates = {
        p: group["lr"] for o in step.optimizers for group in o.param_groups for p in group["params"]
    }
    for name, parameter in step.encoder.named_parameters():
        assert rates.pop(parameter) == rate_of(name, table), name
    assert not rates


@pytest.mark.parametrize("optimizer", ["adaptive", "adam", "sgd"])
def test_parameters_of_a_task_learn_at_the_rate_of_layers(optimizer: str) -> None:
    recipe = Recipe.of({"data": {"kind": "synthetic"}, "training": {"optimizer": optimizer}})
    step = parts_of(recipe, Corpus.of([("a", "x"), ("b", "y")]))[0]
    task = nn.Module()
    task.scale, task.still = (nn.Parameter(torch.ones(2), requires_grad=b) for b in (True, False))
    rates = recipe.training.model_copy(update={"layer_rate": 0.07})
    made = build_optimizers(step.encoder, rates, 0.3, task=task)
    by_parameter = {p: g["lr"] for o in made for g in o.param_groups for p in g["params"]}
    assert by_parameter[task.scale] == 0.07
    assert task.still not in by_parameter


def test_plain_sgd_moves_each_parameter_by_its_rate_times_its_gradient() -> None:
    step, sampler = tower_run(optimizer="sgd", table_rate=0.3)
    before = {n: p.detach().clone() for n, p in step.encoder.named_parameters()}
    step.begin_epoch()
    step(next(iter(sampler.epoch(0))))
    moved = 0
    for name, parameter in step.encoder.named_parameters():
        assert parameter.grad is not None
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        expected = before[name] - rate_of(name, 0.3) * gradient
        torch.testing.assert_close(parameter.detach(), expected)
        moved += int(gradient.any())
    assert moved > 6


def test_sparse_gradients_are_dense_ones() -> None:
    tables = [nn.Embedding(5, 3, sparse=sparse) for sparse in (True, False)]
    tables[1].load_state_dict(tables[0].state_dict())
    optimizers = [
        DenseAdam(tables[0].parameters(), 0.1),
        torch.optim.Adam(tables[1].parameters(), 0.1),
    ]
    for ids in ([0, 3, 3], [1], [4, 0]):
        for table, optimizer in zip(tables, optimizers, strict=True):
            optimizer.zero_grad()
            table(torch.tensor(ids)).square().sum().backward()
            optimizer.step()
    # By the same formula; in some runs one of fifteen numbers is rounded otherwise.
    torch.testing.assert_close(tables[0].weight, tables[1].weight, rtol=1e-6, atol=1e-7)
    rest = tables[0].weight.detach()[3].clone()
    tables[0].zero_grad()
    tables[0](torch.tensor([1])).sum().backward()
    optimizers[0].step()
    assert not torch.equal(tables[0].weight[3], rest)  # it goes on by its mean


def test_every_group_has_its_rate_times_the_decay_to_the_epoch() -> None:
    one, two = (nn.Parameter(torch.ones(1)) for _ in range(2))
    adam = torch.optim.Adam([{"params": [one], "lr": 0.5}, {"params": [two], "lr": 0.1}])
    for epoch in (0, 1, 4, 2):
        decay_rates([adam], 0.9, epoch)
        rates = [group["lr"] for group in adam.param_groups]
        assert rates == pytest.approx([0.5 * 0.9**epoch, 0.1 * 0.9**epoch])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(rows: Tensor, *, sparse: bool = True) -> nn.Embedding:
    table = nn.Embedding(len(rows), rows.shape[1], sparse=sparse)
    with torch.no_grad():
        table.weight.copy_(rows)
    return table


def run(table: nn.Embedding, batches: list[list[int]], turn: Tensor | None = None) -> Tensor:
    """Pull the rows of each batch towards fixed targets."""
    optimizer = RowAdagrad(table.parameters(), 0.1)
    target = normal(6, 3, seed=5)
    target = target if turn is None else target @ turn
    for ids in batches:
        rows = torch.tensor(ids)
        loss = (table(rows) - target[rows]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return table.weight.detach()


BATCHES = [[0, 1, 1, 4], [1, 2], [0, 0, 0], [5, 1]]


def test_each_row_goes_by_the_squares_of_its_own_gradients() -> None:
    start = normal(6, 3)
    table = filled(start)
    moved = run(table, BATCHES)
    expected, target = start.clone(), normal(6, 3, seed=5)
    for row in range(6):
        total = 0.0
        for ids in BATCHES:
            if row in ids:  # a row that a batch holds twice has the sum of both gradients
                gradient = ids.count(row) * 2 * (expected[row] - target[row])
                total += float(gradient.square().mean())
                expected[row] -= 0.1 * gradient / total**0.5
    torch.testing.assert_close(moved, expected)
    assert torch.equal(moved[3], start[3])


def test_sparse_and_dense_gradients_give_the_same() -> None:
    tables = [filled(normal(6, 3), sparse=sparse) for sparse in (True, False)]
    torch.testing.assert_close(*(run(table, BATCHES) for table in tables))


def test_the_basis_does_not_matter() -> None:
    turn = torch.linalg.qr(normal(3, 3, seed=9)).Q
    plain = filled(normal(6, 3))
    turned = filled(normal(6, 3) @ turn)
    moved = run(turned, BATCHES, turn)
    torch.testing.assert_close(moved, run(plain, BATCHES) @ turn, rtol=1e-4, atol=1e-5)


def test_a_sparse_step_makes_nothing_of_the_size_of_the_table() -> None:
    table = nn.Embedding(50_000, 3, sparse=True)
    optimizer = RowAdagrad(table.parameters(), 0.1)
    table(torch.tensor([7, 7, 49_999])).square().sum().backward()
    with LargestTensor() as largest:
        optimizer.step()
    assert largest.bytes < 1000


def random_moments() -> dict[str, list[Moment]]:
    roots = {side: torch.randn(5, 3) for side in ("query", "candidate")}
    return {side: [Moment(root.T @ root)] for side, root in roots.items()}


@pytest.mark.parametrize("one_table", [False, True])
def test_each_side_is_turned_by_the_other_once_and_rows_of_one_table_by_the_mean(
    one_table: bool,
) -> None:
    """Also a pair's query without its candidate, and the same with it."""
    names = ("query", "candidate", "negative", "whole_query")
    rows = {name: torch.randn(4, 3).requires_grad_() for name in names}
    shown: dict[str, Any] = {name: r * 1.0 for name, r in rows.items()}
    moments = random_moments()
    turn_gradients(Encoded(**shown), moments, [2.0], 0.1, whole=False, one_table=one_table)
    torch.autograd.backward(sum(shown.values(), torch.zeros(4, 3)).sum())
    matrices = {side: preconditioner(moments[side], [2.0], 0.1) for side in moments}
    for name in names:
        other = matrices["candidate" if "query" in name else "query"]
        matrix = (matrices["query"] + matrices["candidate"]) / 2 if one_table else other
        torch.testing.assert_close(rows[name].grad, torch.ones(4, 3) @ matrix)


def test_rows_taken_from_all_entities_are_turned_with_them_alone() -> None:
    whole = {s: torch.randn(6, 3).requires_grad_() for s in ("query", "candidate")}
    shown = {s: r * 1.0 for s, r in whole.items()}
    moments = {s: [Moment(torch.diag(torch.tensor([1.0, 2.0, 3.0])))] for s in whole}
    everyone = {s: Spread(rows, torch.ones(6, 1)) for s, rows in shown.items()}
    pairs = {s: rows[:2] for s, rows in shown.items()}
    encoded = Encoded(pairs["query"], pairs["candidate"], everyone=everyone)
    turn_gradients(encoded, moments, [1.0], 0.1, whole=True)
    torch.autograd.backward(pairs["query"].sum() + pairs["candidate"].sum())
    matrix = preconditioner(moments["query"], [1.0], 0.1)
    for side in whole:
        expected = torch.zeros(6, 3)
        expected[:2] = torch.ones(2, 3) @ matrix
        torch.testing.assert_close(whole[side].grad, expected)
