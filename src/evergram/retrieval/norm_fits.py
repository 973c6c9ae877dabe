"""Estimate squared lengths of mapped rows as a linear function of the stored coordinates.

Source: docs/method.md, "One index for all versions".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np

from evergram.stores.store import Doubles, Floats

# Rows to read at once; the weights are fitted to at least this many.
READ = 16_384
# Relative to each coordinate's mean square. Prevents large weights of coordinates that hardly vary.
RIDGE = 1e-8


@dataclass(frozen=True)
class NormFit:
    """‖z̃‖² = ⟨weight, x⟩ + offset + e for stored rows x, with `below` ≤ e ≤ `above`.

    Args:
        weight: float32 [width].
        ends: bounds of ‖z̃‖²; unset if norms are stored.
        largest: the largest absolute value of each coordinate of x, [width].
    """

    weight: Floats
    offset: float = 0.0
    below: float = 0.0
    above: float = 0.0
    ends: tuple[float, float] = (0.0, 0.0)
    largest: Floats | float = 0.0

    def rounding(self, linear: Floats) -> Doubles:
        """Bound the float32 error [Q] of queries' [Q, width] scores; 0 if norms are stored."""
        terms: Doubles = np.abs(linear) * np.asarray(self.largest, np.float64)
        rounding: Doubles = 2.0**-22 * terms.sum(axis=1)
        return rounding


def fit_norms(blocks: Iterable[tuple[Floats, Doubles]], width: int) -> NormFit:
    """Fit the weights to the first blocks of rows [n, width] and ‖z̃‖² [n]; bound e over all."""
    rest, first, count = iter(blocks), list[tuple[Floats, Doubles]](), 0
    while count < READ and (block := next(rest, None)) is not None:
        first.append(block)
        count += len(block[0])
    if not first:
        return NormFit(np.zeros(width, np.float32))
    rows, norms = (np.concatenate(parts).astype(np.float64) for parts in zip(*first, strict=True))
    mean, middle, scale = rows.mean(axis=0), norms.mean(), np.sqrt((rows**2).mean(axis=0))
    scale[scale == 0] = 1.0
    x = (rows - mean) / scale
    gram = x.T @ x + RIDGE * count * np.eye(width)
    weight = (np.linalg.solve(gram, x.T @ (norms - middle)) / scale).astype(np.float32)
    offset = float(middle - mean @ weight)
    extremes, largest = np.full(4, -np.inf), np.zeros(width, np.float32)
    for part, n in chain(first, rest):
        e = n - (part @ weight.astype(np.float64) + offset)
        extremes = np.maximum(extremes, [-e.min(), e.max(), -n.min(), n.max()])
        largest = np.maximum(largest, np.abs(part).max(axis=0))
    below, above, least, most = extremes.tolist()
    ends = -least * (1 - 1e-5), most * (1 + 1e-5)
    return NormFit(weight, offset, -below, above, ends, largest)
