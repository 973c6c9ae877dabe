"""No encoding, pipe or closed stream changes the exit code of finished work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.command import PROGRAM

from evergram.cli.failures import _LastingFile
from evergram.lineage.lineage import Lineage

WORK = """
import sys
from pathlib import Path
import typer
from evergram.cli import app, main

@app.command()
def work(code: int) -> None:
    for _ in range(2000):
        print("–" * 50)
        print("progress", file=sys.stderr)
    Path("result").write_text("whole")
    print("The result is in caf\\u00e9-\\udcff.")
    raise typer.Exit(code)

main()
"""


def in_shell(
    redirections: str, *arguments: object, program: str = WORK, **environment: str
) -> tuple[int, bytes, bytes]:
    """Run `evergram ARGUMENTS REDIRECTIONS` by a shell: its exit code, stdout and stderr."""
    ran = subprocess.run(
        ["bash", "-c", f'"$0" -c "$PROGRAM" "$@" {redirections}; exit "${{PIPESTATUS[0]}}"',
         sys.executable, *map(str, arguments)],
        env={**os.environ, "PROGRAM": program, **environment},
        capture_output=True,
        check=False,
        timeout=300,
    )  # fmt: skip
    assert b"Traceback" not in ran.stderr
    assert b"Exception ignored" not in ran.stderr
    return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("redirections", "code"), [(">&-", 0), (">&- 2>&-", 1), ("2>&1 | true", 1), ("| head -1", 0)]
)
def test_a_stream_without_a_reader_leaves_the_work_and_its_exit_code(
    redirections: str, code: int
) -> None:
    assert in_shell(redirections, "work", code)[0] == code
    assert Path("result").read_text() == "whole"


def test_a_full_disk_is_said() -> None:
    code, _, err = in_shell("> /dev/full", "work", 0)
    assert code == 2
    assert b"No space left on device" in err
    assert Path("result").read_text() == "whole"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_character_that_stdout_cannot_write_becomes_an_escape(encoding: str) -> None:
    code, out, _ = in_shell("", "work", 0, PYTHONIOENCODING=encoding)
    assert code == 0
    written = "The result is in café-\udcff.\n".encode(encoding, "backslashreplace")
    assert out.endswith(b"\n" + written)


@pytest.mark.long
def test_a_training_is_published_whatever_reads_it(shop: Path) -> None:
    train = in_shell(
        *("2>&1 | head -1", "train", "shop.toml", "--lineage", "l"),
        program=PROGRAM,
        PYTHONIOENCODING="latin-1",
    )
    assert train[0] == 0
    assert Lineage.open("l").newest == 0


def test_a_full_pipe_that_does_not_block_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 4096)
    raw = _LastingFile(writer, "w", closefd=False)
    written: list[int] = []
    thread = threading.Thread(target=lambda: written.append(raw.write(b"result")), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    while not os.read(reader, 1 << 16).endswith(b"result"):
        pass
    thread.join(10)
    assert written == [6]
    os.close(reader)
    os.close(writer)
