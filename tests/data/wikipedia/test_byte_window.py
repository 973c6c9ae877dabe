"""A window over a file passes every byte once, in chunks of any size."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from evergram.data.wikipedia.byte_window import Window
from evergram.errors import DataError

TEXT = b"".join(b"%d," % i for i in range(300))


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", ["x.sql", "x.sql.gz"])
def test_the_window_passes_the_whole_text_between_two_newlines(
    tmp_path: Path, name: str, chunk: int
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(TEXT) if name.endswith(".gz") else TEXT)
    passed = b""
    with Window(path, chunk) as window:
        assert window.offset == -1
        while not window.ended:
            keep = min(3, len(window.bytes))  # what is kept is still there afterwards
            passed += window.bytes[:keep]
            rest = window.bytes[keep:]
            window.read_on(keep)
            assert window.bytes.startswith(rest)
            assert window.offset == len(passed) - 1
        passed += window.bytes
    assert passed == b"\n" + TEXT + b"\n"


def test_files_that_are_missing_or_cut_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.sql cannot be opened: No such file"):
        Window(tmp_path / "x.sql", 10)
    path = tmp_path / "x.sql.gz"
    path.write_bytes(gzip.compress(TEXT)[:-9])
    with Window(path, 1 << 20) as window, pytest.raises(DataError, match=r"cut or damaged .*fetch"):
        window.read_on(1)
