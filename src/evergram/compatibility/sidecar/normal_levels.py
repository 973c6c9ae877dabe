"""The best 2^b numbers to round a normal variable to by itself, for b = 1 to 9 bits."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

MOST_BITS = 8
# More steps would lessen the error by less than half a percent.
STEPS = 300


@cache
def normal_levels(bits: int) -> tuple[Tensor, float]:
    """Return 2^bits levels for z ~ N(0, 1), rising, float64, and E(z − the nearest level)².

    Lloyd's algorithm: a limit lies in the middle of two levels, and a level is the mean of z
    between its limits. It starts from the density of levels that is best for many, ∝ φ^(1/3).

    Args:
        bits: 0 to `MOST_BITS` + 1; of 0 bits the only level is 0, and the error 1.
    Source: Lloyd, "Least squares quantization in PCM", 1982; Max, "Quantizing for minimum
        distortion", 1960. The start: Panter and Dite 1951.
    """
    count = 2**bits
    middles = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    levels = math.sqrt(3) * torch.special.ndtri(middles)
    masses = torch.full_like(levels, 1 / count)
    for _ in range(STEPS):
        limits = (levels[1:] + levels[:-1]) / 2
        below = torch.cat([limits.new_zeros(1), torch.special.ndtr(limits), limits.new_ones(1)])
        density = torch.exp(-limits.square() / 2) / math.sqrt(2 * math.pi)
        heights = torch.cat([limits.new_zeros(1), density, limits.new_zeros(1)])
        masses = below.diff()
        levels = -heights.diff() / masses
    # Each level is the mean of its part, so that E(z − q)² = 1 − E q².
    return levels, 1.0 - float((masses * levels.square()).sum())


@cache
def rounding_errors() -> Tensor:
    """Return E(z − the nearest level)² by bits, 0 to `MOST_BITS`, float64; it falls, and by ever
    less."""
    errors = [normal_levels(bits)[1] for bits in range(MOST_BITS + 1)]
    return torch.tensor(errors, dtype=torch.float64)
