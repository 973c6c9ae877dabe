"""Directions, levels, bits and codes of what the backward transform leaves of a vector."""

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


def bit_order(variances: Tensor) -> Tensor:
    """Return the order in which bits are given away, int64 [8 D]: places in [D, 8], of the bits of
    each coordinate.

    With b bits, coordinate j leaves λ_j e(b), where e are the `rounding_errors`. Each bit goes
    where it takes the most away. As e is convex, the first B of them leave the least that any B
    bits can leave. It is the water-filling of rate-distortion theory, in whole bits. Of
    coordinates on a path (`trellis`) it is nearly so: what they leave of e(1) is a larger share.

    Args:
        variances: λ, [D], none below 0. A coordinate that is always 0 comes last.
    Source: Gersho and Gray, "Vector Quantization and Signal Compression", 1992, section 8.4.
    """
    taken = -rounding_errors().diff()
    gains = variances.double()[:, None] * taken
    return torch.sort(gains.flatten(), descending=True, stable=True).indices


def allocated(order: Tensor, bits: int) -> Tensor:
    """Return how many of the first `bits` each coordinate has, int64 [D], 0 to 8."""
    return torch.bincount(order[:bits] // MOST_BITS, minlength=len(order) // MOST_BITS)


Bytes = npt.NDArray[np.uint8]
# Bits in memory at once, each in a byte.
BLOCK = 1 << 24


def packed_size(bits: npt.NDArray[np.int64]) -> int:
    """Return the bytes of a row of codes; the last one is filled up with zeros."""
    return -(-int(bits.sum()) // 8)


def pack(codes: Bytes, bits: npt.NDArray[np.int64]) -> Bytes:
    """Return rows of codes as bytes, uint8 [N, `packed_size(bits)`], highest bits first.

    Args:
        codes: uint8 [N, r], each below 2^b of its column.
        bits: b of each column, [r], 1 to 8.
    """
    column, shift = _places(bits)
    packed = np.empty((len(codes), packed_size(bits)), np.uint8)
    for rows in _blocks(len(codes), len(column)):
        packed[rows] = np.packbits((codes[rows][:, column] >> shift) & 1, axis=1)
    return packed


def unpack(packed: Bytes, bits: npt.NDArray[np.int64]) -> Bytes:
    """Return the codes, uint8 [N, r], of bytes of `pack`."""
    start = np.cumsum(bits) - bits
    # A code is within two bytes; the last byte may have none behind it.
    next_one = np.pad(packed[:, 1:], ((0, 0), (0, 1)))[:, : packed.shape[1]]
    pairs = (packed.astype(np.uint16) << 8) | next_one
    shift = (16 - start % 8 - bits).astype(np.uint16)
    mask = ((1 << bits) - 1).astype(np.uint16)
    codes: Bytes = ((pairs.take(start // 8, axis=1) >> shift) & mask).astype(np.uint8)
    return codes


def _places(bits: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Bytes]:
    """Return of each bit of a row the column that it is of, and how far its code is shifted."""
    column = np.repeat(np.arange(len(bits)), bits)
    last = np.repeat(np.cumsum(bits), bits)
    return column, (last - 1 - np.arange(len(column))).astype(np.uint8)


def _blocks(count: int, width: int) -> list[slice]:
    step = max(1, BLOCK // max(1, width))
    return [slice(start, start + step) for start in range(0, count, step)]


@dataclass(frozen=True)
class ResidualBasis:
    """The eigenvectors of Σ = E[δ δᵀ], where δ = z_{k-1} − W z_k − b, largest eigenvalue first.

    Along them coordinates are uncorrelated, so that none repeats what another says, and the first r
    hold more of δ than any other r numbers that are linear in it: all but Σ_{j > r} λ_j.

    Args:
        values: λ, float64 [D_{k-1}], none below 0.
        vectors: float64 [D_{k-1}, D_{k-1}], one eigenvector a column.
        power: E‖z_{k-1}‖², the divisor of relative errors.
    Source: Eckart and Young, "The approximation of one matrix by another of lower rank", 1936.
    """

    values: Tensor
    vectors: Tensor
    power: float

    @classmethod
    def of(cls, sigma: Tensor, power: float) -> ResidualBasis:
        """Return the basis of a residual covariance [D_{k-1}, D_{k-1}], as `StepError` has it.

        Raises: ShapeError: it is not a square matrix. DataError: a number is not finite, or the
            power is not above 0.
        """
        if sigma.dim() != 2 or sigma.shape[0] != sigma.shape[1]:
            raise ShapeError(f"The covariance is {list(sigma.shape)}; [D, D] is needed.")
        if not bool(sigma.isfinite().all()) or not 0 < power < math.inf:
            raise DataError(
                f"The covariance of the error, or the mean square {power:g} of the old vectors, "
                "is not a finite number above 0; give those of vectors that are not all zero."
            )
        values, vectors = torch.linalg.eigh(sigma.double())
        # A sign of their own: that of the largest coordinate, so that equal input gives equal bits.
        largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        vectors = vectors * torch.where(largest < 0, -1.0, 1.0)
        return cls(values.flip(0).clamp(min=0), vectors.flip(1).contiguous(), power)

    def __len__(self) -> int:
        return len(self.values)


# A subset's number has a high and a low bit, each the sum modulo 2 of the lowest bits of codes, of
# those this many columns back. By memory: how far back the farthest is. With a memory of 0 every
# coordinate is rounded by itself.
TAPS: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {0: ((0,), ()), 5: ((0, 2, 5), (3,))}
MEMORY = 5
# Rows that are rounded at once.
ROWS = 2048
# Standard deviations beyond which a number is taken for this one.
FARTHEST = 1e4
# Normal variables that levels of a few bits are fitted to, in this many steps. With more bits those
# that are best without a trellis are as good.
DRAWS, ROUNDS, FITTED = (256, 64), 6, 4
# Levels of a path; as many more are of coordinates that are rounded by themselves.
LEVELS = 2 ** (MOST_BITS + 2) - 4


def first_level(bits: Tensor, memory: int = MEMORY) -> Tensor:
    """Return where the 2^(b+1) levels of columns of b bits [r] begin among all, int64 [r]."""
    low = TAPS[memory][1]
    alone = min(low) if low else len(bits)
    places: Tensor = 2 ** (bits + 1) - 4 + LEVELS * (torch.arange(len(bits)) < alone)
    return places


def level_places(codes: Tensor, bits: Tensor, memory: int = MEMORY) -> Tensor:
    """Return which of all levels the codes of rows stand for, int32 [n, r].

    Args:
        codes: uint8 [n, r], each below 2^b of its column.
        bits: b of each column, int64 [r], 1 to `MOST_BITS`.
    """
    high, low = TAPS[memory]
    lowest = codes & 1
    subset = _sum_of_past(lowest, high).mul_(2).add_(_sum_of_past(lowest, low))
    within = (codes >> 1).int().mul_(4).add_(subset)
    return within.add_(first_level(bits, memory).int())


def encode(
    standard: Tensor, weights: Tensor, bits: Tensor, levels: Tensor, memory: int = MEMORY
) -> Tensor:
    """Return the codes of rows, uint8 [n, r], along the path with the least Σ_j w_j (z_j − level)².

    It is found by Viterbi's algorithm.

    Args:
        standard: z [n, r], of variance 1 as the levels are.
        weights: w [r], none below 0.
        bits: as for `level_places`.
        levels: [2 `LEVELS`], as `trellis_levels` has them; a number beyond the last level is
            stored as that.
    """
    codes = torch.empty(standard.shape, dtype=torch.uint8)
    if not codes.numel():
        return codes
    share = (weights / weights.max().clamp(min=torch.finfo(weights.dtype).tiny)).tolist()
    starts = first_level(bits, memory).tolist()
    own = [
        levels[start : start + 2 ** (count + 1)].view(-1, 4).T.contiguous()
        for start, count in zip(starts, bits.tolist(), strict=True)
    ]
    for start in range(0, len(standard), ROWS):
        rows = standard[start : start + ROWS].double().clamp(-FARTHEST, FARTHEST)
        codes[start : start + ROWS] = _best_path(rows.T.contiguous(), share, own, memory)
    return codes


@cache
def trellis_levels() -> Tensor:
    """Return the levels of 1, 2, … `MOST_BITS` bits for N(0, 1) on a path, rising in each, and then
    those of coordinates by themselves, of which each is there twice; float64 [2 `LEVELS`].

    Lloyd's algorithm: a level becomes the mean of what is rounded to it, from the levels of one bit
    more that are best without a trellis. The same draws always.
    """
    draws = torch.randn(DRAWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = []
    for count in range(1, MOST_BITS + 1):
        levels = normal_levels(count + 1)[0]
        for _ in range(ROUNDS if count <= FITTED else 0):
            levels = _fitted(levels, draws, count)
        parts.append(levels)
    alone = [normal_levels(count)[0] for count in range(1, MOST_BITS + 1)]
    return torch.cat([*parts, levels_alone(torch.cat(alone))])


def levels_alone(levels: Tensor) -> Tensor:
    """Return the best 2^b levels of all b in a row as `encode` takes them: every second one, as the
    low bit of the subset is 0."""
    return levels.repeat_interleave(2)


def _fitted(levels: Tensor, draws: Tensor, count: int) -> Tensor:
    """Return levels [2^(b+1)] that are the means of draws rounded to them, alike on both sides."""
    bits = torch.full((draws.shape[1],), count)
    start = 2 ** (count + 1) - 4
    own = slice(start, start + len(levels))
    among = torch.zeros(2 * LEVELS, dtype=torch.float64)
    among[own] = levels
    among[own.start + LEVELS : own.stop + LEVELS] = levels_alone(normal_levels(count)[0])
    places = level_places(encode(draws, torch.ones(len(bits)), bits, among), bits).flatten().long()
    numbers = torch.bincount(places, minlength=len(among))[own]
    sums = torch.bincount(places, draws.flatten(), minlength=len(among))[own]
    numbers, sums = numbers + numbers.flip(0), sums - sums.flip(0)
    return torch.where(numbers > 0, sums / numbers.clamp(min=1), levels).sort().values


def _sum_of_past(lowest: Tensor, taps: tuple[int, ...]) -> Tensor:
    """Return the sum modulo 2 of the lowest bits of codes this many columns back, uint8 [n, r]."""
    total = torch.zeros_like(lowest)
    for back in taps:
        total[:, back:] ^= lowest[:, : max(0, lowest.shape[1] - back)]
    return total


@cache
def _subsets(memory: int) -> Tensor:
    """Return the subset of each window of lowest bits, the newest lowest, int64 [2^(memory+1)]."""
    windows = torch.arange(2 ** (memory + 1))
    none = torch.zeros_like(windows)
    high, low = (sum(((windows >> back) & 1 for back in taps), none) for taps in TAPS[memory])
    return 2 * (high % 2) + low % 2


def _best_path(columns: Tensor, weights: list[float], own: list[Tensor], memory: int) -> Tensor:
    """Return the codes [n, r] of rows, whose coordinates are `columns` [r, n]."""
    width, count = columns.shape
    subsets, states = _subsets(memory), 2**memory
    # The cost of the best path to each state, which is the last lowest bits; from zeros before.
    cost = torch.full((count, states), torch.inf)
    cost[:, 0] = 0
    oldest = torch.empty(width, count, states, dtype=torch.bool)
    nearest = torch.empty(width, count, 4, dtype=torch.uint8)
    for j in range(width):
        apart = torch.empty(count, 4, dtype=torch.float64)
        for number, some in enumerate(own[j]):
            place = torch.bucketize(columns[j], (some[1:] + some[:-1]) / 2)
            apart[:, number] = (columns[j] - some[place]).square() * weights[j]
            nearest[j, :, number] = place
        # Less the smallest, so that float32 holds what paths differ by behind a far one, too.
        more = (apart - apart.min(dim=1, keepdim=True).values).float()
        windows = cost[:, :, None] + more[:, subsets].view(count, states, 2)
        # Of two windows that end in one state, but for their oldest bit, the better one goes on.
        cost, choice = windows.view(count, 2, states).min(dim=1)
        oldest[j] = choice.bool()
    codes = torch.empty(count, width, dtype=torch.uint8)
    state = cost.argmin(dim=1, keepdim=True)
    for j in reversed(range(width)):
        window = (oldest[j].gather(1, state).long() << memory) | state
        place = nearest[j].gather(1, subsets[window])
        codes[:, j] = ((place << 1) | (window & 1))[:, 0].to(torch.uint8)
        state = window >> 1
    return codes
