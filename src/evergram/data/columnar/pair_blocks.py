"""Consecutive interactions of a corpus, and rules that mark some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PairBlock:
    """m consecutive interactions of a corpus, as rows of its sides.

    Args:
        start: the number of interactions before the first one.
        query, candidate: int64 [m].
        value: float32 [m]; None if the corpus has no values.
    """

    start: int
    query: Tensor
    candidate: Tensor
    value: Tensor | None = None

    def __len__(self) -> int:
        return len(self.query)

    @property
    def places(self) -> Tensor:
        """The number of interactions before each one, int64 [m]."""
        return torch.arange(self.start, self.start + len(self))


@dataclass(frozen=True)
class PairRule:
    """Marks interactions of a corpus by their rows and their places in it.

    A rule is applied block by block, so that a corpus of any size needs no memory for the marks.

    Args:
        key: text that names the rule; two rules of one corpus that share it mark the same.
        marks: bool [m] of a block of m interactions.
    """

    key: str
    marks: Callable[[PairBlock], Tensor]

    def __call__(self, block: PairBlock) -> Tensor:
        return self.marks(block)

    def __invert__(self) -> PairRule:
        return PairRule(f"not({self.key})", lambda block: ~self.marks(block))

    def __and__(self, other: PairRule) -> PairRule:
        key = f"and({self.key},{other.key})"
        return PairRule(key, lambda block: self.marks(block) & other.marks(block))

    def __or__(self, other: PairRule) -> PairRule:
        key = f"or({self.key},{other.key})"
        return PairRule(key, lambda block: self.marks(block) | other.marks(block))
