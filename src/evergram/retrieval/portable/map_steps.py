"""The way from a stored version to a past one step by step, where it is no single matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evergram.compatibility.transforms import ResidualMLPTransform, Transform
from evergram.errors import ShapeError
from evergram.lineage.view import View
from evergram.retrieval.portable.affine_map import about_view, checked_name

Matrix: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class AffineStep:
    """z ↦ W z + b, of one transform or of several that follow each other.

    Args:
        weight: W, float32 [D', D].
        offset: b, float32 [D'].
    """

    weight: Matrix
    offset: Matrix


@dataclass(frozen=True)
class ResidualStep:
    """z ↦ W z + V relu(U z + a) + b, a transform of kind residual_mlp.

    Args:
        weight: W, float32 [D', D].
        inner: U and a, from D to hidden numbers.
        outer: V and b, from these to D'.
    """

    weight: Matrix
    inner: AffineStep
    outer: AffineStep


@dataclass(frozen=True)
class MapSteps:
    """The steps from version k to version j, in the order in which they are applied.

    Args:
        name, about: as of `AffineMap`.
        source_dim, dim: D_k and D_j.
    """

    name: str
    about: str
    source_dim: int
    dim: int
    steps: tuple[AffineStep | ResidualStep, ...]


def map_steps(view: View, lineage: str, name: str | None = None) -> MapSteps:
    """Return how a view reads vectors.

    Args:
        lineage, name: as of `affine_map`.
    Raises: DataError: the name cannot be one of SQL. ShapeError: a transform on the way is neither
        affine nor of kind residual_mlp.
    """
    name = checked_name(view, lineage, name)
    steps = tuple(_step(step) for step in view.steps())
    source_dim = steps[0].weight.shape[1]
    about = about_view(view, lineage, source_dim)
    return MapSteps(name, about, source_dim, view.dim, steps)


def _step(step: tuple[Tensor, Tensor] | Transform) -> AffineStep | ResidualStep:
    if isinstance(step, tuple):
        return _affine(*step)
    if not isinstance(step, ResidualMLPTransform):
        raise ShapeError(
            f"A transform on the way is of kind {step.kind}, and an ONNX graph holds affine ones "
            "and residual_mlp; read the vectors by Evergram, or refit that version's "
            "transform as one of these."
        )
    inner, outer = (_affine(layer.weight, layer.bias) for layer in (step.inner, step.outer))
    return ResidualStep(_array(step.weight), inner, outer)


def _affine(weight: Tensor, offset: Tensor) -> AffineStep:
    return AffineStep(_array(weight), _array(offset))


def _array(tensor: Tensor) -> Matrix:
    array: Matrix = tensor.detach().cpu().to(torch.float32).numpy()
    return np.ascontiguousarray(array)
