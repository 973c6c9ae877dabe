"""Split pairs by a hash into three groups: to fit, to choose the ridge, to measure the error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CHOOSING = 0.1  # the share of the pairs that choose the ridge, among pairs that are not held out


@dataclass(frozen=True)
class Groups:
    """Three masks over the rows of a pairing, bool [N]; each row is in exactly one."""

    seen: Tensor  # rows to fit
    chosen: Tensor  # rows that choose the ridge; the final fit uses them too
    held: Tensor  # rows that measure the error; no fit uses them

    def apart(self, hashes: Tensor) -> Groups:
        """Move held-out rows whose vector is also fitted to `seen`. Vectors are compared by
        `vector_hashes`."""
        repeated = self.held & torch.isin(hashes, hashes[~self.held])
        return Groups(self.seen | repeated, self.chosen, self.held & ~repeated)


def pair_groups(hashes: Tensor, share: float) -> Groups:
    """Split pairs by a hash in [0, 2³²), int64 [N]; `share` is the share to hold out."""
    held = hashes < share * 2**32
    chosen = ~held & (hashes < (share + (1 - share) * CHOOSING) * 2**32)
    return Groups(~held & ~chosen, chosen, held)


def vector_hashes(vectors: Tensor) -> Tensor:
    """Hash each row of float64 [b, D] to a number in [0, 2³²), int64 [b].

    The hash depends only on the values of the row: not on its position, its original dtype or the
    machine. Equal rows have equal hashes, so a row that occurs twice is never both fitted and
    measured.
    Source: multilinear hashing, Carter and Wegman, 1979; the final mixing is Steele et al.'s
        SplitMix, 2014.
    """
    # Adding 0.0 turns −0.0 into 0.0, so that both have the same bits.
    bits = (vectors.numpy() + 0.0).view(np.uint64)
    # A product's low bits depend on its factors' low bits alone, which are 0 in widened float32.
    bits ^= bits >> np.uint64(32)
    mixed = _mix(bits @ _multipliers(bits.shape[1]))
    return torch.from_numpy((mixed >> np.uint64(32)).astype(np.int64))


@lru_cache(maxsize=8)
def _multipliers(dim: int) -> npt.NDArray[np.uint64]:
    """Return odd numbers [D]. They must never change, because saved aligners depend on them."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return _mix(np.arange(1, dim + 1, dtype=np.uint64) * golden) | np.uint64(1)


def _mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
