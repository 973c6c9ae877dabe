"""A transform fitted by descent ends where its closed form is."""

from __future__ import annotations

import torch

from evergram.compatibility import AlignmentLoss, Chain, GradientFit, fit_by_gradient
from evergram.compatibility.transforms import LinearTransform, TruncateTransform

FIT = GradientFit(rate=0.03, epochs=60, batch_size=50, seed=3)


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """New [200, 4] and old [200, 3] vectors of a noisy linear map."""
    draw = torch.Generator().manual_seed(0)
    new = torch.randn(200, 4, generator=draw)
    old = new @ torch.randn(4, 3, generator=draw) + 0.1 * torch.randn(200, 3, generator=draw)
    return new, old


def test_a_linear_transform_ends_at_least_squares() -> None:
    new, old = pairs()
    transform = LinearTransform(3, 4)
    fit_by_gradient(transform, new, old, AlignmentLoss(Chain([], 3)), FIT)
    best = torch.linalg.lstsq(new.double(), old.double()).solution.T
    torch.testing.assert_close(transform.weight.detach().double(), best, rtol=0, atol=0.02)


def test_the_seed_alone_decides_the_order_of_the_pairs() -> None:
    weights = []
    for seed in (3, 3, 4):
        transform = LinearTransform(3, 4)
        settings = GradientFit(rate=0.03, epochs=2, batch_size=50, seed=seed)
        fit_by_gradient(transform, *pairs(), AlignmentLoss(Chain([], 3)), settings)
        weights.append(transform.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_without_parameters_or_pairs_nothing_changes() -> None:
    new, old = pairs()
    loss = AlignmentLoss(Chain([], 3))
    truncate, linear = TruncateTransform(3, 4), LinearTransform(3, 4)
    fit_by_gradient(truncate, new, old, loss, FIT)
    fit_by_gradient(linear, new[:0], old[:0], loss, FIT)
    assert torch.equal(truncate.weight, torch.eye(3, 4))
    assert torch.equal(linear.weight, torch.eye(3, 4))
