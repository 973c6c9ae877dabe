"""The experiments of [G1] and [G2] that are built."""

from __future__ import annotations

from reproduction.gramian import (
    averaging_error,
    averaging_rate,
    folding,
    gramian_error,
    penalty,
    table2,
)

EXPERIMENTS = (
    gramian_error.GRAMIAN_ERROR,
    gramian_error.GRADIENT_ERROR,
    averaging_error.EXPERIMENT,
    table2.EXPERIMENT,
    averaging_rate.EXPERIMENT,
    folding.EXPERIMENT,
    penalty.EXPERIMENT,
)
