"""What the commands of stores share: one store for each side, and progress."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.stores.conftest import ROWS
from tests.support.command import Command


@pytest.mark.parametrize("command", ["plan", "apply", "status", "rollback"])
def test_a_backfill_of_two_stores_is_refused(evergram: Command, line: Path, command: str) -> None:
    stores = ("--store", "object=a", "--store", "other=b")
    sentence = evergram.refused("store", "backfill", command, "line", *stores)
    assert "A backfill is of one store; 2 were given by --store: run the command once" in sentence


def test_progress_on_a_terminal_is_one_line_that_is_written_over(
    evergram: Command,
    line: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    err = evergram("store", "fill", "line", "--store", "object=rows").err
    assert err.startswith("\r")
    assert err.endswith(f"\r{ROWS} of {ROWS} rows of side object\n")
    assert err.count("\n") == 1
