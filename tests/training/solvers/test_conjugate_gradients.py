"""Steps on many systems at once, against dense solutions in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergram.training.solvers.conjugate_gradients import descend


def systems(seed: int, rank: int = 5) -> tuple[Tensor, Tensor]:
    """Seven systems of 5 unknowns that have a solution."""
    made = torch.Generator().manual_seed(seed)
    roots = torch.randn(7, 5, rank, generator=made, dtype=torch.float64)
    matrices = roots @ roots.mT
    wanted = torch.randn(7, 5, 1, generator=made, dtype=torch.float64)
    return matrices, (matrices @ wanted)[..., 0]


def value(matrices: Tensor, targets: Tensor, rows: Tensor) -> Tensor:
    return torch.einsum("bi,bij,bj->b", rows, matrices, rows) - 2 * (targets * rows).sum(1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rank", [2, 5])
def test_as_many_steps_as_dims_solve_and_the_gain_is_the_fall(seed: int, rank: int) -> None:
    matrices, targets = systems(seed, rank)
    start = torch.ones(7, 5, dtype=torch.float64)
    inverse = torch.linalg.inv(matrices.mean(0) + 0.1 * torch.eye(5, dtype=torch.float64))
    before = value(matrices, targets, start)
    for steps in (1, 2, 8):
        descent = descend(
            lambda p: (matrices @ p[..., None])[..., 0],
            *(start, targets - (matrices @ start[..., None])[..., 0], inverse),
            *(matrices.diagonal(dim1=1, dim2=2).sum(1), steps),
        )
        after = value(matrices, targets, descent.solution)
        assert bool((after < before).all())
        torch.testing.assert_close(descent.gain, before - after, rtol=1e-9, atol=1e-11)
        assert not bool(descent.endless.any())
    missed = targets - (matrices @ descent.solution[..., None])[..., 0]
    assert float(missed.abs().max()) < 1e-6


def test_a_row_that_is_solved_stays() -> None:
    matrices, targets = systems(0)
    eye = torch.eye(5, dtype=torch.float64)
    start = torch.ones(7, 5, dtype=torch.float64)
    none = torch.zeros_like(targets)
    descent = descend(
        lambda p: (matrices @ p[..., None])[..., 0], start, none, eye, torch.ones(7), 3
    )
    assert torch.equal(descent.solution, start)


def test_a_direction_without_a_minimum_is_reported() -> None:
    matrices, targets = systems(0)
    matrices[3] *= -1
    eye = torch.eye(5, dtype=torch.float64)
    start = torch.zeros(7, 5, dtype=torch.float64)
    descent = descend(
        lambda p: (matrices @ p[..., None])[..., 0], start, targets, eye, torch.ones(7), 2
    )
    assert descent.endless.tolist() == [i == 3 for i in range(7)]
