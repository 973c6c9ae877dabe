"""The loss for anybody's loop is the room's own, and does what [BC] says."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from evergram.compatibility import AlignmentLoss, BackwardAlignment, Chain, fit_closed_form
from evergram.compatibility.consumers.consumer_metric import consumer_metric
from evergram.compatibility.kinds import TRANSFORMS, build_transform
from evergram.compatibility.second_moments import SecondMoments
from evergram.compatibility.transforms import LinearTransform, ResidualMLPTransform, Transform
from evergram.errors import ShapeError

ROWS = 7


def history(versions: int, seed: int) -> tuple[list[Tensor], LinearTransform, Tensor, Tensor]:
    """W_1 … W_{k-1}, B_k, z_k and z_{k-1}, float64."""
    draw = torch.Generator().manual_seed(seed)
    dims = torch.randint(1, 5, (versions + 1,), generator=draw).tolist()

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    *steps, last = [matrix(a, b) for a, b in itertools.pairwise(dims)]
    return steps, LinearTransform.from_matrix(last), matrix(ROWS, dims[-1]), matrix(ROWS, dims[-2])


def past_of(steps: list[Tensor], old: Tensor) -> int | list[Transform]:
    return [LinearTransform.from_matrix(step) for step in steps] if steps else old.shape[1]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(["norm", "paper"]))
def test_it_is_the_sum_over_past_versions_row_by_row(
    versions: int, seed: int, unit: Literal["norm", "paper"]
) -> None:
    """[BC] Eq. (3) and (10), every product multiplied out, one row and one version at a time."""
    steps, transform, new, old = history(versions, seed)
    backward = BackwardAlignment(
        new.shape[1], past_of(steps, old), transform, weight=0.7, unit=unit
    )
    mask = torch.tensor([1, 0, 1, 1, 1, 0, 1], dtype=torch.bool)
    total = 0.0
    for z, past, counts in zip(new, old, mask, strict=True):
        if not counts:
            continue
        error = [
            sum(float(w) * float(x) for w, x in zip(row, z, strict=True)) - float(target)
            for row, target in zip(transform.weight.detach(), past, strict=True)
        ]
        # The authors' code sums three means over each version's dims too.
        total += sum(e**2 for e in error) * (1 if unit == "norm" else 3 / len(error))
        for step in reversed(steps):
            error = [sum(float(w) * e for w, e in zip(row, error, strict=True)) for row in step]
            total += sum(e**2 for e in error) * (1 if unit == "norm" else 3 / len(error))
    expected = 0.7 * total / int(mask.sum()) / versions
    assert float(backward(new, old, mask).detach()) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.sampled_from(sorted(TRANSFORMS)),
    st.sampled_from(["multi", "single"]),
)
def test_it_equals_the_rooms_own_loss(
    versions: int, seed: int, kind: str, steps: Literal["multi", "single"]
) -> None:
    back, _, new, old = history(versions, seed)
    draw = torch.Generator().manual_seed(seed)
    transform = build_transform(kind, old.shape[1], new.shape[1], generator=draw).double()
    past = past_of(back, old)
    chain = Chain([], past) if isinstance(past, int) else Chain(past, past[0].old_dim)
    loss = AlignmentLoss(chain, steps)
    own = loss(transform, new, loss.lifted(old), torch.ones(ROWS).double())
    for given_past in (past, chain):
        backward = BackwardAlignment(new.shape[1], given_past, transform, weight=2.5, steps=steps)
        expected = 2.5 * own + transform.penalty()
        torch.testing.assert_close(backward(new, old), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("versions", [1, 3])
def test_its_gradient_is_that_of_the_formula(versions: int) -> None:
    steps, transform, new, old = history(versions, 11)
    backward = BackwardAlignment(new.shape[1], past_of(steps, old), transform)

    def of(matrix: Tensor, z: Tensor) -> Tensor:
        changed = {"transform.weight": matrix}
        value: Tensor = torch.func.functional_call(backward, changed, (z, old))
        return value

    arguments = transform.weight.detach().clone().requires_grad_(), new.clone().requires_grad_()
    assert torch.autograd.gradcheck(of, arguments)
    old.requires_grad_()
    backward(new, old).backward()
    assert old.grad is None


def test_the_past_is_not_trained_and_one_optimiser_trains_the_rest() -> None:
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(200, 6, generator=draw)
    old = features @ torch.randn(6, 4, generator=draw)
    torch.manual_seed(0)
    bent = ResidualMLPTransform(3, 4, generator=draw)  # not affine: the past is walked
    before = {k: v.clone() for k, v in bent.state_dict().items()}
    model = nn.Linear(6, 5)
    backward = BackwardAlignment(5, [bent])
    optimizer = torch.optim.Adam([*model.parameters(), *backward.parameters()], lr=0.05)
    losses = []
    for _ in range(150):
        loss = backward(model(features), old)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.05 * losses[0]
    assert all(torch.equal(v, before[k]) for k, v in bent.state_dict().items())
    with torch.no_grad():
        new = model(features)
        read = backward.chain().apply(new, 2, 0)
        torch.testing.assert_close(read, bent(backward.transform(new)))
        assert float((read - bent(old)).square().mean()) < 0.1 * float(bent(old).square().mean())


def test_training_the_transform_alone_comes_to_the_closed_form() -> None:
    """Another algorithm: least squares from second moments."""
    draw = torch.Generator().manual_seed(1)
    new = torch.randn(100, 4, generator=draw, dtype=torch.float64)
    old = new @ torch.randn(4, 3, generator=draw, dtype=torch.float64)
    old = old + 0.3 * torch.randn(100, 3, generator=draw, dtype=torch.float64)
    moments = SecondMoments(3, 4)
    moments.add(old, new)
    backward = BackwardAlignment(4, 3).double()
    optimizer = torch.optim.LBFGS(backward.parameters(), max_iter=200, tolerance_change=1e-14)

    def closure() -> float:
        optimizer.zero_grad()
        loss: Tensor = backward(new, old)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    matrix = backward.chain().matrix(1, 0)
    torch.testing.assert_close(matrix, fit_closed_form("linear", moments).weight, rtol=0, atol=1e-5)


def test_it_resumes_from_its_state() -> None:
    steps, _, new, old = history(3, 5)
    past = past_of(steps, old)
    torch.manual_seed(0)
    one = BackwardAlignment(new.shape[1], past).double()
    other = BackwardAlignment(new.shape[1], past).double()
    assert not torch.equal(one(new, old), other(new, old))  # each is drawn from the generator
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(new, old), other(new, old))
    torch.manual_seed(0)
    again = BackwardAlignment(new.shape[1], past).double()
    assert torch.equal(one(new, old), again(new, old))


def test_no_rows_that_take_part_have_no_loss() -> None:
    backward = BackwardAlignment(3, 2)
    new, old = torch.randn(4, 3), torch.randn(4, 2)
    assert float(backward(new, old, torch.zeros(4)).detach()) == 0
    assert float(backward(new[:0], old[:0]).detach()) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"past": []}, "past is \\[\\]; give the dim of version 0"),
        ({"past": [4, 5]}, "past is \\[4, 5\\]"),
        ({"past": 0}, "past is 0"),
        ({"transform": "mlp"}, "'mlp' is none of linear, truncate"),
        (
            {"transform": LinearTransform(3, 3)},
            r"The transform is \[3, 3\]; from 3 dims to 2 it must",
        ),
        ({"weight": -1.0}, "weight is -1.0; it is at least 0"),
        ({"unit": "dims"}, "unit is 'dims'"),
        ({"steps": "all"}, "steps is 'all'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        BackwardAlignment(**{"new_dim": 3, "past": 2, **arguments})


def test_vectors_that_do_not_fit_are_refused_in_a_sentence() -> None:
    backward = BackwardAlignment(3, [LinearTransform(4, 2)])
    new, old = torch.randn(5, 3), torch.randn(5, 2)
    for one, other in ((old, new), (new, old[:4]), (new[0], old[0]), (new, torch.randn(5, 4))):
        with pytest.raises(ShapeError, match=r"must be \[B, 3\] and \[B, 2\] of the same B"):
            backward(one, other)
    with pytest.raises(ShapeError, match=r"mask is \[4\]; it must be \[5\]"):
        backward(new, old, torch.ones(4))


@pytest.mark.parametrize("name", ["new", "old", "mask"])
def test_arrays_are_refused_in_a_sentence_that_asks_for_tensors(name: str) -> None:
    values: dict[str, Any] = {
        "new": torch.ones(5, 3),
        "old": torch.ones(5, 2),
        "mask": torch.ones(5),
    }
    values[name] = values[name].numpy()
    with pytest.raises(ShapeError, match=rf"^{name} is of type ndarray; it must be a torch tensor"):
        BackwardAlignment(3, 2)(**values)
    values[name] = values[name].tolist()
    with pytest.raises(ShapeError, match=f"^{name} is of type list"):
        BackwardAlignment(3, 2)(**values)


def test_rows_that_the_mask_leaves_out_may_hold_anything() -> None:
    torch.manual_seed(0)
    backward = BackwardAlignment(4, 3)
    new, old = torch.randn(6, 4, requires_grad=True), torch.randn(6, 3)
    mask = torch.tensor([1, 1, 0, 1, 0, 1])
    expected = backward(new[mask > 0], old[mask > 0])
    old[mask == 0] = math.nan
    value = backward(new, old, mask)
    torch.testing.assert_close(value, expected)
    (slope,) = torch.autograd.grad(value, new)
    assert bool(slope.isfinite().all())
    assert not slope[mask == 0].any()


@pytest.mark.parametrize("mask", [[-1.0, 1.0], [0.5, 1.0], [math.nan, 1.0]])
def test_a_mask_of_other_values_is_refused(mask: list[float]) -> None:
    with pytest.raises(ShapeError, match="other than 0 and 1"):
        BackwardAlignment(4, 3)(torch.ones(2, 4), torch.ones(2, 3), torch.tensor(mask))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_inputs_are_computed_in_the_dtype_of_the_transform(dtype: torch.dtype) -> None:
    backward = BackwardAlignment(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = backward(torch.ones(2, 4, dtype=dtype), torch.ones(2, 3, dtype=dtype))
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, backward(torch.ones(2, 4), torch.ones(2, 3)))


def test_integers_and_empty_dims_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"new is of torch\.int64"):
        BackwardAlignment(4, 3)(torch.ones(2, 4, dtype=torch.long), torch.ones(2, 3))
    with pytest.raises(ShapeError, match="new_dim is 0"):
        BackwardAlignment(0, 3)


def test_consumers_weigh_errors_at_their_versions() -> None:
    """λ mean (1/2) (δᵀ A_1 δ + (W_1 δ)ᵀ (W_1 δ)), row by row; without weighing A_1 = I."""
    torch.manual_seed(0)
    step = LinearTransform.from_matrix(torch.randn(3, 4))
    metric = consumer_metric([torch.diag(torch.tensor([1.0, 0.0, 0.0, 0.0]))], 0.5)
    backward = BackwardAlignment(new_dim=5, past=[step], weight=2.0)
    new, old = torch.randn(6, 5), torch.randn(6, 4)
    plain = float(backward(new, old).detach())
    expected = {"plain": 0.0, "weighed": 0.0}
    for z, before in zip(new, old, strict=True):
        delta = backward.transform(z).detach() - before
        further = float((step.weight.detach() @ delta).square().sum())
        expected["plain"] += float(delta.square().sum()) + further
        expected["weighed"] += float(delta @ metric.float() @ delta) + further
    assert plain == pytest.approx(expected["plain"] / 6, rel=1e-5)
    backward.weigh({1: metric})
    assert float(backward(new, old).detach()) == pytest.approx(expected["weighed"] / 6, rel=1e-5)
    with pytest.raises(ShapeError, match="of version 2 was given"):
        backward.weigh({2: metric})
    backward.weigh({})
    assert float(backward(new, old).detach()) == plain
