"""The best epoch by the selection pairs, and when to look no further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class EarlyStopping:
    """Keeps the best of a run's evaluations, and says when more of them are of no use.

    Args:
        metric: the record's entry that should be high.
        patience: evaluations in a row without a better one, after which training ends; 0 goes on
            to the last epoch.
        select_after: the best is looked for after so many epochs, and patience is counted from
            there.
        history: all records, in order; each has `epoch` and the metric.
        best, best_epoch: of the best record so far, the first of those that are equal.
        kept: the tensors of the model at that epoch.
    """

    metric: str
    patience: int = 0
    select_after: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: float = -1.0
    best_epoch: int = 0
    kept: Mapping[str, Tensor] = field(default_factory=dict)

    def add(self, record: dict[str, float], last: bool) -> bool:
        """Take in an evaluation. Returns: whether it is the best; then set `kept`.

        Args:
            last: none will follow: a run that ends early has its last epoch, if no other.
        """
        self.history.append(record)
        found, epoch = record[self.metric], int(record["epoch"])
        counts = epoch > self.select_after or (last and not self.kept)
        if not counts or not found > self.best:
            return False
        self.best, self.best_epoch = found, epoch
        return True

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out. It follows from the history, so that a run that was
        interrupted ends where it would have ended."""
        start = max(self.best_epoch, self.select_after)
        since = sum(record["epoch"] > start for record in self.history)
        return 0 < self.patience <= since

    @property
    def best_is_last(self) -> bool:
        """Whether the last evaluation was the best, so that more epochs may be better still."""
        return bool(self.history) and self.best_epoch == self.history[-1]["epoch"]
