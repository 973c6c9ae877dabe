"""`store.json`: whole, of a known format, and naming only files of its own."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.snapshot_rows import rows

from evergram.errors import FormatError, IntegrityError
from evergram.stores.rows import Space
from evergram.stores.snapshot import snapshot_record
from evergram.stores.snapshot.snapshot_record import (
    FileRecord,
    HashedFile,
    IndexRecord,
    OpenRecord,
    SegmentRecord,
    SnapshotRecord,
    write_record,
)
from evergram.stores.snapshot.snapshot_store import SnapshotStore


def test_a_later_format_is_refused(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_record, "FORMAT_VERSION", 9)
    store.upsert(rows(0, 1))
    monkeypatch.undo()
    with pytest.raises(FormatError, match="format_version 9; this Evergram reads 1;"):
        SnapshotStore.open(str(tmp_path / "store"))


RECORD = SnapshotRecord(
    "int64",
    3,
    8,
    (Space(0, 4, "sha256:0"),),
    (
        SegmentRecord(
            7,
            0,
            100,
            FileRecord("7.arrow", "a"),
            FileRecord("7.lookup", "b"),
            IndexRecord("7.faiss", "c", 10, 2, 0.97, 50, "int8", 4),
        ),
        SegmentRecord(6, None, 2, FileRecord("6.arrow", "d")),
    ),
    "candidate",
)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "store.json", RECORD)
    assert OpenRecord(tmp_path / "store.json").record == RECORD
    assert RECORD.segments[0].files == ["7.arrow", "7.lookup", "7.faiss"]
    assert list(tmp_path.iterdir()) == [tmp_path / "store.json"]


def test_another_record_in_its_place_is_noticed_though_it_has_the_same_bytes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.json"
    write_record(path, RECORD)
    opened = OpenRecord(path)
    assert opened.is_current()
    write_record(path, RECORD)
    assert not opened.is_current()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"store": {}, "sha256": "x"}', '{"sha256": "x", "store": []}']
)
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"store\.json is damaged \(its checksum differs\)"):
        OpenRecord(tmp_path / "store.json")


@pytest.mark.parametrize("name", ["../x", "/etc/x", "", ".", "a/b"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    segment = replace(RECORD.segments[1], data=FileRecord(name, "d"))
    write_record(tmp_path / "store.json", replace(RECORD, segments=(segment,)))
    with pytest.raises(IntegrityError, match="which is outside of the store's folder"):
        OpenRecord(tmp_path / "store.json")


def test_a_file_is_there_only_when_it_is_finished(tmp_path: Path) -> None:
    file = HashedFile(tmp_path / "a")
    assert file.write(b"one") == 3
    file.write(memoryview(b"two"))
    assert (file.tell(), (tmp_path / "a").exists()) == (6, False)
    assert file.finish() == hashlib.sha256(b"onetwo").hexdigest()
    assert (tmp_path / "a").read_bytes() == b"onetwo"
    abandoned = HashedFile(tmp_path / "b")
    abandoned.write(b"x")
    abandoned.abandon()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
