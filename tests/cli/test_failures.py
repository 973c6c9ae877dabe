"""The sentence and the exit code of each kind of error, and the warnings on stderr."""

from __future__ import annotations

import logging
import re
import stat
import tempfile
from pathlib import Path

import pytest
from tests.support.command import Command

import evergram.cli as cli
from evergram.cli.failures import (
    INTERRUPTED,
    REFUSED,
    SHOWN,
    UNFORESEEN,
    sentence_and_code,
    warnings_on_stderr,
    without_passwords,
)
from evergram.errors import LineageError


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, where the details of an unforeseen error go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_an_unforeseen_error_is_one_short_sentence_and_a_private_log(logs: Path) -> None:
    error = KeyError("postgresql://ann:s3cret@db/films\n" + "x" * 1000)
    sentence, code = sentence_and_code(error)
    assert code == UNFORESEEN
    assert "\n" not in sentence
    (log,) = logs.glob("evergram-*.log")
    assert str(log) in sentence
    shown = sentence.split("(", 1)[1].split(");")[0]
    assert len(shown) == SHOWN + 1  # and the sign for more
    assert shown.endswith("…")
    assert "s3cret" not in sentence + log.read_text()
    assert "x" * 1000 in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_details_that_cannot_be_logged_follow_the_sentence(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(logs / "none"))
    sentence, _ = sentence_and_code(KeyError("what"))
    assert "could not be written (No such file or directory), so the details follow.\n" in sentence
    assert "KeyError: 'what'" in sentence.splitlines()[-1]


def test_warnings_are_lines_on_stderr_but_for_serve(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("evergram.anything")
    for command, lines in (("train", "warning: too few epochs\n"), ("serve", "")):
        monkeypatch.setattr("sys.argv", ["evergram", command])
        with warnings_on_stderr():
            log.info("of no interest")
            log.warning("too %s epochs", "few")
        assert capsys.readouterr().err == lines
    assert not logging.getLogger("evergram").handlers


def test_errors_of_the_system_and_a_lack_of_memory_say_what_and_how_much() -> None:
    # The words of torch, of NumPy and of Arrow.
    torchs = (
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1600 b"
    )
    for error, named in (
        (OSError(28, "No space left on device", "out.parquet"), "out.parquet: No space left"),
        (RuntimeError(torchs.replace(" b", " bytes")), "1,600 bytes of memory at once"),
        (MemoryError("Unable to allocate 7.28 TiB for an array with shape (10, 10)"), "7.28 TiB"),
        (ValueError("malloc of size 640 failed"), "640 bytes"),
        (MemoryError(), "more memory than there is"),
    ):
        sentence, code = sentence_and_code(error)
        assert (named in sentence, code) == (True, REFUSED), sentence


def test_passwords_of_addresses_are_blanked() -> None:
    for text, blanked in (
        ("two ://a:b@c and ://d:e@f", "two ://a:…@c and ://d:…@f"),
        ("a p@ss with an @ sign: x://u:p@ss@db", "a p@ss with an @ sign: x://u:…@db"),
        ("postgresql://db:5432/films", "postgresql://db:5432/films"),
    ):
        assert without_passwords(text) == blanked


def test_a_wrong_command_line_names_the_help(evergram: Command) -> None:
    for arguments, named in (
        (["lineage", "label", "l"], r"'NAME'; '.*evergram lineage label --help'"),
        (["serve", "l", "--port", "99999"], r"--port is '99999'.* 65535; '.*serve --h"),
        (["store", "backfill", "plan", "l"], r"'--store'; '.*store backfill plan --help'"),
    ):
        assert re.search(named, evergram.refused(*arguments))
    for group in ((), ("store", "backfill")):
        code, out, err = evergram(*group)
        assert (code, err, out.count("Usage: ")) == (REFUSED, "", 1)


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the command fail with this error, whatever it is asked."""

    def fail(**_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "parser", lambda: fail)


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
    monkeypatch.setattr(cli, "parser", lambda: lambda **_: INTERRUPTED)
    assert evergram().err == "interrupted; the lineage is as it was\n"


def test_a_commands_own_exit_code_is_that_of_the_process(
    evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, SystemExit(1))
    assert evergram() == (1, "", "")
    monkeypatch.setattr(cli, "parser", lambda: lambda **_: 3)
    assert evergram() == (3, "", "")
