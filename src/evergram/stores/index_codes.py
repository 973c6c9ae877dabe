"""How an index holds vectors: whole, or as codes of fewer bytes that choose rows to score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evergram.errors import DataError
from evergram.stores.rows import Floats

# Bytes a coordinate of each: 4, 2, 1, and 1/8.
CODES = ("float32", "float16", "int8", "binary")
LARGEST_OVERSAMPLE = 100


@dataclass(frozen=True)
class IndexCodes:
    """The codes of an index. The store also holds the vectors themselves, which give every score;
    codes only choose the rows that are scored.

    Args:
        kind: one of `CODES`.
        oversample: rows that are scored for each that is asked for, 1 to 100; 1 for float32, whose
            index is searched by the vectors themselves.
    Raises: DataError: they are not that.
    """

    kind: str
    oversample: int

    def __post_init__(self) -> None:
        if self.kind not in CODES:
            raise DataError(f"Codes are {self.kind!r}; they are {', '.join(CODES)}.")
        if not 1 <= self.oversample <= LARGEST_OVERSAMPLE:
            raise DataError(
                f"Oversample is {self.oversample}; it must be 1 to {LARGEST_OVERSAMPLE}."
            )
        if self.whole and self.oversample > 1:
            raise DataError(
                f"Oversample is {self.oversample}, and an index of float32 is searched by the "
                "vectors themselves; leave it out, or take codes of fewer bytes."
            )

    @property
    def whole(self) -> bool:
        """Whether the index holds the vectors themselves."""
        return self.kind == "float32"

    def check(self, offered: Sequence[str], address: str) -> None:
        """Raises: DataError: they are not among those that a store offers."""
        if self.kind not in offered:
            raise DataError(
                f"{address} cannot build an index of {self.kind}; its kinds are "
                f"{', '.join(offered)}."
            )


FLOAT32 = IndexCodes("float32", 1)


# How many times as many rows are scored for a query that `oversample` does not answer.
WIDER = 4


def looked_at(k: int, oversample: int) -> tuple[int, int]:
    """Return how many rows codes choose for k results, and how many where these do not suffice."""
    return oversample * k, WIDER * oversample * k


def tell_apart(scores: Floats, estimates: Floats, k: int) -> bool:
    """Return whether none of the rows that codes left out can be among the k best.

    A row that was left out, with an estimate as large as the smallest and as much too small as any
    that was looked at, must not be better than the k-th. It may be where a query weighs most what
    codes hold least of, as a search by distance does with the squared lengths behind a vector.

    Args:
        scores: [n] of the rows that were looked at, n at least k.
        estimates: [n], by which codes chose them.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        limit = estimates.min() + (scores - estimates).max(initial=0.0)
    return bool(np.partition(scores, -k)[-k] >= limit)


def share_found(pairs: Iterable[tuple[Floats, Floats]]) -> float:
    """Return which share of the best a search by codes finds, given the scores of the best rows of
    each query and of those that the codes find; nothing measured is nothing found."""
    matched, wanted = 0, 0
    for best, found in pairs:
        wanted += len(best)
        # Rows with the same vector are as good as one another.
        matched += int((found[: len(best)] >= best.min(initial=np.inf)).sum())
    return matched / wanted if wanted else 0.0


def too_few_found(codes: IndexCodes, share: float, needed: float, version: int | None) -> DataError:
    """Return the error for codes that find too small a share of the ten best."""
    return DataError(
        f"An index of {codes.kind} with oversample {codes.oversample} finds {share:.0%} of the ten "
        f"best of version {version}, and {needed:.0%} are needed; give a larger oversample, or "
        "codes of more bytes."
    )
