"""Of several publishers to one storage, one holds the lock."""

from __future__ import annotations

import json
import re
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.artefacts import artefact
from tests.support.buckets import PLACE, bucket_files
from tests.support.publishing import publish_next

from evergram.errors import LineageError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.lineage.remote.lock import describe_process, remote_lock, this_process


@pytest.mark.parametrize("error", [FileExistsError(), OSError(22, "precondition failed")])
def test_the_lock_of_another_is_never_taken(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """Not where it is there, not where it comes in between, whatever a driver calls that."""
    place = "/bucket/shop/publishing.lock"
    other = json.dumps({"owner": "eve", "host": "h", "process": 1, "since": "now"}).encode()
    real = MemoryFileSystem.pipe_file

    def between(files: Any, path: str, value: bytes, **options: Any) -> None:
        if path == place:
            real(files, place, other)
            raise error
        real(files, path, value, **options)

    message = r"publishing to memory://bucket/shop: eve on h \(process 1\) since now\. Wait"
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", between)
        with pytest.raises(LineageError, match=message):
            publish_next(lineage, artefact(4, 3))
    assert bucket_files()["publishing.lock"] == other
    with pytest.raises(LineageError, match=message):
        ConsumerRegistry.open(PLACE).add("a", "v0", lineage.resolve)
    assert bucket_files()["publishing.lock"] == other
    fsspec.filesystem("memory").rm(place)
    assert publish_next(lineage, artefact(4, 3)) == 2


def test_a_lock_that_cannot_be_removed_is_a_warning(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryFileSystem.rm_file

    def refuse(files: Any, path: str) -> None:
        if path.endswith("publishing.lock"):
            raise PermissionError("no deleting here")
        real(files, path)

    monkeypatch.setattr(MemoryFileSystem, "rm_file", refuse)
    with pytest.warns(RuntimeWarning, match="publishing.lock could not be removed"):
        assert publish_next(lineage, artefact(4, 3)) == 2
    assert Lineage.open(PLACE).newest == 2


def test_the_lock_is_held_once_and_removed_at_the_end() -> None:
    files = fsspec.filesystem("memory")
    with remote_lock(files, "/bucket/shop", PLACE):
        holder = bucket_files()["publishing.lock"]
        with (
            pytest.raises(LineageError, match=rf"{re.escape(describe_process(holder))}\. Wait"),
            remote_lock(files, "/bucket/shop", PLACE),
        ):
            pass
        # The one that was refused leaves the lock where it is.
        assert bucket_files()["publishing.lock"] == holder
    assert bucket_files() == {}


def test_a_holder_that_cannot_be_read_is_said_to_be_unknown() -> None:
    assert describe_process(json.dumps(this_process()).encode()).endswith(
        str(this_process()["since"])
    )
    for content in (None, b"", b"[]", b"{}", b"\xff"):
        assert describe_process(content) == "by whom cannot be read"


def test_a_lock_that_cannot_be_read_back_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was left behind, and refused every later publisher."""
    files, reads = fsspec.filesystem("memory"), []
    real = MemoryFileSystem.cat_file

    def dropping(files: Any, path: str, **options: Any) -> Any:
        reads.append(path)
        if len(reads) in (2, 3):
            raise OSError("connection reset")
        return real(files, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", dropping)
    with (
        pytest.raises(OSError, match="connection reset"),
        remote_lock(files, "/bucket/shop", PLACE),
    ):
        raise AssertionError("it is not known to be held")
    assert "publishing.lock" not in bucket_files()
    with remote_lock(files, "/bucket/shop", PLACE):
        pass
