"""`RollingWindow`: the end of a growing corpus, such as its last 5 % or its last 7 days."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from evergram.errors import DataError

if TYPE_CHECKING:
    # Whoever only writes a date needs no torch.
    from evergram.data.corpus import Corpus

_WINDOW = re.compile(r"(\d+(?:\.\d+)?)\s*(%|hour|day|week)s?")
_SECONDS = {"hour": 3600, "day": 86_400, "week": 604_800}
# Unix times of 1980 to 2100 in each unit do not overlap, so a time says what unit it is in.
_FIRST, _LAST = 315_532_800, 4_102_444_800
UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


@dataclass(frozen=True)
class RollingWindow:
    """The last part of a corpus that is in order of time.

    Args:
        text: as a person wrote it, such as "5 %", "36 hours", "7 days" or "2 weeks".
        share: of all interactions; None for a length of time.
        seconds: a length of time; None for a share.
    """

    text: str
    share: float | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> RollingWindow:
        """Parse a text. Raises: ValueError: it is neither a percentage nor a length of time."""
        read = _WINDOW.fullmatch(text.strip())
        number = float(read[1]) if read else 0.0
        if read is None or number <= 0 or (read[2] == "%" and number >= 100):
            raise ValueError(
                f"split.last is {text!r}; it must be a percentage between 0 and 100 or a length of "
                "time, such as '5 %', '36 hours', '7 days' or '2 weeks'"
            )
        if read[2] == "%":
            return cls(text, share=number / 100)
        return cls(text, seconds=number * _SECONDS[read[2]])

    def begins(self, corpus: Corpus) -> int:
        """Return the number of interactions of a corpus, in order of time, before the window.

        A length of time counts back from the last interaction; one of exactly that age is in the
        window.

        Raises: DataError: the window is a length of time and the times are not Unix times.
        """
        if self.share is not None:
            return round((1 - self.share) * len(corpus))
        assert self.seconds is not None
        first, latest = map(float, corpus.time_span)
        return corpus.before(latest - self.seconds * _per_second(first, latest, self.text))


def units_per_second(time: float) -> int | None:
    """Return how many units of `time` make a second; None unless it is a date of 1980 to 2100."""
    for units in UNITS.values():
        if _FIRST * units <= time < _LAST * units:
            return units
    return None


def unit_range(unit: str) -> tuple[int, int]:
    """Return the Unix times of 1980 and of 2100 in a unit, such as "seconds"."""
    return _FIRST * UNITS[unit], _LAST * UNITS[unit]


def date_text(time: float) -> str:
    """Return a time as a date and minute if it is a date, else as the number that it is."""
    units = units_per_second(time)
    if units is None:
        return f"{time:.15g}"
    return f"{datetime.fromtimestamp(time / units, UTC):%Y-%m-%d %H:%M}"


def unit_of(time: float) -> str | None:
    """Return the unit of a Unix time by its size, such as "seconds"; None if it has none."""
    units = units_per_second(time)
    return next((name for name, count in UNITS.items() if count == units), None)


def _per_second(first: float, latest: float, text: str) -> int:
    """Return how many units of these times make a second: both must be dates of 1980 to 2100.

    Of the latest alone the unit could be guessed wrong: microseconds since 1970 of that year are
    milliseconds of today.
    """
    units = units_per_second(latest)
    if units is not None and first >= _FIRST * units:
        return units
    time, which = (latest, "latest") if units is None else (first, "earliest")
    unit = "" if units is None else f" in {unit_of(latest)}, as the latest seems to be,"
    raise DataError(
        f"split.last = {text!r} needs dates, or Unix times in {', '.join(UNITS)}; the {which} "
        f"time here is {time:g}, which{unit} is not between 1980 and 2100. Give a percentage such "
        "as '5 %'."
    )
