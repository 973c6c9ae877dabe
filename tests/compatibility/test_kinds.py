"""Transforms by their kind; unknown kinds and options are refused."""

from __future__ import annotations

import pytest
import torch

from evergram.compatibility.kinds import (
    TRANSFORMS,
    LambdaOrthogonalSettings,
    LinearSettings,
    LowRankSettings,
    ResidualMLPSettings,
    build_transform,
)
from evergram.compatibility.transforms import LinearTransform, Transform
from evergram.errors import ShapeError


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ShapeError, match="'turn' is none of linear, truncate, affine, orthogonal"):
        build_transform("turn", 3, 4)


def test_options_of_another_kind_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"'linear' does not take \{'rank': 2\}"):
        build_transform("linear", 3, 4, {"rank": 2})
    assert build_transform("low_rank", 3, 4, {"rank": 2}).options == {"rank": 2}


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
        @classmethod
        def transform_class(cls) -> type[Transform]:
            return Flip

    monkeypatch.setitem(TRANSFORMS, "flip", FlipSettings)
    with pytest.raises(ShapeError, match=r"FlipSettings\.kind is 'linear', .* as 'flip'"):
        build_transform("flip", 3, 4)
    monkeypatch.setattr(FlipSettings, "kind", "flip")
    with pytest.raises(ShapeError, match=r"Flip\.kind is 'linear', .* Set kind = 'flip'"):
        build_transform("flip", 3, 4)
    monkeypatch.setattr(Flip, "kind", "flip")
    assert build_transform("flip", 3, 4).kind == "flip"
