"""Newton's direction for the penalty, from the Gramian alone."""

from __future__ import annotations

import pytest
import torch

from evergram.gramian.estimator import Moment
from evergram.gramian.preconditioner import preconditioner


def gramian(seed: int, dim: int = 5) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(20, dim, dtype=torch.float64, generator=draw)
    return rows.T @ rows / 20


def test_it_makes_the_penalty_equally_steep_everywhere() -> None:
    """With a small ridge one step of the right length minimises (u − u*)ᵀ G (u − u*)."""
    g = gramian(0)
    inverse = preconditioner([Moment(g)], [3.0], 1e-9)
    draw = torch.Generator().manual_seed(1)
    u, best = torch.randn(2, 5, dtype=torch.float64, generator=draw)
    slope = 2 * g @ (u - best)
    mean = g.trace() / 5
    torch.testing.assert_close(u - inverse @ slope / (2 * mean), best)


def test_several_measures_add_up_by_their_strength() -> None:
    one, two = gramian(0), gramian(1)
    inverse = preconditioner([Moment(one), Moment(two)], [1.0, 2.0], 0.1)
    same = preconditioner([Moment(one + 2 * two)], [1.0], 0.1)
    torch.testing.assert_close(inverse, same)
    # A task of its own moments has no λ.
    unweighted = preconditioner([Moment(one)], [0.0], 0.1)
    torch.testing.assert_close(unweighted, preconditioner([Moment(one)], [7.0], 0.1))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_length_of_embeddings_does_not_matter(scale: float) -> None:
    inverse = preconditioner([Moment(scale * gramian(0))], [1.0], 0.1)
    torch.testing.assert_close(inverse, preconditioner([Moment(gramian(0))], [1.0], 0.1))


def test_before_there_is_a_gramian_it_is_the_identity() -> None:
    inverse = preconditioner([Moment(torch.zeros(3, 3))], [1.0], 0.1)
    torch.testing.assert_close(inverse, torch.eye(3))


def test_an_estimate_with_a_negative_eigenvalue_still_gives_a_positive_one() -> None:
    values = torch.tensor([-0.5, 0.1, 3.0])
    turn = torch.linalg.qr(torch.arange(9.0).view(3, 3).cos()).Q
    inverse = preconditioner([Moment(turn @ torch.diag(values) @ turn.T)], [1.0], 0.1)
    assert float(torch.linalg.eigvalsh(inverse).min()) > 0
    torch.testing.assert_close(inverse, inverse.T)
