"""The closed list of transforms that artefacts and recipes may name; nothing heavy is imported."""

from __future__ import annotations

from typing import Literal

TransformKind = Literal[
    "linear",
    "truncate",
    "affine",
    "orthogonal",
    "low_rank",
    "lambda_orthogonal",
    "residual_mlp",
]
