"""The base of readings: callbacks that observe a training and return JSON."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from evergram import Recipe
from evergram.data import Split
from evergram.training import Callback, Trained


class Watch(Callback, ABC):
    """Observes one training."""

    @abstractmethod
    def read(self, trained: Trained) -> dict[str, Any]:
        """Return the measurements, as JSON, after the training."""


@dataclass(frozen=True)
class Reading(ABC):
    """The settings of a reading; its fields are part of a result's key.

    `name` is its name in a result's `series`.
    """

    name: ClassVar[str]

    @abstractmethod
    def watch(self, recipe: Recipe, split: Split) -> Watch:
        """Return the callback for one training of a recipe on a split."""

    def settings(self) -> dict[str, Any]:
        return {"reading": self.name, **asdict(self)}


class CpuClock:
    """CPU seconds of this process between ticks. With one thread, they equal the elapsed time on an
    idle machine, even if this machine is busy."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last: float | None = None

    def tick(self) -> None:
        """Count the time since the last tick as training."""
        now = time.process_time()
        self.seconds += 0.0 if self._last is None else now - self._last
        self._last = now

    def resume(self) -> None:
        """Do not count the time since the last tick."""
        self._last = time.process_time()
