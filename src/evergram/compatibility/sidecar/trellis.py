"""Round the coordinates of a row together, in a few bits each: trellis-coded quantization.

A coordinate of b bits has 2^(b+1) levels, twice as many as its bits can name. They belong, one
after the other, to four subsets. The lowest bit of a code and those of the codes before it say
which subset a coordinate takes its level from, by a convolutional code; the other bits say which
level of it. So each row is rounded along the best of many paths, and what it leaves is nearer to
the bound of rate-distortion theory than if every coordinate were rounded to the nearest of 2^b.
The first coordinates have no codes before them, and are rounded to the nearest of 2^b.

Source: Marcellin and Fischer, "Trellis coded quantization of memoryless and Gauss-Markov sources",
1990. The code of 32 states: Ungerboeck, "Channel coding with multilevel/phase signals", 1982.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from evergram.compatibility.sidecar.normal_levels import MOST_BITS, normal_levels

# A subset's number has a high and a low bit, each the sum modulo 2 of the lowest bits of codes, of
# those so many columns back. By memory: how far back the farthest is. With a memory of 0 every
# coordinate is rounded by itself.
TAPS: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {0: ((0,), ()), 5: ((0, 2, 5), (3,))}
MEMORY = 5
# Rows that are rounded at once.
ROWS = 2048
# Standard deviations beyond which a number is taken for this one.
FARTHEST = 1e4
# Normal variables that levels of a few bits are fitted to, in so many steps. With more bits those
# that are best without a trellis are as good.
DRAWS, STEPS, FITTED = (256, 64), 6, 4
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
        memory: a key of `TAPS`.
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
        bits: as of `level_places`.
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
        for _ in range(STEPS if count <= FITTED else 0):
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
    """Return the sum modulo 2 of the lowest bits of codes so many columns back, uint8 [n, r]."""
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
    """Return the codes [n, r] of rows, whose coordinates are `columns` [r, n].

    Args:
        own: levels of each column by subset, [4, 2^(b-1)], rising.
    """
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
