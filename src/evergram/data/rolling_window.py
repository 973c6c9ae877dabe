"""`RollingWindow`: the end of a growing corpus, such as its last 5 % or its last 7 days."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from evergram.errors import DataError

if TYPE_CHECKING:
    # Formatting a date must not import torch.
    from evergram.data.corpus import Corpus

_WINDOW = re.compile(r"(\d+(?:\.\d+)?)\s*(%|hour|day|week)s?")
_SECONDS = {"hour": 3600, "day": 86_400, "week": 604_800}
# Unix times from 1980 to 2100 do not overlap between units, so the number reveals the unit.
_FIRST, _LAST = 315_532_800, 4_102_444_800
UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


@dataclass(frozen=True)
class RollingWindow:
    """The latest interactions of a corpus: a share of them ("5 %") or a length of time in seconds
    ("36 hours", "7 days")."""

    text: str
    share: float | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> RollingWindow:
        """Parse a text. Raises: ValueError: it is neither a percentage nor a length of time."""
        match = _WINDOW.fullmatch(text.strip())
        number = float(match[1]) if match else 0.0
        if match is None or number <= 0 or (match[2] == "%" and number >= 100):
            raise ValueError(
                f"split.last is {text!r}; it must be a percentage between 0 and 100 or a length of "
                "time, such as '5 %', '36 hours', '7 days' or '2 weeks'"
            )
        if match[2] == "%":
            return cls(text, share=number / 100)
        return cls(text, seconds=number * _SECONDS[match[2]])

    def begins(self, corpus: Corpus) -> int:
        """Return the number of interactions before the window, which ends with the last one."""
        if self.share is not None:
            return round((1 - self.share) * len(corpus))
        assert self.seconds is not None
        first, latest = map(float, corpus.time_span)
        return corpus.before(latest - self.seconds * _per_second(first, latest, self.text))


def unit_range(unit: str) -> tuple[int, int]:
    return _FIRST * UNITS[unit], _LAST * UNITS[unit]


def unit_of(time: float) -> str | None:
    """Return the unit of a Unix time between 1980 and 2100, such as "seconds"; else None."""
    return next((n for n, count in UNITS.items() if _FIRST * count <= time < _LAST * count), None)


def date_text(time: float) -> str:
    """Format a Unix time as a date with minutes, and any other number as a number."""
    unit = unit_of(time)
    if unit is None:
        return f"{time:.15g}"
    return f"{datetime.fromtimestamp(time / UNITS[unit], UTC):%Y-%m-%d %H:%M}"


def _per_second(first: float, latest: float, text: str) -> int:
    """Return how many units of these times make a second: both must lie between 1980 and 2100."""
    unit = unit_of(latest)
    if unit is not None and first >= _FIRST * UNITS[unit]:
        return UNITS[unit]
    time, which = (latest, "latest") if unit is None else (first, "earliest")
    as_latest = "" if unit is None else f" in {unit}, as the latest seems to be,"
    raise DataError(
        f"split.last = {text!r} needs dates, or Unix times in {', '.join(UNITS)}; the {which} time "
        f"here is {time:g}, which{as_latest} is not between 1980 and 2100. Give a percentage."
    )
