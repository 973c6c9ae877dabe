"""The options that several commands share."""

from __future__ import annotations

from evergram.cli import app


def test_every_command_has_an_answer_for_machines() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        assert "as_json" in command.callback.__annotations__
