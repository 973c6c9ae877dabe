"""The window at the end of a growing corpus, from its text."""

from __future__ import annotations

import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.data.rolling_window import RollingWindow, units_per_second
from evergram.errors import DataError


@pytest.mark.parametrize(
    ("text", "share", "seconds"),
    [
        ("5 %", 0.05, None),
        ("12.5%", 0.125, None),
        ("7 days", None, 604_800),
        ("1 day", None, 86_400),
        ("36 hours", None, 129_600),
        ("2 weeks", None, 1_209_600),
    ],
)
def test_a_share_or_a_length_of_time_is_read(
    text: str, share: float | None, seconds: float | None
) -> None:
    window = RollingWindow.parse(text)
    assert (window.share, window.seconds) == (share, seconds)


@pytest.mark.parametrize("text", ["", "5", "0 %", "100 %", "0 days", "-1 days", "7 moons", "5 %%"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"split\.last is"):
        RollingWindow.parse(text)


def at(times: torch.Tensor) -> Corpus:
    """A corpus with an interaction at each time."""
    return Corpus.of({"query": times.numpy(), "candidate": times.numpy(), "time": times.numpy()})


@pytest.mark.parametrize("units", [1, 10**3, 10**6, 10**9])
def test_a_day_is_a_day_in_every_unit(units: int) -> None:
    hours = torch.arange(100) * 3600
    time = at((1_500_000_000 + hours) * units)
    # The last at hour 99: hours 75 to 99 are in the window, 75 before it.
    assert RollingWindow.parse("1 day").begins(time) == 75


def test_times_that_are_no_dates_take_a_share_alone() -> None:
    time = at(torch.arange(100))
    assert RollingWindow.parse("5 %").begins(time) == 95
    with pytest.raises(DataError, match="99, which is not between 1980 and 2100"):
        RollingWindow.parse("7 days").begins(time)


def test_dates_of_1970_are_not_taken_for_those_of_another_unit() -> None:
    """Microseconds of 1970, as dates have them, are in number milliseconds of today."""
    time = at(torch.arange(100) * 36 * 10**9)
    assert RollingWindow.parse("5 %").begins(time) == 95
    with pytest.raises(DataError, match=r"the earliest time here is 0, which in milliseconds, as"):
        RollingWindow.parse("7 days").begins(time)


def test_a_date_tells_its_unit_and_another_number_tells_none() -> None:
    assert [units_per_second(1.7e9 * u) for u in (1, 10**3, 10**6)] == [1, 10**3, 10**6]
    assert units_per_second(12.0) is None
