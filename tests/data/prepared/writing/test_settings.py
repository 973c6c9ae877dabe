"""Settings that cannot be are refused; sizes of memory are read as people write them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from evergram.data.prepared.writing import settings
from evergram.data.prepared.writing.settings import PrepareSettings, bytes_of, machine_memory
from evergram.errors import DataError


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 << 30), ("500 MB", 500_000_000), ("1.5g", 1_500_000_000), ("4096", 4096)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"columns": {"user": "u"}}, "no column 'user' to name"),
        ({"k_core": -1}, "at least 0"),
        ({"minimum_value": float("nan")}, "NaN"),
        ({"name": "../x"}, "is no path"),
        ({"name": "a\\b"}, "is no path"),
        ({"name": ".."}, "is no path"),
        ({"threads": 0}, "at least 1"),
        ({"memory": "much"}, "no size of memory"),
        ({"memory": "1MiB"}, "at least 128MiB"),
    ],
)
def test_impossible_settings_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(DataError, match=why):
        PrepareSettings(**changed)


def test_the_engine_takes_a_quarter_of_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PrepareSettings(memory="1GiB").memory_bytes == 1 << 30
    for machine, share in [(64 << 30, 2 << 30), (4 << 30, 1 << 30), (1 << 28, 128 << 20)]:
        monkeypatch.setattr(settings, "machine_memory", lambda machine=machine: machine)
        assert PrepareSettings().memory_bytes == share


def test_threads_are_those_of_the_machine_if_none_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert PrepareSettings(threads=3).thread_count == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 7})
    assert PrepareSettings().thread_count == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert PrepareSettings().thread_count == 5


def test_a_container_bounds_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "1000000\n")
    assert machine_memory() == 1_000_000
    monkeypatch.setattr(Path, "read_text", lambda _: "max\n")
    assert machine_memory() > 1_000_000
