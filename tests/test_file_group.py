"""A file and those beside it are replaced together, whatever fails and whenever a process dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.vector_file_makers import blocks_of, whole

from evergram.errors import DataError
from evergram.vector_files.base import FINGERPRINT, read_provenance_file
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors

OLD: tuple[list[str], torch.Tensor] = ["a", "b", "c"], torch.tensor([[1.0, 1], [2, 2], [3, 3]])
NEW: tuple[list[str], torch.Tensor] = ["c", "b", "a"], torch.tensor([[30.0, 3], [20, 2], [10, 1]])
NAMES = ["x.npy", "x.safetensors"]


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
        kept += content(path)[2] == "old"
        now = {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.name.startswith(".")}
        assert now in (old, new), f"after call {call}, {calls[-1]}"
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
    path = tmp_path / "x.safetensors"
    for call in range(1, 100):
        write_vectors(path, blocks_of([1, 2, 3], OLD[1], 2))
        with failing_at(call, Killed()) as calls, suppress(Killed):
            write_vectors(path, blocks_of([3, 2, 1], NEW[1], 2))
        assert content(path)[0] in ([1, 2, 3], [3, 2, 1])
        if len(calls) < call:
            break
