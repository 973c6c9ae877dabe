"""The multi-step loss against explicit products, and λ in its two units."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.compatibility.alignment_loss import AlignmentLoss, alignment_weight, history_metric
from evergram.compatibility.chain import Chain
from evergram.compatibility.consumers.consumer_metric import consumer_metric
from evergram.compatibility.transforms import (
    LinearTransform,
    ResidualMLPTransform,
    Transform,
)
from evergram.errors import ShapeError


def draw_history(
    versions: int, seed: int
) -> tuple[list[torch.Tensor], LinearTransform, torch.Tensor, torch.Tensor]:
    """W_1 … W_{k-1}, B_k, z_k and z_{k-1}, float64."""
    draw = torch.Generator().manual_seed(seed)
    dims = [int(torch.randint(1, 5, (), generator=draw)) for _ in range(versions + 1)]
    *steps, last = [
        torch.randn(a, b, generator=draw, dtype=torch.float64) for a, b in itertools.pairwise(dims)
    ]
    new = torch.randn(6, dims[-1], generator=draw, dtype=torch.float64)
    old = torch.randn(6, dims[-2], generator=draw, dtype=torch.float64)
    return steps, LinearTransform.from_matrix(last), new, old


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(["norm", "paper"]))
def test_one_matrix_stands_for_all_of_history(
    versions: int, seed: int, unit: Literal["norm", "paper"]
) -> None:
    """[BC] Eq. (10): (1/k) Σ_{j<k} ‖W_{k-1}^j δ‖², with every product multiplied out; by the
    authors' code each is divided by its dims, here times those of version k-1."""
    steps, transform, new, old = draw_history(versions, seed)
    dim = steps[0].shape[0] if steps else old.shape[1]
    chain = Chain([LinearTransform.from_matrix(step) for step in steps], dim)
    loss = AlignmentLoss(chain, unit=unit)
    metric = history_metric(steps, dim, unit)
    expected, by_metric = 0.0, 0.0
    for z, past in zip(new, old, strict=True):
        delta = transform.weight.detach() @ z - past
        by_metric += float(delta @ metric @ delta)
        walked = delta
        expected += float(walked.square().sum())
        for step in reversed(steps):
            walked = step @ walked
            share = 1.0 if unit == "norm" else len(delta) / len(walked)
            expected += share * float(walked.square().sum())
    value = loss(transform, new, loss.lifted(old), torch.ones(6, dtype=torch.float64))
    assert float(value.detach()) == pytest.approx(expected / 6 / versions, rel=1e-9)
    assert by_metric == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("steps", ["multi", "single"])
def test_its_gradient_is_that_of_the_formula(steps: Literal["multi", "single"]) -> None:
    back, transform, new, old = draw_history(3, 7)
    chain = Chain([LinearTransform.from_matrix(step) for step in back], back[0].shape[0])
    loss = AlignmentLoss(chain, steps)
    weight = torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.float64)

    def of(matrix: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        moved = LinearTransform(*matrix.shape)
        del moved.weight
        moved.weight = matrix  # type: ignore[assignment]
        value: torch.Tensor = loss(moved, z, loss.lifted(old), weight)
        return value

    matrix = transform.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(of, (matrix, new.clone().requires_grad_()))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 4), st.integers(0, 10**6), st.sampled_from(["norm", "paper"]))
def test_walking_down_gives_the_same_as_the_matrix(
    versions: int, seed: int, unit: Literal["norm", "paper"]
) -> None:
    """A residual MLP whose bent part is zero is linear, and takes the other way to the number."""
    steps, transform, new, old = draw_history(versions, seed)
    straight = [LinearTransform.from_matrix(step) for step in steps]
    bent: list[Transform] = []
    for step in steps:
        mlp = ResidualMLPTransform(step.shape[0], step.shape[1], hidden=3).double()
        mlp.weight = torch.nn.Parameter(step.clone())
        bent.append(mlp)
    dim = steps[0].shape[0]
    weight = torch.ones(6, dtype=torch.float64)
    values = []
    for transforms in (straight, bent):
        loss = AlignmentLoss(Chain(transforms, dim), unit=unit)
        values.append(float(loss(transform, new, loss.lifted(old), weight).detach()))
    assert values[0] == pytest.approx(values[1], rel=1e-9)


@pytest.mark.parametrize("steps", ["multi", "single"])
def test_at_one_past_version_it_is_the_single_step_loss(steps: Literal["multi", "single"]) -> None:
    transform = LinearTransform.from_matrix(torch.eye(2))
    new, old = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]])
    loss = AlignmentLoss(Chain([], 2), steps)
    # 1² + 2²
    assert float(loss(transform, new, loss.lifted(old), torch.ones(1)).detach()) == 5.0


def test_objects_that_take_no_part_have_no_gradient_and_no_share() -> None:
    transform, loss = LinearTransform.from_matrix(torch.eye(2)), AlignmentLoss(Chain([], 2))
    new = torch.ones(3, 2, requires_grad=True)
    weight = torch.tensor([1.0, 0.0, 1.0])
    value = loss(transform, new, torch.zeros(3, 2), weight)
    assert float(value.detach()) == 2.0
    value.backward()
    assert new.grad is not None
    assert new.grad[1].tolist() == [0.0, 0.0]
    none = loss(transform, new, torch.zeros(3, 2), torch.zeros(3))
    assert float(none.detach()) == 0.0
    with pytest.raises(ShapeError, match="same objects"):
        loss(transform, new, torch.zeros(2, 2), torch.zeros(2))


