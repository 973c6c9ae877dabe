"""Every kind of backward transform, and the loss that aligns it, against explicit products."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.support.subclasses import concrete_subclasses
from torch import Tensor, nn

import evergram.compatibility
from evergram.compatibility import BackwardAlignment, fit_closed_form
from evergram.compatibility.alignment_loss import (
    AlignmentLoss,
    GradientFit,
    alignment_weight,
    fit_by_gradient,
    history_metric,
)
from evergram.compatibility.chain import Chain
from evergram.compatibility.closed_forms import KINDS as CLOSED_FORMS
from evergram.compatibility.closed_forms import SecondMoments
from evergram.compatibility.kinds import (
    TRANSFORMS,
    LinearSettings,
    build_transform,
)
from evergram.compatibility.transforms import (
    LambdaOrthogonalTransform,
    LinearTransform,
    LowRankTransform,
    OrthogonalTransform,
    ResidualMLPTransform,
    Transform,
    TruncateTransform,
)
from evergram.errors import ShapeError

DIMS = [(3, 5), (4, 4), (5, 3)]
OPTIONS = {"low_rank": {"rank": 2}, "residual_mlp": {"hidden": 6}}


def build(kind: str, old: int, new: int, seed: int = 0) -> Transform:
    return build_transform(kind, old, new, OPTIONS.get(kind), torch.Generator().manual_seed(seed))


def shaken(kind: str, old: int, new: int) -> Transform:
    """One that has been trained a little: nothing in it is at its start any more."""
    transform = build(kind, old, new)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in transform.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.3)
    return transform


def test_every_transform_of_the_package_is_in_the_table_under_its_kind() -> None:
    made = {kind: settings.transform_class() for kind, settings in TRANSFORMS.items()}
    assert set(made.values()) == concrete_subclasses(evergram.compatibility, Transform)
    assert {kind: each.kind for kind, each in made.items()} == {kind: kind for kind in TRANSFORMS}


@pytest.mark.parametrize("kind", list(TRANSFORMS))
def test_its_settings_give_its_options_and_abilities(kind: str) -> None:
    settings = TRANSFORMS[kind]()
    transform = build_transform(kind, 40, 50, settings.options())
    assert transform.options == settings.options()
    assert bool(list(transform.parameters())) == settings.is_learned
    assert settings.has_closed_form == (kind in CLOSED_FORMS)


@pytest.mark.parametrize(("old", "new"), DIMS)
@pytest.mark.parametrize("kind", list(TRANSFORMS))
class TestTransform:
    def test_shapes_and_batch_dimensions(self, kind: str, old: int, new: int) -> None:
        transform = shaken(kind, old, new)
        z = torch.randn(2, 7, new)
        mapped = transform(z)
        assert mapped.shape == (2, 7, old)
        torch.testing.assert_close(mapped[1, 3], transform(z[1, 3]))
        with pytest.raises(ShapeError, match=f"takes {new}"):
            transform(torch.ones(1, new + 1))

    def test_same_seed_same_start(self, kind: str, old: int, new: int) -> None:
        z = torch.randn(4, new)
        assert torch.equal(build(kind, old, new)(z), build(kind, old, new)(z))
        if kind != "truncate":
            assert not torch.equal(build(kind, old, new)(z), build(kind, old, new, seed=1)(z))

    def test_its_state_is_restored_from_disk(
        self, kind: str, old: int, new: int, tmp_path: Path
    ) -> None:
        transform, z = shaken(kind, old, new), torch.randn(4, new)
        save_file(transform.state_dict(), tmp_path / "t.safetensors")
        options = json.loads(json.dumps(transform.options))
        again = build_transform(kind, old, new, options)
        again.load_state_dict(load_file(tmp_path / "t.safetensors"))
        assert torch.equal(again(z), transform(z))

    def test_its_matrix_gives_the_same_vectors(self, kind: str, old: int, new: int) -> None:
        transform, z = shaken(kind, old, new), torch.randn(4, new)
        affine = transform.affine()
        if affine is None:
            # Not affine: the middle of two is not taken to the middle of their images.
            middle = (transform(9 * z) + transform(-9 * z)) / 2
            assert not torch.allclose(transform(0 * z), middle)
            return
        weight, offset = affine
        assert weight.shape == (old, new)
        expected = z @ weight.T + (0 if offset is None else offset)
        torch.testing.assert_close(transform(z), expected)

    def test_its_gradient_is_right(self, kind: str, old: int, new: int) -> None:
        transform = shaken(kind, old, new).double()
        z = torch.randn(3, new, dtype=torch.float64, requires_grad=True)
        names = [name for name, _ in transform.named_parameters()]
        values = tuple(p.detach().clone().requires_grad_() for p in transform.parameters())

        def of(z: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
            mapped = torch.func.functional_call(transform, dict(zip(names, values, strict=True)), z)
            assert isinstance(mapped, torch.Tensor)
            return mapped

        assert torch.autograd.gradcheck(of, (z, *values))

    def test_training_brings_it_nearer(self, kind: str, old: int, new: int) -> None:
        if kind == "truncate":
            pytest.skip("it has nothing to train")
        transform, loss = build(kind, old, new), AlignmentLoss(Chain([], old))
        draw = torch.Generator().manual_seed(2)
        z = torch.randn(200, new, generator=draw)
        past = z @ torch.randn(new, old, generator=draw) + 1
        weight = torch.ones(200)
        with torch.no_grad():
            before = float(loss(transform, z, past, weight))
        fit_by_gradient(transform, z, past, loss, GradientFit(0.05, epochs=50, batch_size=64))
        with torch.no_grad():
            assert float(loss(transform, z, past, weight)) < 0.9 * before

    def test_a_chain_of_it_and_a_linear_one(self, kind: str, old: int, new: int) -> None:
        first, second = LinearTransform(2, old), shaken(kind, old, new)
        third = LinearTransform(new, 6)
        chain = Chain([first, second, third], 2)
        z = torch.randn(4, 6)
        with torch.no_grad():
            expected = first(second(third(z)))
        torch.testing.assert_close(chain.apply(z, 3, 0), expected)
        torch.testing.assert_close(chain.apply(chain.apply(z, 3, 1), 1, 0), expected)
        assert chain.is_affine(3, 0) == (second.affine() is not None)
        if not chain.is_affine(3, 0):
            assert chain.is_affine(3, 2)
            with pytest.raises(ShapeError, match="no single matrix"):
                chain.matrix(3, 0)


@pytest.mark.parametrize(("old", "new"), DIMS)
def test_orthogonal_stays_orthogonal_and_keeps_one_that_is(old: int, new: int) -> None:
    transform = shaken("orthogonal", old, new)
    assert isinstance(transform, OrthogonalTransform)
    weight = transform.weight.detach()
    small = weight @ weight.T if old <= new else weight.T @ weight
    torch.testing.assert_close(small, torch.eye(min(old, new)))
    again = OrthogonalTransform.from_matrix(weight)
    torch.testing.assert_close(again.weight.detach(), weight)


def test_truncate_takes_the_first_and_fills_up() -> None:
    z = torch.tensor([[1.0, 2.0, 3.0]])
    assert TruncateTransform(2, 3)(z).tolist() == [[1.0, 2.0]]
    assert TruncateTransform(4, 3)(z).tolist() == [[1.0, 2.0, 3.0, 0.0]]
    assert not list(TruncateTransform(2, 3).parameters())


def test_low_rank_has_that_rank() -> None:
    transform = LowRankTransform.from_factors(torch.randn(5, 2), torch.randn(2, 4))
    assert int(torch.linalg.matrix_rank(transform.affine()[0].detach())) == 2
    assert LowRankTransform(3, 4, rank=99).rank == 3


@pytest.mark.parametrize(("old", "new"), DIMS)
def test_the_orthogonality_penalty(old: int, new: int) -> None:
    transform = LambdaOrthogonalTransform(old, new, strength=0.5)
    assert float(transform.penalty().detach()) == pytest.approx(0, abs=1e-9)
    transform.weight = torch.nn.Parameter(2 * transform.weight.detach())
    # Each of the smaller side's diagonal entries is 4 in place of 1.
    assert float(transform.penalty().detach()) == pytest.approx(0.5 * 9 * min(old, new), rel=1e-5)


def test_a_wrong_kind_or_option_is_one_sentence() -> None:
    with pytest.raises(ShapeError, match="known are linear"):
        build_transform("cubic", 2, 3)
    with pytest.raises(ShapeError, match="does not take"):
        build_transform("linear", 2, 3, {"rank": 2})


def test_without_a_generator_a_transform_starts_with_the_first_coordinates() -> None:
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    for kind in set(TRANSFORMS) - {"low_rank"}:
        with torch.no_grad():
            torch.testing.assert_close(build_transform(kind, 3, 4)(z), z[:, :3])


def test_a_class_that_took_its_parents_kind_along_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A version with it would be read again by its parent."""

    class Flip(LinearTransform):
        pass

    class FlipSettings(LinearSettings):
        kind: Literal["flip"] = "flip"  # type: ignore[assignment]

        @classmethod
        def transform_class(cls) -> type[Transform]:
            return Flip

    monkeypatch.setitem(TRANSFORMS, "flip", FlipSettings)
    with pytest.raises(ShapeError, match=r"Flip\.kind is 'linear', .* Set kind = 'flip'"):
        build_transform("flip", 3, 4)
    monkeypatch.setattr(Flip, "kind", "flip")
    assert build_transform("flip", 3, 4).kind == "flip"


