"""Directions, levels, bits and codes for the residual that the backward transform leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evergram.errors import DataError, ShapeError

MOST_BITS = 8
STEPS = 300  # more iterations would reduce the error by less than half a percent


@cache
def normal_levels(bits: int) -> tuple[Tensor, float]:
    """Return 2^bits levels for z ~ N(0, 1), ascending, float64, and E(z − nearest level)².

    Lloyd's algorithm: limits are midpoints of neighbouring levels, and a level is the mean of z
    between its limits. It starts from the density ∝ φ^(1/3), which is optimal for many levels.

    Args:
        bits: 0 to `MOST_BITS` + 1; with 0 bits the only level is 0, and the error is 1.
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
    # Each level q is the mean of its cell, so E(z − q)² = 1 − E q².
    return levels, 1.0 - float((masses * levels.square()).sum())


@cache
def rounding_errors() -> Tensor:
    """Return E(z − nearest level)² for 0 to `MOST_BITS` bits, float64; decreasing and convex."""
    errors = [normal_levels(bits)[1] for bits in range(MOST_BITS + 1)]
    return torch.tensor(errors, dtype=torch.float64)


def bit_order(variances: Tensor) -> Tensor:
    """Return the order in which to allocate bits, int64 [8 D]: flat indices into [D, 8].

    With b bits, coordinate j has error λ_j e(b), where e are the `rounding_errors`. Each bit goes
    where it reduces the error most. As e is convex, this greedy order is optimal for any number of
    bits: it is water-filling from rate-distortion theory, in whole bits. With the trellis it is
    only nearly optimal: with 1 bit the trellis gains less.

    Args:
        variances: λ, [D], ≥ 0. Coordinates that are always 0 come last.
    Source: Gersho and Gray, "Vector Quantization and Signal Compression", 1992, section 8.4.
    """
    reductions = -rounding_errors().diff()
    gains = variances.double()[:, None] * reductions
    return torch.sort(gains.flatten(), descending=True, stable=True).indices


