"""When a training writes checkpoints, how many it keeps, and whether it resumes from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self

from evergram.did_you_mean import did_you_mean
from evergram.errors import RecipeError

# Seconds between two checkpoints where nothing is chosen: short runs write none on their way.
SECONDS = 60.0
# Of large states fewer are written: a checkpoint follows after at least so many times the seconds
# that the last one took, so that writing takes at most two hundredths of the time.
PATIENCE = 50
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class CheckpointSettings:
    """How a training is saved; it does not change the result.

    Args:
        seconds: between two checkpoints.
        steps: between two checkpoints. Without either, they are `SECONDS` apart, or further where
            writing one takes long.
        keep: number of checkpoints to keep; one less (but never none) while one is written.
        resume: "auto" resumes a run of the same recipe and data from its newest checkpoint;
            "never" drops its checkpoints and trains from the start.
    Raises: RecipeError: a value is not allowed.
    """

    seconds: float | None = None
    steps: int | None = None
    keep: int = 2
    resume: Literal["auto", "never"] = "auto"

    def __post_init__(self) -> None:
        if self.seconds is not None and self.steps is not None:
            raise RecipeError(
                f"Checkpoints every {self.seconds:g} seconds and every {self.steps} steps were "
                "both asked for; choose one of them."
            )
        if (self.seconds is not None and not 0 <= self.seconds < float("inf")) or (
            self.steps is not None and self.steps < 1
        ):
            raise RecipeError(_refusal(f"{self.seconds if self.steps is None else self.steps}"))
        if self.keep < 1:
            raise RecipeError(f"keep = {self.keep} keeps no checkpoint; it must be 1 or more.")
        if self.resume not in ("auto", "never"):
            raise RecipeError(
                f"--resume {self.resume} is not known; it must be auto or never"
                f"{did_you_mean(self.resume, ('auto', 'never'))}."
            )

    @classmethod
    def of(cls, every: str | None = None, keep: int = 2, resume: str = "auto") -> Self:
        """Return the settings of a command's options.

        >>> from evergram.training.checkpoints.settings import CheckpointSettings
        >>> CheckpointSettings.of("5m").seconds, CheckpointSettings.of("1000").steps
        (300.0, 1000)

        Args:
            every: a time, such as "60s", "5m" or "1h"; a number of steps, such as "1000"; or None.
        Raises: RecipeError: a value is not allowed.
        """
        seconds, steps = None, None
        if every is not None:
            matched = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smh])|(\d{1,18})", every.strip())
            if matched is None:
                raise RecipeError(_refusal(every))
            if matched[3] is None:
                seconds = float(matched[1]) * _UNITS[matched[2]]
            else:
                steps = int(matched[3])
        return cls(seconds, steps, keep, resume)  # type: ignore[arg-type]  # checked above

    def due(self, seconds: float, steps: int, cost: float) -> bool:
        """Return whether a checkpoint is due, `seconds` and `steps` after the last one, which took
        `cost` seconds."""
        if self.steps is not None:
            return steps >= self.steps
        if self.seconds is not None:
            return seconds >= self.seconds
        return seconds >= max(SECONDS, PATIENCE * cost)


def _refusal(every: str) -> str:
    return (
        f"--checkpoint-every {every} is not understood; give a time such as 60s, 5m or 1h, or a "
        "number of steps such as 1000."
    )


# When nothing is chosen.
AUTOMATIC = CheckpointSettings()
