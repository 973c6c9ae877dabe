"""The behaviour that every backward transform has, whatever its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.subclasses import concrete_subclasses

import evergram.compatibility
from evergram.compatibility.alignment_loss import AlignmentLoss
from evergram.compatibility.chain import Chain
from evergram.compatibility.closed_form_fit import KINDS as CLOSED_FORMS
from evergram.compatibility.gradient_fit import GradientFit, fit_by_gradient
from evergram.compatibility.kinds import (
    TRANSFORMS,
    LambdaOrthogonalSettings,
    LinearSettings,
    LowRankSettings,
    ResidualMLPSettings,
    build_transform,
)
from evergram.compatibility.transforms import (
    AffineTransform,
    LambdaOrthogonalTransform,
    LinearTransform,
    LowRankTransform,
    OrthogonalTransform,
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
            with pytest.raises(ShapeError, match="not by one matrix"):
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


def test_affine_composes_with_its_offset() -> None:
    first = AffineTransform.from_matrix(torch.randn(2, 3), torch.randn(2))
    second = AffineTransform.from_matrix(torch.randn(3, 4), torch.randn(3))
    chain, z = Chain([first, second], 2), torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(chain.apply(z, 2, 0), first(second(z)))


@pytest.mark.parametrize(("old", "new"), DIMS)
def test_the_orthogonality_penalty(old: int, new: int) -> None:
    transform = LambdaOrthogonalTransform(old, new, strength=0.5)
    assert float(transform.penalty().detach()) == pytest.approx(0, abs=1e-9)
    transform.weight = torch.nn.Parameter(2 * transform.weight.detach())
    # Each of the smaller side's diagonal entries is 4 in place of 1.
    assert float(transform.penalty().detach()) == pytest.approx(0.5 * 9 * min(old, new), rel=1e-5)


def test_a_wrong_kind_or_option_is_one_sentence() -> None:
    with pytest.raises(ShapeError, match="none of linear"):
        build_transform("cubic", 2, 3)
    with pytest.raises(ShapeError, match="does not take"):
        build_transform("linear", 2, 3, {"rank": 2})


def test_keys_of_a_recipe_become_options_of_the_class() -> None:
    assert LowRankSettings(rank=7).options() == {"rank": 7}
    assert LambdaOrthogonalSettings(orthogonality=0.5).options() == {"strength": 0.5}
    assert ResidualMLPSettings(transform_hidden=9).options() == {"hidden": 9}


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