ROWS = 7


def history(versions: int, seed: int) -> tuple[list[Tensor], LinearTransform, Tensor, Tensor]:
    """W_1 … W_{k-1}, B_k, z_k and z_{k-1}, float64."""
    draw = torch.Generator().manual_seed(seed)
    dims = torch.randint(1, 5, (versions + 1,), generator=draw).tolist()

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    *steps, last = [matrix(a, b) for a, b in itertools.pairwise(dims)]
    return steps, LinearTransform.from_matrix(last), matrix(ROWS, dims[-1]), matrix(ROWS, dims[-2])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(["norm", "paper"]))
def test_one_matrix_stands_for_all_of_history(
    versions: int, seed: int, unit: Literal["norm", "paper"]
) -> None:
    """[BC] Eq. (10): (1/k) Σ_{j<k} ‖W_{k-1}^j δ‖², with every product multiplied out; by the
    authors' code each is divided by its dims, here times those of version k-1."""
    steps, transform, new, old = history(versions, seed)
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
    value = loss(transform, new, loss.lifted(old), torch.ones(ROWS).double())
    assert float(value.detach()) == pytest.approx(expected / ROWS / versions, rel=1e-9)
    assert by_metric == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("steps", ["multi", "single"])
def test_its_gradient_is_that_of_the_formula(steps: Literal["multi", "single"]) -> None:
    back, transform, new, old = history(3, 7)
    chain = Chain([LinearTransform.from_matrix(step) for step in back], back[0].shape[0])
    loss = AlignmentLoss(chain, steps)
    weight = torch.tensor([1, 0, 1, 1, 0, 1, 1], dtype=torch.float64)

    def of(matrix: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        moved = LinearTransform(*matrix.shape)
        del moved.weight
        moved.weight = matrix  # type: ignore[assignment]
        value: torch.Tensor = loss(moved, z, loss.lifted(old), weight)
        return value

    matrix = transform.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(of, (matrix, new.clone().requires_grad_()))


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


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 10**6), st.sampled_from(["norm", "paper"]), st.booleans())
def test_walking_down_the_past_is_the_same_as_one_matrix(
    versions: int, seed: int, unit: Literal["norm", "paper"], walks: bool
) -> None:
    """(1/k) Σ_{j<k} ‖W_{k-1}^j δ‖², row by row, with every product written out; by one matrix, and
    by walking down transforms that are not known to be affine."""
    steps, transform, new, old = history(versions, seed)
    dims = [steps[0].shape[0] if steps else old.shape[1], *(s.shape[1] for s in steps)]
    past: list[Transform] = [LinearTransform.from_matrix(step) for step in steps]
    if walks:
        for i, step in enumerate(steps):
            past[i] = ResidualMLPTransform(step.shape[0], step.shape[1], hidden=3).double()
            past[i].weight = torch.nn.Parameter(step.clone())
    loss = AlignmentLoss(Chain(past, dims[0]), unit=unit)
    expected = 0.0
    for z, before in zip(new, old, strict=True):
        walked = transform.weight.detach() @ z - before
        for version in range(versions - 1, -1, -1):
            share = dims[-1] / dims[version] if unit == "paper" else 1.0
            expected += share * float(walked @ walked)
            if version:
                walked = steps[version - 1] @ walked
    value = loss(transform, new, loss.lifted(old), torch.ones(ROWS).double())
    assert float(value.detach()) == pytest.approx(expected / ROWS / versions, rel=1e-9)


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
def test_the_gradient_of_the_mean_square_is_that_of_the_formula(versions: int) -> None:
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
        ({"past": []}, "past"),
        ({"past": [4, 5]}, "past"),
        ({"past": 0}, "past"),
        ({"transform": "mlp"}, "'mlp'"),
        ({"transform": LinearTransform(3, 3)}, r"\[3, 3\]"),
        ({"unit": "dims"}, "unit"),
        ({"steps": "all"}, "steps"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        BackwardAlignment(**{"new_dim": 3, "past": 2, **arguments})


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_inputs_are_computed_in_the_dtype_of_the_transform(dtype: torch.dtype) -> None:
    backward = BackwardAlignment(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = backward(torch.ones(2, 4, dtype=dtype), torch.ones(2, 3, dtype=dtype))
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, backward(torch.ones(2, 4), torch.ones(2, 3)))
