"""The kinds of backward transforms and their settings, for `[upgrade]` in recipes.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from evergram.errors import ShapeError
from evergram.kinds import Kinds, KindSettings, Positive, imported

if TYPE_CHECKING:
    import torch

    from evergram.compatibility.transforms import Transform


# The unit of λ: a weight of mean ‖δ‖², or as in the code of [BC]; see
# `alignment_loss.alignment_weight`.
LambdaUnit = Literal["norm", "paper"]


class TransformSettings(KindSettings):
    """Settings of a transform, and the class that they build."""

    # The import path of the class that `transform_class` returns.
    built: ClassVar[str]
    # True if `fit_closed_form` can solve for it.
    has_closed_form: ClassVar[bool] = False
    # True if it has parameters.
    is_learned: ClassVar[bool] = True

    @classmethod
    def transform_class(cls) -> type[Transform]:
        """Return the class; it takes (old_dim, new_dim, generator=…, **options)."""
        loaded: type[Transform] = imported(cls.built)
        return loaded

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of the class except the dims, as JSON values."""
        return self.model_dump(exclude={"kind"})


class LinearSettings(TransformSettings):
    """W z."""

    kind: Literal["linear"] = "linear"
    built = "evergram.compatibility.transforms.LinearTransform"
    has_closed_form = True


class TruncateSettings(TransformSettings):
    """The first coordinates."""

    kind: Literal["truncate"] = "truncate"
    built = "evergram.compatibility.transforms.TruncateTransform"
    is_learned = False


class AffineSettings(TransformSettings):
    """W z + b."""

    kind: Literal["affine"] = "affine"
    built = "evergram.compatibility.transforms.AffineTransform"
    has_closed_form = True


class OrthogonalSettings(TransformSettings):
    """Q z with orthonormal rows."""

    kind: Literal["orthogonal"] = "orthogonal"
    built = "evergram.compatibility.transforms.OrthogonalTransform"
    has_closed_form = True


class LowRankSettings(TransformSettings):
    """L R z of rank `rank`."""

    kind: Literal["low_rank"] = "low_rank"
    built = "evergram.compatibility.transforms.LowRankTransform"
    has_closed_form = True
    rank: Positive = 32


class LambdaOrthogonalSettings(TransformSettings):
    """W z, with 0.1 ‖W Wᵀ − I‖² in training."""

    kind: Literal["lambda_orthogonal"] = "lambda_orthogonal"
    built = "evergram.compatibility.transforms.LambdaOrthogonalTransform"

    def options(self) -> dict[str, Any]:
        return {"strength": 0.1}


class ResidualMLPSettings(TransformSettings):
    """W z + V relu(U z + a) + b, with 128 hidden units."""

    kind: Literal["residual_mlp"] = "residual_mlp"
    built = "evergram.compatibility.transforms.ResidualMLPTransform"

    def options(self) -> dict[str, Any]:
        return {"hidden": 128}


class _Transforms(Kinds[TransformSettings]):
    """The table of transforms; `transform = "affine"` is short for `{kind = "affine"}`."""

    is_short = True


TRANSFORMS: Kinds[TransformSettings] = _Transforms(
    "upgrade.transform",
    (
        LinearSettings,
        TruncateSettings,
        AffineSettings,
        OrthogonalSettings,
        LowRankSettings,
        LambdaOrthogonalSettings,
        ResidualMLPSettings,
    ),
)


def build_transform(
    kind: str,
    old_dim: int,
    new_dim: int,
    options: Mapping[str, Any] | None = None,
    generator: torch.Generator | None = None,
) -> Transform:
    """Return a new transform of a kind, with the options of `Transform.options`.

    Args:
        generator: draws the initial weights; None starts with the first coordinates.
    Raises: ShapeError: the kind is unknown, it does not take these options, or its class states a
        different kind.
    """
    if kind not in TRANSFORMS:
        raise ShapeError(f"The transform {kind!r} is unknown; known are {', '.join(TRANSFORMS)}.")
    transform_class = TRANSFORMS[kind].transform_class()
    if transform_class.kind != kind:
        raise ShapeError(
            f"{transform_class.__name__}.kind is {transform_class.kind!r}, but TRANSFORMS lists it "
            f"as {kind!r}: a saved version could not be loaded. Set kind = {kind!r} in the class."
        )
    build: Callable[..., Transform] = transform_class
    try:
        return build(old_dim, new_dim, generator=generator, **(options or {}))
    except TypeError as error:
        raise ShapeError(f"The transform {kind!r} does not take {options}.") from error
