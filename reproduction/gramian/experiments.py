"""The experiments of [G1] and [G2] that are built."""

from __future__ import annotations

from reproduction.gramian import (
    averaging_error,
    averaging_rate,
    batch_and_rate,
    folding,
    gramian_error,
    growth,
    movielens,
    penalty,
    rate_error,
    table2,
)
from reproduction.gramian.words import experiment as words

EXPERIMENTS = (
    gramian_error.GRAMIAN_ERROR,
    gramian_error.GRADIENT_ERROR,
    averaging_error.EXPERIMENT,
    table2.EXPERIMENT,
    averaging_rate.EXPERIMENT,
    folding.EXPERIMENT,
    penalty.EXPERIMENT,
    batch_and_rate.EXPERIMENT,
    rate_error.EXPERIMENT,
    movielens.EXPERIMENT,
    growth.EXPERIMENT,
    words.EXPERIMENT,
)
