"""Files at an fsspec address: written whole, read back, and every driver's error a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.artefacts import artefact
from tests.support.buckets import PLACE, bucket_files
from tests.support.publishing import publish_next

from evergram.errors import LineageError
from evergram.lineage.lineage import Lineage
from evergram.lineage.remote.storage import RemoteStorage


def test_a_record_that_arrived_counts_though_the_answer_was_lost(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryFileSystem.pipe_file

    def lose(files: Any, path: str, value: bytes, **options: Any) -> None:
        real(files, path, value, **options)
        if path.endswith("lineage.json"):
            raise TimeoutError("no answer")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lose)
    assert publish_next(lineage, artefact(4, 3, seed=2)) == 2
    assert Lineage.open(PLACE).newest == 2


def test_a_storage_that_cannot_be_reached_is_an_error(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with pytest.raises(LineageError, match=f"{PLACE} cannot be read: no route; the lineage is as"):
        Lineage.open(PLACE)
    with pytest.raises(LineageError, match="cannot be written: no route"):
        publish_next(lineage, artefact(4, 3))
    for address, message in (("nothing://x", "Protocol not known"), ("gs://x/y", "gcsfs")):
        with pytest.raises(LineageError, match=message):
            Lineage.open(address)


def test_files_are_written_read_listed_and_removed(tmp_path: Path) -> None:
    storage = RemoteStorage(PLACE)
    storage.write("versions/0/a.json", b"one")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "b.json").write_bytes(b"two")
    storage.upload(tmp_path / "1", "versions/1")
    names = ["versions/0/a.json", "versions/1/b.json", "versions/2/c.json"]
    assert storage.contents(names) == {names[0]: b"one", names[1]: b"two"}
    assert storage.content("versions/2/c.json") is None
    assert storage.folders("versions") == {"0", "1"}
    assert storage.folders("embeddings") == set()
    assert storage.download(names[1], tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"two"
    assert not storage.download(names[2], tmp_path / "none")
    storage.keep_only("versions", ["1"])
    assert storage.contents(names) == {names[1]: b"two"}
    storage.remove("versions/7")


def test_an_upload_removes_the_files_of_a_killed_one(tmp_path: Path) -> None:
    storage = RemoteStorage(PLACE)
    storage.write("versions/1/left.json", b"half")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "whole.json").write_bytes(b"whole")
    storage.upload(tmp_path / "1", "versions/1")
    assert bucket_files() == {"versions/1/whole.json": b"whole"}


def test_an_upload_that_fails_leaves_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("the line is dead.")

    storage = RemoteStorage(PLACE)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "whole.json").write_bytes(b"whole")
    storage.upload(tmp_path / "1", "probes/one/1")
    monkeypatch.setattr(MemoryFileSystem, "put_file", refuse)
    storage.upload(tmp_path / "1", "probes/one/1")  # what is there is what was to be written
    (tmp_path / "1" / "whole.json").write_bytes(b"another")
    with pytest.raises(LineageError, match="the line is dead"):
        storage.upload(tmp_path / "1", "probes/one/1")
    assert bucket_files() == {"probes/one/1/whole.json": b"whole"}


def test_a_lost_connection_says_that_the_upload_may_have_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("the line is dead.")

    storage = RemoteStorage(PLACE)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", refuse)
        with pytest.raises(LineageError, match="cannot be written: the line is dead; the lineage"):
            storage.replace("lineage.json", b"new", None)
        real = MemoryFileSystem.cat_file
        answers = iter([real, refuse])
        patch.setattr(MemoryFileSystem, "cat_file", lambda *a, **o: next(answers)(*a, **o))
        with pytest.raises(LineageError, match=r"\(the line is dead\), and whether it arrived is"):
            storage.replace("lineage.json", b"new", None)


def test_an_error_without_words_is_named() -> None:
    with (
        pytest.raises(LineageError, match="cannot be read: TimeoutError; the lineage is as it was"),
        RemoteStorage(PLACE).driver_errors("read"),
    ):
        raise TimeoutError
