"""The entry point: an error is one line on stderr, and the exit code says of which kind."""

from __future__ import annotations

import pytest
from tests.support.command import Command

import evergram.cli as cli
from evergram.cli.failures import INTERRUPTED, REFUSED
from evergram.errors import LineageError


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the command fail with this error, whatever it is asked."""

    def fail(**_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "app", fail)


def test_success_does_not_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", lambda **_: None)
    cli.main()


def test_an_error_is_one_line_and_exit_code_2(
    evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, LineageError("There is no version 7."))
    assert evergram() == (REFUSED, "", "error: There is no version 7.\n")


def test_an_interrupted_command_says_that_nothing_was_changed(
    evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert evergram() == (INTERRUPTED, "", "interrupted; the lineage is as it was\n")
    # Click turns Ctrl-C into this exit code while it runs a command.
    monkeypatch.setattr(cli, "app", lambda **_: INTERRUPTED)
    assert evergram().err == "interrupted; the lineage is as it was\n"


def test_a_commands_own_exit_code_is_that_of_the_process(
    evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, SystemExit(1))
    assert evergram() == (1, "", "")
    monkeypatch.setattr(cli, "app", lambda **_: 3)
    assert evergram() == (3, "", "")
