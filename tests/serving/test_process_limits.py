"""The limit of open files that the operating system sets on a process that serves."""

from __future__ import annotations

import logging
import sys

import pytest

from evergram.serving.process_limits import FILES, allowed_connections

resource = pytest.importorskip("resource")


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft and the hard limit of files, which the process is told and may change."""
    values = [FILES, FILES + 40]

    def change(_: int, changed: tuple[int, int]) -> None:
        if resource.RLIM_INFINITY != values[1] < changed[0]:
            raise ValueError("not allowed to raise maximum limit")
        values[:] = changed

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(values))
    monkeypatch.setattr(resource, "setrlimit", change)
    return values


def test_the_limit_is_raised_as_far_as_it_is_needed(limits: list[int]) -> None:
    assert allowed_connections(30) == 30
    assert limits == [FILES + 30, FILES + 40]


def test_connections_past_the_limit_are_logged_and_left_out(
    limits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert allowed_connections(100) == 40
    assert f"it takes 40 connections at once, not 100; 'ulimit -n {FILES + 100}'" in caplog.text


def test_a_limit_that_cannot_be_raised_leaves_one_connection_at_least(
    limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("as some systems do")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    limits[0] = 10
    assert allowed_connections(30) == 1
    limits[0] = FILES + 5
    assert allowed_connections(30) == 5


def test_without_a_limit_all_are_allowed(
    limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits[:] = [resource.RLIM_INFINITY] * 2
    assert allowed_connections(10**6) == 10**6
    limits[:] = [10, resource.RLIM_INFINITY]
    assert allowed_connections(10**6) == 10**6
    assert limits[0] == 10**6 + FILES
    monkeypatch.setitem(sys.modules, "resource", None)
    assert allowed_connections(7) == 7
