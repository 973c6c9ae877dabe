"""A file that is something else than its name says is named as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergram.errors import DataError
from evergram.file_content import refuse_other_content, unreadable


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PAR1 and more", "is a Parquet file, in spite of its name; let its name end in .parquet"),
        (b"\xff\xfea\0", "is text in UTF-16, in spite of its name; save it as UTF-8"),
        (b"  <!DOCTYPE html>", "is a web page, in spite of its name; download the file itself"),
        (b"a,b\n1,\0\n", "has NUL bytes, so it is no text in UTF-8"),
    ],
)
def test_a_file_is_named_as_what_it_is(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        refuse_other_content(path)


def test_text_and_a_file_of_its_own_kind_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    refuse_other_content(path)
    path.write_bytes("query,candidate\n1,é\n".encode())
    refuse_other_content(path)
    path.write_bytes(b"PAR1\0")
    refuse_other_content(path, b"PAR1")


def test_an_unreadable_file_is_named_by_its_content_or_by_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    path.write_bytes(b"%PDF-1.7")
    assert "is a PDF" in str(unreadable(path, ValueError("no"), b"PAR1"))
    path.write_bytes(b"PAR1")
    assert "cannot be read: no; if it is damaged" in str(
        unreadable(path, ValueError("no"), b"PAR1")
    )
    refused = PermissionError(13, "Permission denied")
    assert "Permission denied; let this user read it" in str(unreadable(path, refused, b"PAR1"))
    long = OSError(36, "File name too long", str(path))
    assert "cannot be read: File name too long; if" in str(unreadable(path, long, b"PAR1"))
    pickled = ValueError("Object arrays cannot be loaded when allow_pickle=False")
    assert "never unpickled" in str(unreadable(path, pickled, b"\x93NUMPY", b"PAR1"))
