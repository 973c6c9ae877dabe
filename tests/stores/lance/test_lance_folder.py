"""The record and the write lock of a LanceDB store, and its driver's errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

from evergram.errors import DataError, FormatError, StoreError
from evergram.stores.lance import lance_folder
from evergram.stores.lance.lance_folder import (
    LanceRecord,
    errors_as_store_errors,
    read_record,
    record_file,
    write_lock,
    write_record,
)
from evergram.stores.rows import Space


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    spaces = {n: Space(n, 4, f"sha256:{n}") for n in (3, 1)}
    record = LanceRecord("string", spaces, "query")
    write_record(tmp_path, "emb", record)
    read = read_record(tmp_path, "emb", "lance:x#emb")
    assert read == record
    assert list(read.spaces) == [1, 3]


def test_a_record_of_a_later_format_is_refused(tmp_path: Path) -> None:
    write_record(tmp_path, "emb", LanceRecord("int64"))
    facts = json.loads(record_file(tmp_path, "emb").read_text())
    record_file(tmp_path, "emb").write_text(json.dumps({**facts, "format_version": 3}))
    with pytest.raises(FormatError, match="lance:x#emb has format 3; this Evergram reads 1"):
        read_record(tmp_path, "emb", "lance:x#emb")


def test_one_process_writes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_folder, "WAIT", 0.01)
    with (
        FileLock(tmp_path / "emb.lock"),
        pytest.raises(StoreError, match="Another process has been writing lance:x#emb for 0 s"),
        write_lock(tmp_path, "emb", "lance:x#emb"),
    ):
        pass
    with (
        pytest.raises(StoreError, match="lance:x#emb cannot be written: No such file"),
        write_lock(tmp_path, "emb", "lance:x#emb"),
    ):
        raise FileNotFoundError(2, "No such file")


class PanicException(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("lost\n  a  file"), PanicException("lost a file")])
def test_an_error_or_panic_of_lancedb_is_one_of_the_store(error: BaseException) -> None:
    with (
        pytest.raises(StoreError, match="lance:x cannot be read or written: lost a file"),
        errors_as_store_errors("lance:x"),
    ):
        raise error


@pytest.mark.parametrize("error", [DataError("mine"), KeyboardInterrupt(), GeneratorExit()])
def test_other_errors_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, errors_as_store_errors("lance:x"):
        raise error
    assert caught.value is error
