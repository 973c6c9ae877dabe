"""`prepared.json` is read back as it was written, and a wrong one is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evergram.data.prepared.column_file import sha256_of
from evergram.data.prepared.prepared_record import NAME, PreparedRecord
from evergram.data.prepared.writing.prepare import prepare
from evergram.errors import DataError, FormatError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare(pa.table({"query": [1, 2], "candidate": ["a", "b"]}), tmp_path / "out")
    return tmp_path / "out"


def written(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda _: None) -> Path:
    """Write a record of five interactions in two parts, changed."""
    side = {"entities": 2, "ids": "string", "features": ["brand"]}
    after = {"query": 2, "candidate": 2}
    values: dict[str, Any] = {
        "format_version": 1,
        "name": "shop",
        "shared_ids": False,
        "interactions": 5,
        "sides": {"query": side, "candidate": dict(side)},
        "columns": {"query": "int32", "candidate": "int32", "time": "int64"},
        "parts": [
            {"folder": "parts/00000", "interactions": 2, "entities": after, "sources": ["a.csv"]},
            {"folder": "parts/00001", "interactions": 3, "entities": after, "sources": ["b.csv"]},
        ],
        "fingerprint": "0123456789abcdef",
    }
    change(values)
    (folder / NAME).write_text(json.dumps(values))
    return folder


def test_a_record_is_read_back(folder: Path) -> None:
    record = PreparedRecord.load(folder)
    assert record.to_json() == (folder / NAME).read_text().rstrip("\n")
    sha256 = {n: sha256_of(folder / "parts/00000" / f"{n}.npy") for n in ("query", "candidate")}
    assert record.parts[0].sha256 == sha256
    assert record.entity_files == {
        name: sha256_of(folder / name) for name in ("query.arrow", "candidate.arrow")
    }
    assert (record.sides["query"].ids, record.sides["candidate"].ids) == ("int64", "string")


def test_keys_of_later_writers_are_ignored(tmp_path: Path) -> None:
    def add(values: dict[str, Any]) -> None:
        values["new"] = values["parts"][0]["new"] = values["sides"]["query"]["new"] = 1

    record = PreparedRecord.load(written(tmp_path, add))
    assert [part.interactions for part in record.parts] == [2, 3]
    assert record.sides["query"].features == ["brand"]
    assert not hasattr(record, "new")


def test_a_record_of_before_there_were_digests_is_read(tmp_path: Path) -> None:
    record = PreparedRecord.load(written(tmp_path))
    assert record.parts[0].sha256 == record.entity_files == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(format_version="1"), "format_version is '1'; it must be 1"),
        (lambda v: v.update(format_version=0), "format_version is 0; it must be 1"),
        (lambda v: v.pop("format_version"), "the key format_version is missing"),
        (lambda v: v.pop("fingerprint"), "the key fingerprint is missing"),
        (lambda v: v.update(fingerprint="../../../tmp"), r"fingerprint is '\.\./.*of the form"),
        (lambda v: v.update(interactions=6), "contradicts itself: 6 interactions, 5 in its parts"),
        (lambda v: v.update(interactions=-1), "interactions is -1; it must be at least 1"),
        (lambda v: v.update(interactions="many"), "interactions is 'many'; it must be a whole"),
        (lambda v: v.update(parts=[]), "5 interactions, 0 in its parts"),
        (lambda v: v["parts"][1].update(interactions=0), r"parts\[1\]\.interactions is 0; .* 1"),
        *(
            (
                lambda v, folder=folder: v["parts"][1].update(folder=folder),
                r"parts\[1\]\.folder is .*; it must name a folder inside of the prepared one",
            )
            for folder in (
                "",
                "/tmp",
                "..",
                "../x",
                "parts/../../x",
                "parts//1",
                "./x",
                "a\\b",
                "C:",
            )
        ),
        (lambda v: v["parts"][0].pop("entities"), r"the key parts\[0\]\.entities is missing"),
        (lambda v: v["columns"].pop("query"), "the columns candidate, time, and query and"),
        (lambda v: v["columns"].update(query="int16"), "columns.query is 'int16'; .* 'int32', "),
        (lambda v: v["sides"].pop("query"), "contradicts itself: it has the sides candidate and"),
        (lambda v: v["sides"].update(object=v["sides"]["query"]), "the key sides.object is unkn"),
        (lambda v: v["sides"]["query"].update(ids="float"), "sides.query.ids is 'float'; .*int64"),
        (lambda v: v["sides"]["query"].update(entities=0), "sides.query.entities is 0; .* least 1"),
    ],
)
def test_what_cannot_be_used_is_named(
    change: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        PreparedRecord.load(written(tmp_path, change))
    assert str(caught.value).startswith(f"{tmp_path / NAME} is damaged: ")
    assert str(caught.value).endswith("; prepare the corpus again.")


def test_a_later_format_is_named_whatever_else_it_says(tmp_path: Path) -> None:
    written(tmp_path, lambda v: v.update(format_version=2, parts={"other": "things"}))
    with pytest.raises(FormatError, match=r"format_version 2, .* up to 1; install a later one"):
        PreparedRecord.load(tmp_path)


def test_a_folder_without_a_record_is_not_prepared(tmp_path: Path) -> None:
    message = r"no prepared corpus, as it has no prepared\.json.*evergram prepare SOURCE"
    with pytest.raises(DataError, match=message):
        PreparedRecord.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=message):
        PreparedRecord.load(tmp_path / "file")
    (tmp_path / NAME).mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory; make it readable"):
        PreparedRecord.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1", r"damaged: it is no JSON \(Expecting"),
        (b'{"name": "\xff"}', r"damaged: it is no JSON \('utf-8' codec"),
        (b"[" * 100_000, "damaged: it is no JSON"),
        (b"[1]", r"damaged: it is \[1\]; it must be a table of names and values"),
    ],
)
def test_what_is_no_record_is_damaged(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(DataError, match=message):
        PreparedRecord.load(tmp_path)


def test_half_a_record_is_damaged(folder: Path) -> None:
    (folder / NAME).write_text((folder / NAME).read_text()[:50])
    with pytest.raises(DataError, match="damaged: it is no JSON"):
        PreparedRecord.load(folder)
