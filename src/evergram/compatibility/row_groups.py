"""Divide pairs by a hash into those to fit to, to choose the ridge on, and to measure on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Of the pairs that are not held out, the share on which the ridge is chosen.
CHOOSING = 0.1


@dataclass(frozen=True)
class Groups:
    """Three masks of the rows of a pairing, bool [N]; each row is in exactly one.

    Args:
        seen: the fit uses them.
        chosen: they choose the ridge, and the final fit uses them too.
        held: they measure the error and no fit uses them.
    """

    seen: Tensor
    chosen: Tensor
    held: Tensor

    def apart(self, hashes: Tensor) -> Groups:
        """Return groups in which no held-out row has the vector of a row that is fitted to, by
        their `vector_hashes`: such rows are fitted to, too."""
        again = self.held & torch.isin(hashes, hashes[~self.held])
        return Groups(self.seen | again, self.chosen, self.held & ~again)


def pair_groups(hashes: Tensor, share: float) -> Groups:
    """Divide pairs by a hash in [0, 2³²) alone, int64 [N]; a share of them is held out."""
    held = hashes < share * 2**32
    chosen = ~held & (hashes < (share + (1 - share) * CHOOSING) * 2**32)
    return Groups(~held & ~chosen, chosen, held)


def vector_hashes(vectors: Tensor) -> Tensor:
    """Return a number in [0, 2³²) for each row of float64 [b, D], int64 [b].

    It depends on the row's numbers and on nothing else: neither on where the row stands, nor on
    the width of the floats it came in, nor on the machine. Equal rows have equal hashes, so that a
    row that occurs twice is never both fitted to and measured on.
    Source: multilinear hashing, Carter and Wegman, 1979; the last mixing is Steele et al.'s
        SplitMix, 2014.
    """
    # 0.0 and −0.0 are one number; adding 0.0 makes them one pattern of bits.
    bits = (vectors.numpy() + 0.0).view(np.uint64)
    # A product's high bits depend on all the bits below them, and short floats have theirs on top.
    bits ^= bits >> np.uint64(32)
    mixed = _mix(bits @ _multipliers(bits.shape[1]))
    return torch.from_numpy((mixed >> np.uint64(32)).astype(np.int64))


@lru_cache(maxsize=8)
def _multipliers(dim: int) -> npt.NDArray[np.uint64]:
    """Return odd numbers [D] that never change, as saved aligners depend on them."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return _mix(np.arange(1, dim + 1, dtype=np.uint64) * golden) | np.uint64(1)


def _mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