def test_the_papers_unit_is_three_means_over_dims_too() -> None:
    # method.md: λ = 16 of the code is 48/D, 0.1875 at 256 dims.
    assert alignment_weight(16.0, "paper", 256) == 0.1875
    assert alignment_weight(16.0, "norm", 256) == 16.0
    delta = torch.randn(7, 256)
    summed = 3 * delta.square().mean()
    ours = delta.square().sum(1).mean()
    torch.testing.assert_close(16 * summed, alignment_weight(16.0, "paper", 256) * ours)


def metrics_of(seed: int, dims: list[int]) -> dict[int, torch.Tensor]:
    """A_j of every version but version 1, which has no consumers."""
    draw = torch.Generator().manual_seed(seed)
    made = {}
    for version, dim in enumerate(dims):
        rows = torch.randn(2, dim, generator=draw, dtype=torch.float64)
        made[version] = consumer_metric([rows.T @ rows], 0.7)
    made.pop(1, None)
    return made


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 10**6), st.sampled_from(["norm", "paper"]), st.booleans())
def test_consumers_weigh_the_error_at_each_version(
    versions: int, seed: int, unit: Literal["norm", "paper"], walks: bool
) -> None:
    """(1/k) Σ_{j<k} (W_{k-1}^j δ)ᵀ A_j (W_{k-1}^j δ), row by row, with every product written out;
    by one matrix, and by walking down transforms that are not known to be affine."""
    steps, transform, new, old = draw_history(versions, seed)
    dims = [steps[0].shape[0] if steps else old.shape[1], *(s.shape[1] for s in steps)]
    own = metrics_of(seed, dims)
    past: list[Transform] = [LinearTransform.from_matrix(step) for step in steps]
    if walks:
        for i, step in enumerate(steps):
            past[i] = ResidualMLPTransform(step.shape[0], step.shape[1], hidden=3).double()
            past[i].weight = torch.nn.Parameter(step.clone())
    loss = AlignmentLoss(Chain(past, dims[0]), unit=unit, metrics=own)
    expected = 0.0
    for z, before in zip(new, old, strict=True):
        walked = transform.weight.detach() @ z - before
        for version in range(versions - 1, -1, -1):
            a = own.get(version, torch.eye(dims[version], dtype=torch.float64))
            share = dims[-1] / dims[version] if unit == "paper" else 1.0
            expected += share * float(walked @ a @ walked)
            if version:
                walked = steps[version - 1] @ walked
    value = loss(transform, new, loss.lifted(old), torch.ones(6, dtype=torch.float64))
    assert float(value.detach()) == pytest.approx(expected / 6 / versions, rel=1e-9)


@pytest.mark.parametrize("steps", ["multi", "single"])
def test_its_gradient_is_that_of_the_weighed_formula(steps: Literal["multi", "single"]) -> None:
    back, transform, new, old = draw_history(3, 7)
    chain = Chain([LinearTransform.from_matrix(step) for step in back], back[0].shape[0])
    own = metrics_of(3, [chain.dim(n) for n in range(3)])
    loss = AlignmentLoss(chain, steps, metrics=own)
    if steps == "single":
        assert loss.metric is not None
        assert torch.equal(loss.metric, own[2])

    def of(matrix: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        moved = LinearTransform(*matrix.shape)
        del moved.weight
        moved.weight = matrix  # type: ignore[assignment]
        value: torch.Tensor = loss(moved, z, loss.lifted(old), torch.ones(6).double())
        return value

    matrix = transform.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(of, (matrix, new.clone().requires_grad_()))


@pytest.mark.parametrize("steps", ["multi", "single"])
@pytest.mark.parametrize("versions", [1, 3])
def test_without_consumers_nothing_changes_by_a_bit(
    versions: int, steps: Literal["multi", "single"]
) -> None:
    back, transform, new, old = draw_history(versions, 5)
    dim = back[0].shape[0] if back else old.shape[1]
    chain = Chain([LinearTransform.from_matrix(step) for step in back], dim)
    eyes = {n: torch.eye(chain.dim(n), dtype=torch.float64) for n in range(versions)}
    values = []
    for metrics in (None, {}, eyes):
        loss = AlignmentLoss(chain, steps, metrics=metrics)
        value = loss(transform, new, loss.lifted(old), torch.ones(6).double())
        values.append(float(value.detach()))
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({1: torch.eye(2)}, "of version 1 was given; there are versions 0 to 0"),
        ({0: torch.eye(3)}, r"is \[3, 3\]; it must be \[2, 2\]"),
        ({0: torch.diag(torch.tensor([1.0, 0.0]))}, "not symmetric and positive definite"),
        ({0: torch.tensor([[1.0, 0.5], [0.0, 1.0]])}, "not symmetric and positive definite"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(
    metrics: dict[int, torch.Tensor], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        AlignmentLoss(Chain([], 2), metrics=metrics)
