"""Files, groups of files and folders appear whole or not at all; a file system has locks."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.lineages import lineage_of, publish
from tests.support.vector_file_makers import blocks_of, whole

from evergram import atomic_files
from evergram.atomic_files import (
    mirror_content,
    new_folder,
    part_of,
    replacing,
    replacing_path,
    write_bytes,
    write_text,
)
from evergram.errors import DataError, EvergramError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.lineage.locks import training_claim
from evergram.stores.open_store import open_store
from evergram.vector_files.open_embeddings import (
    FINGERPRINT,
    open_embeddings,
    read_provenance_file,
    write_vectors,
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


def test_equal_content_is_not_written_again(tmp_path: Path, calls: list[str]) -> None:
    place = tmp_path / "a" / "b"
    mirror_content(place, b"1")
    calls.clear()
    mirror_content(place, b"1")
    assert calls == []
    mirror_content(place, None)
    mirror_content(place, None)
    assert not place.exists()


def test_no_other_file_syncs_or_renames_into_place() -> None:
    """Every file of the package syncs and renames through `atomic_files`, and several that belong
    through `replacing_group`."""
    own = {"fsync", "rename", "replace"}
    others = []
    for path in SOURCE.rglob("*.py"):
        if path.name == "atomic_files.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            renames = node.func.attr in own and len(node.args) == 1
            if renames and not isinstance(node.args[0], ast.Dict):
                others.append(f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}")
    assert others == []


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
    atomic_files.replace_folder(tmp_path / "new", tmp_path / "old")
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "new"]
    with pytest.raises(FileNotFoundError):
        atomic_files.replace_folder(tmp_path / "none", tmp_path / "old")
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "new"]


def test_a_displaced_folder_is_put_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    atomic_files.displaced(folder).mkdir()
    atomic_files.restore_displaced(folder)
    assert folder.is_dir()
    atomic_files.displaced(folder).mkdir()
    atomic_files.restore_displaced(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


OLD: tuple[list[str], torch.Tensor] = ["a", "b", "c"], torch.tensor([[1.0, 1], [2, 2], [3, 3]])
NEW: tuple[list[str], torch.Tensor] = ["c", "b", "a"], torch.tensor([[30.0, 3], [20, 2], [10, 1]])
NAMES = ["x.npy"]


class Killed(BaseException):
    """Ends the process at once: nothing that it would do afterwards is done."""


@contextmanager
def failing_at(call: int, error: BaseException) -> Iterator[list[str]]:
    """Fail the `call`-th of all syncs, renames and removals; once killed, all after it, too."""
    calls: list[str] = []

    def failing(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) == call or (len(calls) > call and isinstance(error, Killed)):
                raise error
            return do(*args, **kwargs)

        return instead

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace", "rename", "unlink"):
            patch.setattr(os, name, failing(name, getattr(os, name)))
        yield calls


def content(path: Path) -> tuple[list[Any], list[list[float]], str | None]:
    """Return a file's ids, vectors and fingerprint. Raises: DataError: it cannot be read."""
    file = open_embeddings(path)
    ids, vectors = whole(file, 2)
    return ids, vectors.tolist(), file.provenance.get(FINGERPRINT)


def write(path: Path, version: tuple[list[str], torch.Tensor], fingerprint: str) -> None:
    write_vectors(path, blocks_of(*version, 2), {FINGERPRINT: fingerprint})


@pytest.mark.parametrize("name", NAMES)
def test_an_error_at_any_call_leaves_the_old_files_or_the_new(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write(path, OLD, "old")
    old = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    write(path, NEW, "new")
    new = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    kept = 0
    for call in range(1, 100):
        for file, data in old.items():
            (tmp_path / file).write_bytes(data)
        full = OSError(28, "No space left on device")
        with failing_at(call, full) as calls, suppress(DataError):
            write(path, NEW, "new")
        now = {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.name.startswith(".")}
        assert now in (old, new), f"after call {call}, {calls[-1]}"
        kept += now == old
        if len(calls) < call:
            break
    assert kept >= len(old)
    # What failed removals left is removed by the next write.
    write(path, NEW, "new")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == new


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_any_call_leaves_no_pair_of_two_versions(
    tmp_path: Path, name: str, first: bool
) -> None:
    path = tmp_path / name
    write(path, OLD, "old")
    old = content(path)
    write(path, NEW, "new")
    new = content(path)
    states = set()
    for call in range(1, 100):
        for file in tmp_path.iterdir():
            file.unlink()
        if not first:
            write(path, OLD, "old")
        with failing_at(call, Killed()) as calls, suppress(Killed):
            write(path, NEW, "new")
        if path.exists():
            state = content(path)
            assert state in (old, new), f"after call {call}, {calls[-1]}"
            states.add(state[2])
        else:
            states.add(None)
        # The next one finishes, whatever this one left, and an error of it mixes nothing either.
        with failing_at(12, OSError(28, "No space left on device")), suppress(DataError):
            write(path, NEW, "new")
        assert not path.exists() or content(path) in (old, new)
        write(path, NEW, "new")
        assert content(path) == new
        assert not list(tmp_path.glob(".*"))
        if len(calls) < call:
            break
    assert states == ({None, "new"} if first else {"old", None, "new"})


def test_a_file_beside_goes_where_nothing_is_written_for_it(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    write(path, OLD, "old")
    write_vectors(path, blocks_of([0, 1, 2], NEW[1], 2), named=False)
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]
    assert read_provenance_file(path) == {}


def test_a_file_alone_is_never_away(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    for call in range(1, 100):
        write_vectors(path, blocks_of([1, 2, 3], OLD[1], 2))
        with failing_at(call, Killed()) as calls, suppress(Killed):
            write_vectors(path, blocks_of([3, 2, 1], NEW[1], 2))
        assert content(path)[0] in ([1, 2, 3], [3, 2, 1])
        if len(calls) < call:
            break


def train(folder: Path) -> None:
    with training_claim(folder / "line" / ".work", "line"):
        pass


def pin(folder: Path) -> None:
    lineage = Lineage.open(folder / "line")
    ConsumerRegistry.open(folder / "line").add("ads", "v0", lineage.resolve)


DOORS: dict[str, Callable[[Path], Any]] = {
    "publish": lambda folder: publish(Lineage.open(folder / "line"), 1),
    "pin": pin,
    "train": train,
    "snapshot": lambda folder: open_store(str(folder / "store"), create="int64"),
}


def without_locks(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize("door", DOORS)
def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    lineage_of(tmp_path / "line", versions=1)
    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(EvergramError, match=r"not support locks|Function not implemented"):
        DOORS[door](tmp_path)
