"""The command `evergram`, run in this process, or in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evergram.cli import main
from evergram.cli.app import options_of, parser

# Starts the command; its arguments follow.
PROGRAM = "from evergram.cli import main; main()"


class CommandResult(NamedTuple):
    """The exit code, the output and the errors of a run of the command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON object that the command printed."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    def refusal(self) -> str:
        """The one sentence with which the command refused its input."""
        assert (self.code, self.out) == (2, ""), self
        # Lines of progress may come before it.
        *_, last = self.err.splitlines(keepends=True)
        assert last.startswith("error: "), self.err
        assert sum(n.startswith("error: ") for n in self.err.splitlines()) == 1, self.err
        return last


class Command:
    """Runs `evergram ARGUMENTS` in this process; a traceback on stderr fails the test.

    The first argument is split into words, as a shell does it.
    """

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object) -> CommandResult:
        self._capture.readouterr()
        code = exit_code(*arguments)
        out, err = self._capture.readouterr()
        assert "Traceback" not in err
        refuse_foreign_options(words_of(arguments), err)
        return CommandResult(code, out, err)

    def json(self, *arguments: object) -> Any:
        """Run a command with --json, and return the object that it printed."""
        return self(*arguments, "--json").json

    def refused(self, *arguments: object) -> str:
        """Run a command that must be refused, and return the sentence with which it is."""
        return self(*arguments).refusal()


def refuse_foreign_options(words: list[str], err: str) -> None:
    """Fail if an error or a warning tells of an option that the command lacks, but for those of
    other commands, which are named with the option."""
    own = options_of(words) | {word.partition("=")[0] for word in words} | {"--help"}
    for line in err.splitlines():
        if line.startswith(("error: ", "warning: ")):
            plain = re.sub(r"`[^`]*`|'[^']*\b(evergram|torchrun|pip)\b[^']*'", "", line)
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", plain)) <= own, line


def words_of(arguments: Sequence[object]) -> list[str]:
    words = [str(argument) for argument in arguments]
    return [*shlex.split(" ".join(words[:1])), *words[1:]]


def exit_code(*arguments: object) -> int:
    """Run `evergram ARGUMENTS` in this process, and return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["evergram", *words_of(arguments)])
        # The width of rich's tables, whatever the terminal's is.
        patch.setenv("COLUMNS", "80")
        try:
            main()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def every_command(group: Any = None, before: str = "") -> dict[str, Any]:
    """Return all commands by their words, such as "lineage list"; groups are no commands."""
    commands: dict[str, Any] = {}
    top: Any = parser() if group is None else group
    for name, command in top.commands.items():
        if hasattr(command, "commands"):
            commands |= every_command(command, f"{before}{name} ")
        else:
            commands[before + name] = command
    return commands


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the command that an argument list starts, such as "store fill", and its options.

    Raises: an error of click where an option is unknown or a value is wrong.
    """
    program, *rest = words
    assert program == "evergram"
    commands = every_command()
    name = next(n for n in (" ".join(rest[:2]), rest[0]) if n in commands)
    arguments = rest[len(name.split()) :]
    return name, commands[name].make_context(name, arguments).params


def run_process(
    *arguments: object,
    folder: Path | None = None,
    before: str = "",
    timeout: float = 600,
    **environment: str,
) -> CommandResult:
    """Run `evergram ARGUMENTS` in a process of its own, and return its result.

    Args:
        folder: the working directory.
        before: Python that the process runs before the command.
        environment: variables beside those of this process.
    """
    completed = subprocess.run(
        [sys.executable, "-c", before + PROGRAM, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert "Traceback" not in completed.stderr
    return CommandResult(completed.returncode, completed.stdout, completed.stderr)


def shell_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a shell that has the command `evergram`, a script in the folder."""
    script = folder / "programs" / "evergram"
    script.parent.mkdir()
    program = f'import sys; sys.argv[0] = "evergram"; {PROGRAM}'
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{program}' \"$@\"\n")
    script.chmod(0o755)
    path = os.pathsep.join([str(script.parent), os.environ["PATH"]])
    root = Path(__file__).parents[2]
    sources = os.pathsep.join([str(root / "src"), str(root)])
    return {**os.environ, "PATH": path, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}


def run_in_shell(block: str, environment: dict[str, str], folder: Path, code: int = 0) -> str:
    """Run a block of bash, which must end with this exit code; return its output."""
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{block}: {done.stderr}"
    return done.stdout


@pytest.fixture
def evergram(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process: `evergram("lineage", "list", "l", "--json").json`."""
    return Command(capfd)
