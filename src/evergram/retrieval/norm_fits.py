"""Squared lengths of rows as a later version reads them, which are not stored with the rows.

Source: docs/method.md, "One index for all versions".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np

from evergram.stores.store import Doubles, Floats

# Stored rows [n, width], and their ‖z̃‖² [n].
Block: TypeAlias = tuple[Floats, Doubles]
# Rows that are read at once; the weights are fitted to the first of them.
READ = 16_384
# Of the mean square of each coordinate: one that hardly varies gets no weight, as a large weight
# would be lost in rounding.
RIDGE = 1e-8


@dataclass
class NormFit:
    """‖z̃‖² = ⟨weight, x⟩ + offset + e for stored rows x, with `below` ≤ e ≤ `above`.

    Args:
        weight: float32 [width].
        ends: the smallest and the largest ‖z̃‖², or a little beyond; None if they are not known.
        largest: the largest size of each coordinate of x, [width].
        more: about how many candidates more than results the last proofs by it needed.
    """

    weight: Floats
    offset: float = 0.0
    below: float = 0.0
    above: float = 0.0
    ends: tuple[float, float] | None = None
    largest: Floats | float = 0.0
    more: int = 0

    def rounding(self, linear: Floats) -> Doubles:
        """Return how far float32 may be from the scores of queries [Q, width], [Q]: a share of the
        sum of all terms' sizes; 0 where the norm is a coordinate, whose users allow for it."""
        sizes: Doubles = (np.abs(linear) * np.asarray(self.largest, np.float64)).sum(axis=1)
        return 2.0**-22 * sizes


def fit_norms(blocks: Iterable[Block], width: int) -> NormFit:
    """Fit the weights to the first rows, and measure e on all."""
    rest, first, count = iter(blocks), list[Block](), 0
    while count < READ and (block := next(rest, None)) is not None:
        first.append(block)
        count += len(block[0])
    if not first:
        return NormFit(np.zeros(width, np.float32), ends=(0.0, 0.0))
    weight, offset = _least_squares(*(np.concatenate(parts) for parts in zip(*first, strict=True)))
    extremes, largest = np.full(4, -np.inf), np.zeros(width, np.float32)
    for x, norms in chain(first, rest):
        e = norms - (x @ weight.astype(np.float64) + offset)
        extremes = np.maximum(extremes, [-e.min(), e.max(), -norms.min(), norms.max()])
        largest = np.maximum(largest, np.abs(x).max(axis=0))
    below, above, least, most = extremes.tolist()
    ends = -least * (1 - 1e-5), most * (1 + 1e-5)
    return NormFit(weight, offset, -below, above, ends, largest)


def _least_squares(rows: Floats, norms: Doubles) -> tuple[Floats, float]:
    x, mean, middle = rows.astype(np.float64), rows.mean(axis=0, dtype=np.float64), norms.mean()
    scale = np.sqrt((x**2).mean(axis=0))
    scale[scale == 0] = 1.0
    x = (x - mean) / scale
    ridge = RIDGE * len(x) * np.eye(x.shape[1])
    weight = np.linalg.solve(x.T @ x + ridge, x.T @ (norms - middle)) / scale
    rounded: Floats = weight.astype(np.float32)
    return rounded, float(middle - mean @ rounded)
