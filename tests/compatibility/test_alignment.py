"""The multi-step loss against explicit products, and λ in its two units."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.compatibility.alignment import alignment_loss, alignment_weight, history_metric


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_one_matrix_stands_for_all_of_history(versions: int, seed: int) -> None:
    """[BC] Eq. (10): (1/k) Σ_{j<k} ‖W_{k-1}^j δ‖², with every product multiplied out."""
    draw = torch.Generator().manual_seed(seed)
    dims = [int(torch.randint(1, 5, (), generator=draw)) for _ in range(versions)]
    steps = [
        torch.randn(a, b, generator=draw, dtype=torch.float64) for a, b in itertools.pairwise(dims)
    ]
    new = torch.randn(6, dims[-1], generator=draw, dtype=torch.float64)
    old = torch.randn(6, dims[-1], generator=draw, dtype=torch.float64)
    expected = 0.0
    for row in new - old:
        walked = row
        expected += float(walked.square().sum())
        for step in reversed(steps):
            walked = step @ walked
            expected += float(walked.square().sum())
    metric = history_metric(steps, dims[0])
    found = alignment_loss(new, old, torch.ones(6, dtype=torch.float64), metric, versions)
    assert float(found) == pytest.approx(expected / 6 / versions, rel=1e-9)


def test_at_one_past_version_it_is_the_single_step_loss() -> None:
    new, old = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])
    # 1² + 2²
    assert float(alignment_loss(new, old, torch.ones(1), history_metric([], 2), 1)) == 5.0


def test_objects_that_take_no_part_have_no_gradient_and_no_share() -> None:
    new = torch.ones(3, 2, requires_grad=True)
    weight = torch.tensor([1.0, 0.0, 1.0])
    loss = alignment_loss(new, torch.zeros(3, 2), weight, torch.eye(2), 1)
    assert float(loss.detach()) == 2.0
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad[1].tolist() == [0.0, 0.0]
    none = alignment_loss(new, torch.zeros(3, 2), torch.zeros(3), torch.eye(2), 1)
    assert float(none.detach()) == 0.0


def test_the_papers_unit_is_three_means_over_dims_too() -> None:
    # method.md: λ = 16 of the code is 48/D, 0.1875 at 256 dims.
    assert alignment_weight(16.0, "paper", 256) == 0.1875
    assert alignment_weight(16.0, "norm", 256) == 16.0
    delta = torch.randn(7, 256)
    summed = 3 * delta.square().mean()
    ours = delta.square().sum(1).mean()
    torch.testing.assert_close(16 * summed, alignment_weight(16.0, "paper", 256) * ours)
