"""`lineage.json`: its names, its checksum and its formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.forging import forge

from evergram.errors import FormatError, IntegrityError, LineageError
from evergram.lineage.disk.lineage_record import (
    LineageRecord,
    Withdrawal,
    parse_record,
    read_record,
)
from evergram.lineage.lineage import Lineage


@pytest.mark.parametrize("name", ["my films, 1", "\x1b]0;x"])
def test_a_lineage_with_a_name_that_is_none_is_not_read(lineage: Lineage, name: str) -> None:
    forge(lineage.path / "lineage.json", lambda f: f.update(name=name))
    with pytest.raises(IntegrityError, match="cannot be the name of a lineage"):
        Lineage.open(lineage.path)


@pytest.mark.parametrize("label", ["../x", "a b", "\x1b"])
def test_a_label_that_is_no_name_is_not_read(lineage: Lineage, label: str) -> None:
    forge(lineage.path / "lineage.json", lambda f: f["labels"].update({label: 0}))
    with pytest.raises(IntegrityError, match="cannot be a label"):
        Lineage.open(lineage.path)


def record(**fields: Any) -> LineageRecord:
    return LineageRecord.model_validate(
        {"format_version": 1, "name": "shop", "versions": [0, 1], **fields}
    )


def test_a_record_is_read_as_it_was_written() -> None:
    gone = Withdrawal(fingerprint="sha256:a", reason="a fault", when="2024-05-01")
    written = record(labels={"stable": 1}, withdrawn={2: gone}, retired=[0], salt="x")
    text = written.to_json()
    read = parse_record(text, "shop")
    assert read == written.model_copy(update={"check": json.loads(text)["check"]})
    assert read.next_version == 3


def test_a_field_that_was_changed_contradicts_the_checksum() -> None:
    facts = json.loads(record(labels={"stable": 1}).to_json())
    facts["labels"]["stable"] = 0
    with pytest.raises(IntegrityError, match=r"shop/lineage\.json is damaged: its checksum is not"):
        parse_record(json.dumps(facts), "shop")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (None, LineageError, r"^shop is not a lineage \(it has no lineage\.json\)"),
        ("{", IntegrityError, "is damaged"),
        ("[]", IntegrityError, "is damaged"),
        ('{"format_version": 9, "name": 1}', FormatError, "has format_version 9; .*reads 1,"),
        ('{"format_version": 1, "name": "a", "versions": []}', IntegrityError, "has no checksum"),
    ],
)
def test_another_text_says_what_is_wrong(
    text: str | None, kind: type[LineageError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        parse_record(text, "shop")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "lineage.json").mkdir()
    with pytest.raises(LineageError, match=r"lineage\.json cannot be read: Is a directory"):
        read_record(tmp_path / "lineage.json")
