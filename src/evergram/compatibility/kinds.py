"""The kinds of backward transforms, with the settings of each, for recipes' `[upgrade]`.

Importing this does not import torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from evergram.errors import ShapeError
from evergram.kinds import Kinds, KindSettings, Positive, Weight

if TYPE_CHECKING:
    import torch

    from evergram.compatibility.transforms import Transform


# Of λ: on mean ‖δ‖², or as the authors of [BC] count it, see `alignment_loss.alignment_weight`.
LambdaUnit = Literal["norm", "paper"]


class TransformSettings(KindSettings):
    """Settings of a transform, and how it is made."""

    # True if `fit_closed_form` solves for it.
    has_closed_form: ClassVar[bool] = False
    # True if it has parameters.
    is_learned: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def transform_class(cls) -> type[Transform]:
        """Return the class, which is built by (old_dim, new_dim, generator=…, **options)."""

    def options(self) -> dict[str, Any]:
        """Return the keywords of `transform_class()` other than the dims, as JSON for artefacts."""
        return self.model_dump(exclude={"kind"})


class LinearSettings(TransformSettings):
    """W z."""

    kind: Literal["linear"] = "linear"
    has_closed_form = True

    @classmethod
    def transform_class(cls) -> type[Transform]:
        from evergram.compatibility.transforms import LinearTransform

        return LinearTransform


class TruncateSettings(TransformSettings):
    """The first coordinates."""

    kind: Literal["truncate"] = "truncate"
    is_learned = False

    @classmethod
    def transform_class(cls) -> type[Transform]:
        from evergram.compatibility.transforms import TruncateTransform

        return TruncateTransform


class AffineSettings(TransformSettings):
    """W z + b."""

    kind: Literal["affine"] = "affine"
    has_closed_form = True

    @classmethod
    def transform_class(cls) -> type[Transform]:
        from evergram.compatibility.transforms import AffineTransform

        return AffineTransform


class OrthogonalSettings(TransformSettings):
    """Q z with orthonormal rows."""

    kind: Literal["orthogonal"] = "orthogonal"
    has_closed_form = True

    @classmethod
    def transform_class(cls) -> type[Transform]:
        from evergram.compatibility.transforms import OrthogonalTransform

        return OrthogonalTransform


class LowRankSettings(TransformSettings):
    """L R z of rank `rank`."""

    kind: Literal["low_rank"] = "low_rank"
    has_closed_form = True
    rank: Positive = 32

    @classmethod
    def transform_class(cls) -> type[Transform]:
        from evergram.compatibility.transforms import LowRankTransform

        return LowRankTransform


class LambdaOrthogonalSettings(TransformSettings):
    """W z, with `orthogonality` · ‖W Wᵀ − I‖² in training."""

    kind: Literal["lambda_orthogonal"] = "lambda_orthogonal"
    orthogonality: Weight = 0.1

    @classmethod
    def transform_class(cls) -> type[Transform]:
        from evergram.compatibility.transforms import LambdaOrthogonalTransform

        return LambdaOrthogonalTransform

    def options(self) -> dict[str, Any]:
        return {"strength": self.orthogonality}


class ResidualMLPSettings(TransformSettings):
    """W z + V relu(U z + a) + b, with 128 hidden units."""

    kind: Literal["residual_mlp"] = "residual_mlp"

    @classmethod
    def transform_class(cls) -> type[Transform]:
        from evergram.compatibility.transforms import ResidualMLPTransform

        return ResidualMLPTransform

    def options(self) -> dict[str, Any]:
        return {"hidden": 128}


class _Transforms(Kinds[TransformSettings]):
    """The table of transforms: `transform = "affine"` is short for `{kind = "affine"}`."""

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
    """Return a transform of a kind, as artefacts describe it.

    Args:
        options: as `Transform.options` gives them.
        generator: draws the start; None starts with the first coordinates.
    Raises: ShapeError: no transform is of that kind, it does not take these options, or its
        settings or its class say that they are of another.
    """
    if kind not in TRANSFORMS:
        raise ShapeError(f"The transform {kind!r} is none of {', '.join(TRANSFORMS)}.")
    built = TRANSFORMS[kind].transform_class()
    if built.kind != kind:
        raise ShapeError(
            f"{built.__name__}.kind is {built.kind!r}, and TRANSFORMS has it as {kind!r}: a "
            f"version would be read again by another class. Set kind = {kind!r} in it."
        )
    make: Callable[..., Transform] = built
    try:
        return make(old_dim, new_dim, generator=generator, **(options or {}))
    except TypeError as error:
        raise ShapeError(f"The transform {kind!r} does not take {options}.") from error
