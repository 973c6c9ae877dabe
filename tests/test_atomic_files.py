"""Files appear whole or not at all: the order of syncs and renames, and what an error leaves."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evergram import atomic_files
from evergram.atomic_files import (
    mirror_content,
    new_folder,
    part_of,
    remove_folder,
    replacing,
    replacing_path,
    write_bytes,
    write_text,
)

SOURCE = Path(atomic_files.__file__).parent


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record syncs and renames, in their order."""
    done: list[str] = []

    def recorded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            path = args[0] if name == "rename" else Path(f"/proc/self/fd/{args[0]}").readlink()
            done.append(f"{name} {Path(path).name}")
            return real(*args)

        return call

    monkeypatch.setattr(os, "fsync", recorded("sync", os.fsync))
    monkeypatch.setattr(Path, "replace", recorded("rename", Path.replace))
    return done


def test_bytes_are_synced_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, calls: list[str]
) -> None:
    write_text(tmp_path / "a.json", "{}")
    assert calls == ["sync .a.json.part", "rename .a.json.part", f"sync {tmp_path.name}"]
    assert (tmp_path / "a.json").read_text() == "{}\n"


def test_a_folder_is_synced_with_all_that_is_in_it(tmp_path: Path, calls: list[str]) -> None:
    with new_folder(tmp_path / "v", 0o640) as part:
        (part / "inner").mkdir()
        (part / "inner" / "x").write_bytes(b"x")
    assert calls[-2:] == ["rename .v.part", f"sync {tmp_path.name}"]
    assert set(calls[:-2]) == {"sync inner", "sync x", "sync .v.part"}
    assert stat.S_IMODE((tmp_path / "v" / "inner" / "x").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "v" / "inner").stat().st_mode) == 0o750


@pytest.mark.parametrize("write", [replacing, replacing_path, new_folder])
def test_an_error_leaves_what_was_there(tmp_path: Path, write: Any) -> None:
    place = tmp_path / "place"
    with pytest.raises(RuntimeError), write(place):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    write_bytes(place, b"before")
    with pytest.raises(RuntimeError), write(place):
        raise RuntimeError
    assert place.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [place]


def test_a_link_at_the_place_of_the_new_file_is_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    place = tmp_path / "place"
    part_of(place).symlink_to(other)
    write_bytes(place, b"new")
    part_of(place).symlink_to(other)
    with replacing_path(place) as part:
        part.write_bytes(b"newer")
    assert (other.read_bytes(), place.read_bytes()) == (b"mine", b"newer")


def test_permissions_are_those_passed_or_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "plain", b"")
        write_bytes(tmp_path / "owned", b"", 0o600)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("plain", "owned")]
    assert modes == [0o640, 0o600]


def test_a_file_stays_if_nothing_was_written_in_its_place(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.write_bytes(b"before")
    with replacing_path(place):
        pass
    assert place.read_bytes() == b"before"


def test_equal_content_is_not_written_again(tmp_path: Path, calls: list[str]) -> None:
    place = tmp_path / "a" / "b"
    mirror_content(place, b"1")
    calls.clear()
    mirror_content(place, b"1")
    assert calls == []
    mirror_content(place, None)
    mirror_content(place, None)
    assert not place.exists()


def test_a_removed_folder_is_gone_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    folder.mkdir()
    (folder / "x").write_bytes(b"x")
    remove_folder(folder)
    remove_folder(folder)
    assert list(tmp_path.iterdir()) == []


def test_no_other_file_syncs_or_renames_into_place() -> None:
    """Every file of the package syncs and renames through `atomic_files`, and several that belong
    together through `file_group`."""
    own = {"fsync", "rename", "replace"}
    others = []
    for path in SOURCE.rglob("*.py"):
        if path.name in ("atomic_files.py", "file_group.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            renames = node.func.attr in own and len(node.args) == 1
            if renames and not isinstance(node.args[0], ast.Dict):
                others.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}")
    assert others == []


@pytest.mark.parametrize("kernel", [True, False])
def test_folders_are_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
) -> None:
    if not kernel:
        monkeypatch.setattr(atomic_files, "_exchange", lambda one, other: False)
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
    atomic_files.exchange_folders(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "new").read_text() == "new"
    assert (tmp_path / "new" / "old").read_text() == "old"
    assert not atomic_files.displaced(tmp_path / "old").exists()


def test_a_displaced_folder_is_put_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    atomic_files.displaced(folder).mkdir()
    atomic_files.restore_displaced(folder)
    assert folder.is_dir()
    atomic_files.displaced(folder).mkdir()
    atomic_files.restore_displaced(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
