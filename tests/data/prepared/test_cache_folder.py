"""Derived files: written once, whole or not at all, by one at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from evergram.data.prepared.cache_folder import derived_folder, read_derived, remove_others
from evergram.errors import DataError


def test_it_is_written_once(tmp_path: Path) -> None:
    for _ in range(2):
        folder = derived_folder(tmp_path / "a" / "b", lambda part: (part / "x").touch())
    assert [path.name for path in folder.iterdir()] == ["x"]

    def again(part: Path) -> None:
        raise AssertionError("it is there")

    derived_folder(folder, again)


def test_what_was_not_finished_is_not_there(tmp_path: Path) -> None:
    def dies(part: Path) -> None:
        (part / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        derived_folder(tmp_path / "a", dies)
    assert not (tmp_path / "a").exists()
    derived_folder(tmp_path / "a", lambda part: (part / "x").touch())
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x"]


def test_a_full_disk_is_said_in_a_sentence(tmp_path: Path) -> None:
    def full(part: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"cannot be written in .*: No space left on device; make"):
        derived_folder(tmp_path / "a", full)


def test_of_two_that_need_it_one_writes(tmp_path: Path) -> None:
    wrote: list[Path] = []
    start = threading.Barrier(4)

    def need() -> None:
        start.wait()
        derived_folder(tmp_path / "a", wrote.append)

    threads = [threading.Thread(target=need) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrote) == 1


def test_folders_of_older_data_are_removed(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name / "part").mkdir(parents=True)
    remove_others(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    remove_others(tmp_path / "nowhere" / "new")


def test_what_is_damaged_is_written_anew_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[Path] = []

    def write(part: Path) -> None:
        written.append(part)
        (part / "x").write_text("whole")

    def read(folder: Path) -> str:
        text = (folder / "x").read_text()
        if text != "whole":
            raise DataError(f"x is {text}; do this.")
        return text

    assert read_derived(tmp_path / "a", write, read) == "whole"
    (tmp_path / "a" / "x").write_text("half")
    assert [read_derived(tmp_path / "a", write, read) for _ in range(2)] == ["whole", "whole"]
    assert len(written) == 2
    assert "written anew: x is half." in caplog.text


def test_damage_of_what_it_is_derived_from_is_raised(tmp_path: Path) -> None:
    def write(part: Path) -> None:
        raise DataError("The data is damaged.")

    with pytest.raises(DataError, match="The data is damaged"):
        read_derived(tmp_path / "a", write, lambda folder: folder)
    assert not (tmp_path / "a").exists()
