"""The sentence and the exit code of each kind of error, and the warnings on stderr."""

from __future__ import annotations

import logging
import re
import stat
import tempfile
from pathlib import Path

import pytest
from tests.support.command import Command

from evergram.cli.failures import (
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


def test_an_error_of_ours_is_its_own_sentence() -> None:
    assert sentence_and_code(LineageError("no version 7")) == ("no version 7", REFUSED)


def test_an_error_of_the_system_names_its_file() -> None:
    error = OSError(28, "No space left on device", "out.parquet")
    assert sentence_and_code(error) == (
        "out.parquet: No space left on device; free some space, or name a place on another disk.",
        REFUSED,
    )
    assert sentence_and_code(OSError("gone")) == (
        "a file: gone; see that this file can be read and written, and try again.",
        REFUSED,
    )


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        # The words of torch, of NumPy and of Arrow.
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to "
                         "allocate 160000000000000 bytes. Error code 12"),
            "160,000,000,000,000 bytes of memory at once, and there is not so much",
        ),
        (
            MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000, 1000000)"),
            "7.28 TiB of memory at once, and there is not so much",
        ),
        (ValueError("malloc of size 640 failed"), "640 bytes"),
        (MemoryError(), "more memory than there is"),
    ],
)  # fmt: skip
def test_a_lack_of_memory_says_how_much_was_wanted(error: Exception, amount: str) -> None:
    sentence, code = sentence_and_code(error)
    assert code == REFUSED
    assert sentence.startswith("This needs ")
    assert amount in sentence


def test_a_runtime_error_that_is_not_of_memory_is_unforeseen(logs: Path) -> None:
    assert sentence_and_code(RuntimeError("shapes differ"))[1] == UNFORESEEN


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


@pytest.mark.parametrize(
    ("text", "blanked"),
    [
        ("postgresql://ann:secret@db/films", "postgresql://ann:…@db/films"),
        ("two ://a:b@c and ://d:e@f", "two ://a:…@c and ://d:…@f"),
        ("a p@ss with an @ sign: x://u:p@ss@db", "a p@ss with an @ sign: x://u:…@db"),
        ("postgresql://db:5432/films", "postgresql://db:5432/films"),
    ],
)
def test_passwords_of_addresses_are_blanked(text: str, blanked: str) -> None:
    assert without_passwords(text) == blanked


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], r"No such command 'nonsense'; '.*evergram --help' says what there is\."),
        (
            ["lineage", "label", "l"],
            r"Missing argument 'NAME'; '.*evergram lineage label --help' says what there",
        ),
        (
            ["serve", "l", "--port", "99999"],
            r"--port is '99999'; it must be at most 65535; '.*serve --h",
        ),
        (
            ["store", "backfill", "plan", "l"],
            r"Missing option '--store'; '.*evergram store backfill plan --help'",
        ),
    ],
)
def test_a_wrong_command_line_is_one_sentence_that_names_the_help(
    evergram: Command, arguments: list[str], sentence: str
) -> None:
    assert re.search(sentence, evergram.refused(*arguments))


def test_an_empty_command_line_prints_the_help(evergram: Command) -> None:
    code, out, err = evergram()
    assert (code, err) == (REFUSED, "")
    assert out.count("Usage: ") == 1
    assert "Train embeddings without negative sampling" in out


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
