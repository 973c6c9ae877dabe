"""A is positive definite, has the trace of I, and forgets scales and order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.compatibility.consumers.consumer_metric import consumer_metric
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


def test_without_weight_it_is_the_identity() -> None:
    assert torch.equal(consumer_metric(fishers(0, 5), 0.0), torch.eye(5, dtype=torch.float64))


def test_it_is_what_it_says() -> None:
    # D F / tr F = [[2, 0], [0, 0]] and [[1, 0], [0, 1]]; their mean [[1.5, 0], [0, 0.5]].
    metric = consumer_metric([torch.diag(torch.tensor([7.0, 0.0])), torch.eye(2)], 0.5)
    assert metric.tolist() == [[1.25, 0.0], [0.0, 0.75]]


def test_rounding_below_zero_is_cut_off() -> None:
    metric = consumer_metric([torch.diag(torch.tensor([1.0, -1e-8]))], 0.999)
    assert float(torch.linalg.eigvalsh(metric)[0]) >= 0.001 - 1e-12
    assert float(metric.trace()) == pytest.approx(2)


@pytest.mark.parametrize(
    ("matrices", "weight", "message"),
    [
        ([torch.eye(2)], 1.0, r"is 1\.0; it is at least 0 and below 1"),
        ([torch.eye(2)], -0.1, r"is -0\.1; it is at least 0"),
        ([torch.eye(2)], float("nan"), "is nan; it is at least 0"),
        ([], 0.5, "no matrix of a consumer"),
        ([torch.eye(2), torch.eye(3)], 0.5, r"dims \[2, 3\]; they must have one"),
        ([torch.zeros(2, 2)], 0.5, "the trace 0, so its predictions do not change"),
        ([torch.tensor([[float("nan")]])], 0.5, "are not finite"),
        ([torch.ones(2, 3)], 0.5, r"is \[2, 3\]; it must be \[D, D\]"),
        ([torch.tensor([[1.0, 1.0], [0.0, 1.0]])], 0.5, "not symmetric"),
        ([torch.tensor([[1.0, 2.0], [2.0, 1.0]])], 0.5, "a negative eigenvalue"),
    ],
)
def test_what_is_no_fisher_matrix_is_refused(
    matrices: list[Tensor], weight: float, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        consumer_metric(matrices, weight)
