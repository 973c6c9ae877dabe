"""The folder holds the old content or the new one, wherever a run is killed."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.prepared_folders import column

from evergram import atomic_files
from evergram.data.prepared.prepared_record import PreparedRecord
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.prepared_folder import new_content, writing
from evergram.errors import DataError

FIRST = pa.table({"query": [1, 2, 1], "candidate": [5, 5, 6], "time": [10, 20, 30]})
LATER = pa.table({"query": [2, 3], "candidate": [7, 5], "time": [30, 40]})

# Prepares LATER and dies before or after one function.
DYING = """
import os, sys
import pyarrow as pa
from evergram.data.prepared.writing import preparation, prepared_folder
from evergram.data.prepared.writing.prepare import prepare
module, name, how = sys.argv[1:4]
place = {"preparation": preparation, "folder": prepared_folder}[module]
old = getattr(place, name)
def die(*arguments, **options):
    if how == "after":
        old(*arguments, **options)
    os._exit(9)
setattr(place, name, die)
table = pa.table({"query": [2, 3], "candidate": [7, 5], "time": [30, 40]})
prepare(table, sys.argv[4], **{sys.argv[5]: True})
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize(
    ("module", "name", "how", "done"),
    [
        ("preparation", "stage", "after", False),
        ("preparation", "write_part", "after", False),
        ("preparation", "write_text", "before", False),
        ("preparation", "write_text", "after", False),
        ("folder", "exchange_folders", "before", False),
        ("folder", "exchange_folders", "after", True),
    ],
)
def test_a_killed_run_leaves_the_old_content_or_the_new(
    tmp_path: Path, mode: str, module: str, name: str, how: str, done: bool
) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)
    arguments = [module, name, how, str(out), mode]
    killed = subprocess.run([sys.executable, "-c", DYING, *arguments], check=False, timeout=120)
    assert killed.returncode == 9
    whole = [10, 20, 30, 30, 40] if mode == "append" else [30, 40]
    assert column(out, "time").tolist() == (whole if done else [10, 20, 30])
    assert PreparedRecord.load(out).interactions == len(column(out, "time"))
    assert (tmp_path / ".out.part").exists()
    prepare(FIRST, out, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.lock", "out"]


def test_without_an_exchange_the_next_run_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a system without the kernel's exchange, a process dies between the two renames."""
    out = tmp_path / "out"
    prepare(FIRST, out)
    monkeypatch.setattr(atomic_files, "_exchange", lambda one, other: False)
    prepare(LATER, out, append=True)
    assert column(out, "time").tolist() == [10, 20, 30, 30, 40]
    out.rename(atomic_files.displaced(out))
    last = pa.table({"query": [9], "candidate": [9], "time": [50]})
    prepare(last, out, append=True)
    assert column(out, "time").tolist() == [10, 20, 30, 30, 40, 50]


def hold(out: Path, holding: object, free: object) -> None:
    with writing(out):
        holding.set()  # type: ignore[attr-defined]
        free.wait(60)  # type: ignore[attr-defined]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    holding, free = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path / "out", holding, free))
    process.start()
    try:
        assert holding.wait(60)
        with pytest.raises(DataError, match="Another process is preparing"):
            prepare(FIRST, tmp_path / "out")
    finally:
        free.set()
        process.join()
    prepare(FIRST, tmp_path / "out")


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match="No space left on device; it is as it was"):
        prepare(LATER, out, append=True)
    assert column(out, "time").tolist() == [10, 20, 30]
    assert not (tmp_path / ".out.part").exists()


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        prepare(FIRST, tmp_path / "file" / "out")
    # A lock that cannot be made is no other process.
    with pytest.raises(DataError, match="/proc/x cannot be written"):
        prepare(FIRST, "/proc/x")
    with pytest.raises(DataError, match="is a file or a link"):
        prepare(FIRST, tmp_path / "file", overwrite=True)


def test_new_content_replaces_nothing_if_it_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with new_content(tmp_path / "out") as folder:
            (folder / "x").write_text(str(os.getpid()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []
