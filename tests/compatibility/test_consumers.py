"""A is positive definite, has the trace of I, and forgets scales and order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evergram.compatibility.consumers import (
    ConsumerModel,
    consumer_metric,
    input_fisher,
)
from evergram.errors import ShapeError

SEEDS = st.integers(0, 10**6)
MUS = st.floats(0, 0.99)


def fishers(seed: int, dim: int, count: int = 3) -> list[Tensor]:
    """Matrices of ranks 1, 2, 3 … and of very different scales."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        rows = torch.randn(i + 1, dim, generator=draw, dtype=torch.float64)
        made.append(100.0 ** (i - 1) * rows.T @ rows)
    return made


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 6), MUS)
def test_it_is_positive_definite_and_has_the_trace_of_the_identity(
    seed: int, dim: int, weight: float
) -> None:
    metric = consumer_metric(fishers(seed, dim), weight)
    assert metric.dtype == torch.float64
    assert torch.allclose(metric, metric.T)
    assert float(metric.trace()) == pytest.approx(dim, rel=1e-12)
    assert float(torch.linalg.eigvalsh(metric)[0]) >= (1 - weight) - 1e-12


@settings(max_examples=20, deadline=None)
@given(SEEDS, MUS, st.permutations([0, 1, 2]), st.floats(1e-6, 1e6))
def test_it_depends_on_no_order_and_no_scale(
    seed: int, weight: float, order: list[int], scale: float
) -> None:
    matrices = fishers(seed, 4)
    expected = consumer_metric(matrices, weight)
    other = consumer_metric([scale * matrices[i] for i in order], weight)
    torch.testing.assert_close(other, expected, rtol=1e-9, atol=1e-12)


def test_it_is_the_mean_of_matrices_of_one_trace() -> None:
    # D F / tr F = [[2, 0], [0, 0]] and [[1, 0], [0, 1]]; their mean [[1.5, 0], [0, 0.5]].
    matrices = [torch.diag(torch.tensor([7.0, 0.0])), torch.eye(2)]
    assert consumer_metric(matrices, 0.5).tolist() == [[1.25, 0.0], [0.0, 0.75]]
    assert torch.equal(consumer_metric(matrices, 0.0), torch.eye(2, dtype=torch.float64))


def test_rounding_below_zero_is_cut_off() -> None:
    metric = consumer_metric([torch.diag(torch.tensor([1.0, -1e-8]))], 0.999)
    assert float(torch.linalg.eigvalsh(metric)[0]) >= 0.001 - 1e-12
    assert float(metric.trace()) == pytest.approx(2)


@pytest.mark.parametrize(
    ("matrices", "weight", "message"),
    [
        ([torch.eye(2)], 1.0, "below 1"),
        ([torch.eye(2)], float("nan"), "nan"),
        ([], 0.5, "no matrix"),
        ([torch.eye(2), torch.eye(3)], 0.5, r"\[2, 3\]"),
        ([torch.zeros(2, 2)], 0.5, "trace 0"),
        ([torch.tensor([[float("nan")]])], 0.5, "not finite"),
        ([torch.ones(2, 3)], 0.5, r"\[2, 3\]"),
        ([torch.tensor([[1.0, 1.0], [0.0, 1.0]])], 0.5, "symmetric"),
        ([torch.tensor([[1.0, 2.0], [2.0, 1.0]])], 0.5, "negative eigenvalue"),
    ],
)
def test_what_is_no_fisher_matrix_is_refused(
    matrices: list[Tensor], weight: float, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        consumer_metric(matrices, weight)


DIM = 4


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(seed: int, outputs: int) -> nn.Sequential:
    """A smooth network in float64."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(DIM, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def over_labels(model: ConsumerModel, rows: Tensor, classes: int) -> Tensor:
    """E_z Σ_y p(y|z) ∇ℓ ∇ℓᵀ with ℓ by torch's own losses: no Jacobian of the logits."""
    total = torch.zeros(DIM, DIM, dtype=torch.float64)
    for row in rows:
        for label in range(classes):
            z = row.clone().requires_grad_()
            logits = model(z[None]).reshape(-1)
            if len(logits) == 1:
                target = torch.tensor([float(label)], dtype=torch.float64)
                loss = nn.functional.binary_cross_entropy_with_logits(logits, target)
            else:
                loss = nn.functional.cross_entropy(logits[None], torch.tensor([label]))
            gradient = torch.autograd.grad(loss, z)[0]
            total += torch.exp(-loss.detach()) * torch.outer(gradient, gradient)
    return total / len(rows)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5]))
def test_it_is_the_mean_over_labels_of_the_losses_gradients(seed: int, outputs: int) -> None:
    model, rows = network(seed, outputs), 2 * randn(seed, 7, DIM)
    matrix = input_fisher(model, rows, batch_size=3)
    expected = over_labels(model, rows, max(2, outputs))
    torch.testing.assert_close(matrix, expected, rtol=1e-9, atol=1e-12)
    assert torch.allclose(matrix, matrix.T)
    assert float(torch.linalg.eigvalsh(matrix)[0]) > -1e-12


def test_half_of_it_is_the_divergence_of_a_small_move() -> None:
    model, row, move = network(3, 4), randn(0, 1, DIM), 1e-3 * randn(1, DIM)
    before, after = (model(z).log_softmax(-1).detach() for z in (row, row + move))
    divergence = (before.exp() * (before - after)).sum()
    matrix = input_fisher(model, row)
    torch.testing.assert_close(0.5 * move @ matrix @ move, divergence, rtol=5e-3, atol=0)


def test_of_a_value_it_is_the_mean_of_squared_slopes() -> None:
    weight = randn(0, DIM)
    rows = randn(1, 9, DIM)
    matrix = input_fisher(lambda z: (z @ weight).square(), rows, "value")
    slopes = 2 * (rows @ weight)[:, None] * weight
    torch.testing.assert_close(matrix, slopes.T @ slopes / 9)


def test_a_module_is_read_as_it_is_used_and_left_as_it_was() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(DIM, 1)).double().train()
    matrices = [input_fisher(model, torch.ones(3, DIM).double()) for _ in range(2)]
    assert torch.equal(*matrices)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_works_where_gradients_are_off() -> None:
    with torch.no_grad():
        assert float(input_fisher(network(0, 1), randn(0, 2, DIM)).trace()) > 0


@pytest.mark.parametrize(
    ("model", "rows", "message"),
    [
        (lambda z: z[:, 0], torch.zeros(0, DIM), r"\[0, 4\]"),
        (lambda z: z[:, 0], torch.zeros(DIM), r"\[4\]"),
        (lambda z: z[None], torch.zeros(3, DIM), r"\[1, 3, 4\]"),
        (lambda z: z.tolist(), torch.zeros(3, DIM), "list"),
        (lambda z: z.sum(0), torch.zeros(3, DIM), "4 rows for 3"),
        (lambda z: z.detach()[:, 0], torch.zeros(3, DIM), "gradient"),
    ],
)
def test_a_model_that_is_no_consumer_is_refused(
    model: ConsumerModel, rows: Tensor, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        input_fisher(model, rows)
