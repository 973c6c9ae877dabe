"""The sentence and the exit code of each kind of error, and the warnings on stderr."""

from __future__ import annotations

import logging
import re
import stat
import tempfile
from pathlib import Path

import pytest
from tests.support.command import Command, run_process
from tests.support.lineages import lineage_of

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
        (RuntimeError(torchs), "1600 b"),
        (MemoryError("Unable to allocate 7.28 TiB for an array with shape (10, 10)"), "7.28 TiB"),
        (ValueError("malloc of size 640 failed"), "malloc of size 640"),
        (MemoryError(), "not enough memory"),
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
        (["lineage", "label", "l"], r"'NAME'; see '.*evergram lineage label --help'"),
        (["serve", "l", "--port", "99999"], r"--port is '99999'.* 65535; see '.*serve --h"),
        (["store", "backfill", "plan", "l"], r"'--store'; see '.*store backfill plan --help'"),
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


def test_an_interrupted_command_says_that_nothing_was_changed(
    evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert evergram() == (INTERRUPTED, "", "interrupted; the lineage is unchanged\n")
    # Click turns Ctrl-C into this exit code while it runs a command.
    monkeypatch.setattr(cli, "parser", lambda: lambda **_: INTERRUPTED)
    assert evergram().err == "interrupted; the lineage is unchanged\n"


ROOT = Path(__file__).parents[2]
FAIL = "import evergram.cli as cli\ndef fail(): raise {}\ncli.parser = fail\n"
# By code: a command line that ends with it, and Python that its process runs before.
ENDINGS = {
    0: ("lineage list l", ""),
    1: ("lineage check l --max-error 0", ""),
    2: ("lineage list none", ""),
    70: ("lineage list l", FAIL.format("ZeroDivisionError")),
    130: ("lineage list l", FAIL.format("KeyboardInterrupt")),
}


def test_commands_end_with_the_documented_codes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    table = page.split("| exit code | meaning |")[1].split("\n\n")[0]
    assert {int(c) for c in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == ENDINGS.keys()
    lineage_of(tmp_path / "l")
    for code, (words, before) in ENDINGS.items():
        ran = run_process(*words.split(), folder=tmp_path, before=before, TMPDIR=str(tmp_path))
        assert ran.code == code, ran.err
        # Each but success says on stderr why.
        assert bool(ran.err) == bool(code)


def test_a_training_that_fails_leaves_no_empty_folder(evergram: Command, shop: Path) -> None:
    lost = "--set gramian.kind=sagram --set training.table_rate=1e30"
    lost += " --set training.epochs=3"
    assert "lower the learning rates" in evergram(f"train shop.toml --lineage deep/l {lost}").err
    assert not (shop / "deep/l").exists()
    assert evergram("train shop.toml --lineage deep/l").code == 0
    assert evergram(f"upgrade shop.toml --lineage deep/l {lost}").code == 2
    assert not (shop / "deep/l/.work").exists()