def allocated(order: Tensor, bits: int) -> Tensor:
    """Return how many of the first `bits` bits each coordinate gets, int64 [D], 0 to 8."""
    return torch.bincount(order[:bits] // MOST_BITS, minlength=len(order) // MOST_BITS)


Bytes = npt.NDArray[np.uint8]
BLOCK = 1 << 24  # bits unpacked in memory at once, one byte each


def packed_size(bits: npt.NDArray[np.int64]) -> int:
    """Return the number of bytes of a packed row; the last byte is padded with zeros."""
    return -(-int(bits.sum()) // 8)


def pack(codes: Bytes, bits: npt.NDArray[np.int64]) -> Bytes:
    """Pack rows of codes into bytes, uint8 [N, `packed_size(bits)`], highest bits first.

    Args:
        codes: uint8 [N, r], each below 2^b of its column.
        bits: b of each column, [r], 1 to 8.
    """
    column, shift = _bit_layout(bits)
    packed = np.empty((len(codes), packed_size(bits)), np.uint8)
    for rows in _blocks(len(codes), len(column)):
        packed[rows] = np.packbits((codes[rows][:, column] >> shift) & 1, axis=1)
    return packed


def unpack(packed: Bytes, bits: npt.NDArray[np.int64]) -> Bytes:
    """Return the codes, uint8 [N, r], of bytes that `pack` wrote."""
    start = np.cumsum(bits) - bits
    # A code lies within two consecutive bytes; the last byte is followed by a zero.
    next_bytes = np.pad(packed[:, 1:], ((0, 0), (0, 1)))[:, : packed.shape[1]]
    pairs = (packed.astype(np.uint16) << 8) | next_bytes
    shift = (16 - start % 8 - bits).astype(np.uint16)
    mask = ((1 << bits) - 1).astype(np.uint16)
    codes: Bytes = ((pairs.take(start // 8, axis=1) >> shift) & mask).astype(np.uint8)
    return codes


def _bit_layout(bits: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Bytes]:
    """Return, for each bit of a packed row, its column and its position in the code."""
    column = np.repeat(np.arange(len(bits)), bits)
    last = np.repeat(np.cumsum(bits), bits)
    return column, (last - 1 - np.arange(len(column))).astype(np.uint8)


def _blocks(count: int, width: int) -> list[slice]:
    step = max(1, BLOCK // max(1, width))
    return [slice(start, start + step) for start in range(0, count, step)]


@dataclass(frozen=True)
class ResidualBasis:
    """The eigenvectors of Σ = E[δ δᵀ], where δ = z_{k-1} − W z_k − b, largest eigenvalue first.

    In this basis coordinates are uncorrelated, and the first r hold more of δ than any other r
    linear coordinates: all but Σ_{j > r} λ_j.

    Args:
        values: λ, float64 [D_{k-1}], ≥ 0.
        vectors: float64 [D_{k-1}, D_{k-1}], one eigenvector per column.
        power: E‖z_{k-1}‖², the denominator of relative errors.
    Source: Eckart and Young, "The approximation of one matrix by another of lower rank", 1936.
    """

    values: Tensor
    vectors: Tensor
    power: float

    @classmethod
    def of(cls, sigma: Tensor, power: float) -> ResidualBasis:
        """Return the basis for Σ [D_{k-1}, D_{k-1}], see `StepError.sigma`. Raises: ShapeError: it
        is not a square matrix. DataError: a number is not finite, or the power is not above 0."""
        if sigma.dim() != 2 or sigma.shape[0] != sigma.shape[1]:
            raise ShapeError(f"The covariance is {list(sigma.shape)}; it must be [D, D].")
        if not bool(sigma.isfinite().all()) or not 0 < power < math.inf:
            raise DataError(
                "The covariance of the error must be finite, and the mean square of the old "
                f"vectors ({power:g}) finite and above 0; give vectors that are not all zero."
            )
        values, vectors = torch.linalg.eigh(sigma.double())
        # Fix each sign by the largest coordinate, so that equal input gives equal codes.
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        vectors = vectors * torch.where(largest < 0, -1.0, 1.0)
        return cls(values.flip(0).clamp(min=0), vectors.flip(1).contiguous(), power)

    def __len__(self) -> int:
        return len(self.values)


# The trellis code: the levels of a column form 4 subsets. Each of the two bits of a subset's number
# is the parity of the lowest code bits this many columns back: (high bit, low bit), by memory, the
# largest lag. With memory 0 every coordinate is rounded alone.
TAPS: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {0: ((0,), ()), 5: ((0, 2, 5), (3,))}
MEMORY = 5
ROWS = 2048  # rows encoded at once
FARTHEST = 1e4  # coordinates are clipped to this many standard deviations
# Shape of the normal sample to which levels of up to `FITTED` bits are fitted, in `ROUNDS` rounds.
# With more bits, the levels that are optimal without a trellis are as good.
DRAWS, ROUNDS, FITTED = (256, 64), 6, 4
# Number of trellis levels; as many again are for coordinates rounded alone.
LEVELS = 2 ** (MOST_BITS + 2) - 4


def first_level(bits: Tensor, memory: int = MEMORY) -> Tensor:
    """Return the index of the first of the 2^(b+1) levels of columns with b bits [r], int64 [r]."""
    low = TAPS[memory][1]
    alone = min(low) if low else len(bits)
    starts: Tensor = 2 ** (bits + 1) - 4 + LEVELS * (torch.arange(len(bits)) < alone)
    return starts


def level_places(codes: Tensor, bits: Tensor, memory: int = MEMORY) -> Tensor:
    """Return the index of each code's level among all levels, int32 [n, r].

    Args:
        codes: uint8 [n, r], each below 2^b of its column.
        bits: b of each column, int64 [r], 1 to `MOST_BITS`.
    """
    high, low = TAPS[memory]
    lowest = codes & 1
    subset = _parity_of_past(lowest, high).mul_(2).add_(_parity_of_past(lowest, low))
    within = (codes >> 1).int().mul_(4).add_(subset)
    return within.add_(first_level(bits, memory).int())


def encode(
    standard: Tensor, weights: Tensor, bits: Tensor, levels: Tensor, memory: int = MEMORY
) -> Tensor:
    """Return the codes, uint8 [n, r], that minimise Σ_j w_j (z_j − level_j)² for each row.

    They are the best path through the trellis, found by the Viterbi algorithm.

    Args:
        standard: z [n, r], scaled to unit variance.
        weights: w [r], ≥ 0.
        bits: as in `level_places`.
        levels: [2 `LEVELS`], ordered as in `trellis_levels`; numbers beyond the last level are
            clipped to it.
    """
    codes = torch.empty(standard.shape, dtype=torch.uint8)
    if not codes.numel():
        return codes
    relative = (weights / weights.max().clamp(min=torch.finfo(weights.dtype).tiny)).tolist()
    starts = first_level(bits, memory).tolist()
    subsets = [
        levels[start : start + 2 ** (count + 1)].view(-1, 4).T.contiguous()
        for start, count in zip(starts, bits.tolist(), strict=True)
    ]
    for start in range(0, len(standard), ROWS):
        rows = standard[start : start + ROWS].double().clamp(-FARTHEST, FARTHEST)
        codes[start : start + ROWS] = _best_path(rows.T.contiguous(), relative, subsets, memory)
    return codes


@cache
def trellis_levels() -> Tensor:
    """Return the trellis levels for N(0, 1), of 1, 2, … `MOST_BITS` bits, each ascending, followed
    by the levels of coordinates rounded alone, each repeated twice; float64 [2 `LEVELS`].

    Lloyd's algorithm moves each level to the mean of the draws encoded as it, starting from the
    optimal levels of one more bit without a trellis. The draws have a fixed seed.
    """
    draws = torch.randn(DRAWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    levels_by_bits = []
    for count in range(1, MOST_BITS + 1):
        levels = normal_levels(count + 1)[0]
        for _ in range(ROUNDS if count <= FITTED else 0):
            levels = _refitted(levels, draws, count)
        levels_by_bits.append(levels)
    alone = [normal_levels(count)[0] for count in range(1, MOST_BITS + 1)]
    return torch.cat([*levels_by_bits, levels_alone(torch.cat(alone))])


def levels_alone(levels: Tensor) -> Tensor:
    """Return optimal levels in the layout of `encode`: each twice, because only subsets whose low
    bit is 0 are used."""
    return levels.repeat_interleave(2)


def _refitted(levels: Tensor, draws: Tensor, count: int) -> Tensor:
    """Return levels [2^(b+1)], b = `count`: the means of the draws encoded as each, symmetric."""
    bits = torch.full((draws.shape[1],), count)
    start = 2 ** (count + 1) - 4
    fitted = slice(start, start + len(levels))
    table = torch.zeros(2 * LEVELS, dtype=torch.float64)
    table[fitted] = levels
    table[fitted.start + LEVELS : fitted.stop + LEVELS] = levels_alone(normal_levels(count)[0])
    codes = encode(draws, torch.ones(len(bits)), bits, table)
    indices = level_places(codes, bits).flatten().long()
    counts = torch.bincount(indices, minlength=len(table))[fitted]
    sums = torch.bincount(indices, draws.flatten(), minlength=len(table))[fitted]
    counts, sums = counts + counts.flip(0), sums - sums.flip(0)
    return torch.where(counts > 0, sums / counts.clamp(min=1), levels).sort().values


def _parity_of_past(lowest: Tensor, taps: tuple[int, ...]) -> Tensor:
    """Return the parity of the lowest code bits at these lags, uint8 [n, r]."""
    parity = torch.zeros_like(lowest)
    for lag in taps:
        parity[:, lag:] ^= lowest[:, : max(0, lowest.shape[1] - lag)]
    return parity


@cache
def _subsets(memory: int) -> Tensor:
    """Return the subset for each window of lowest bits, newest bit lowest, int64 [2^(memory+1)]."""
    windows = torch.arange(2 ** (memory + 1))
    zero = torch.zeros_like(windows)
    high, low = (sum(((windows >> lag) & 1 for lag in taps), zero) for taps in TAPS[memory])
    return 2 * (high % 2) + low % 2


def _best_path(columns: Tensor, weights: list[float], levels: list[Tensor], memory: int) -> Tensor:
    """Return the codes [n, r] of rows, given `columns` [r, n] and r tensors of levels, [4, m]."""
    width, count = columns.shape
    subsets, states = _subsets(memory), 2**memory
    # The cost of the best path to each state. A state is the last `memory` lowest bits, first 0s.
    cost = torch.full((count, states), torch.inf)
    cost[:, 0] = 0
    oldest = torch.empty(width, count, states, dtype=torch.bool)
    nearest = torch.empty(width, count, 4, dtype=torch.uint8)
    for j in range(width):
        errors = torch.empty(count, 4, dtype=torch.float64)
        for number, subset_levels in enumerate(levels[j]):
            index = torch.bucketize(columns[j], (subset_levels[1:] + subset_levels[:-1]) / 2)
            errors[:, number] = (columns[j] - subset_levels[index]).square() * weights[j]
            nearest[j, :, number] = index
        # Subtract the minimum, so that float32 keeps small differences next to a large error.
        excess = (errors - errors.min(dim=1, keepdim=True).values).float()
        windows = cost[:, :, None] + excess[:, subsets].view(count, states, 2)
        # Two windows that differ in the oldest bit lead to the same state; keep the better one.
        cost, choice = windows.view(count, 2, states).min(dim=1)
        oldest[j] = choice.bool()
    codes = torch.empty(count, width, dtype=torch.uint8)
    state = cost.argmin(dim=1, keepdim=True)
    for j in reversed(range(width)):
        window = (oldest[j].gather(1, state).long() << memory) | state
        index = nearest[j].gather(1, subsets[window])
        codes[:, j] = ((index << 1) | (window & 1))[:, 0].to(torch.uint8)
        state = window >> 1
    return codes
