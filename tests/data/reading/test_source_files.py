"""Files, folders, globs and addresses name files, in order of their names."""

from __future__ import annotations

import gzip
from pathlib import Path

import fsspec
import pytest

from evergram.data.reading.source_files import SourceFile, source_files
from evergram.errors import DataError


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def names(*sources: str | Path) -> list[str]:
    return [Path(file.path).name for file in source_files(sources)]


def test_a_folder_names_its_tables_alone(tmp_path: Path) -> None:
    fill(tmp_path, "b.parquet", "a.CSV.gz", "_SUCCESS", ".c.csv", "_delta/x.csv", "d/e.tsv", "f.py")
    assert names(tmp_path) == ["a.CSV.gz", "b.parquet", "e.tsv"]


def test_globs_and_files_keep_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    fill(tmp_path, "a1.csv", "a2.csv", "b.csv", "d/a3.csv", "[x].csv")
    assert names(tmp_path / "b.csv", f"{tmp_path}/a*.csv") == ["b.csv", "a1.csv", "a2.csv"]
    assert names(f"{tmp_path}/**/a*.csv") == ["a1.csv", "a2.csv", "a3.csv"]
    assert names(tmp_path / "[x].csv") == ["[x].csv"]


def test_addresses_are_read_by_fsspec(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe({"/shop/1.csv": b"one", "/shop/2.csv": b"two", "/shop/readme": b""})
    files = source_files(["memory://shop", "memory://shop/*2.csv", "memory://shop/1.csv"])
    assert [file.open().read() for file in files] == [b"one", b"two", b"two", b"one"]
    assert [file.size() for file in files] == [3, 3, 3, 3]
    assert files[-1].name == "memory://shop/1.csv"
    with pytest.raises(DataError, match="no file memory://shop/9"):
        source_files(["memory://shop/9.csv"])
    with pytest.raises(DataError, match="cannot be opened"):
        source_files(["nowhere://shop/9.csv"])


def test_the_suffix_says_how_a_file_is_read() -> None:
    text = SourceFile("A.TSV.GZ", "A.TSV.GZ")
    assert (text.is_text, text.is_gzip, text.is_parquet, text.delimiter) == (
        True,
        True,
        False,
        "\t",
    )
    table = SourceFile("a.pq", "a.pq")
    assert (table.is_text, table.is_gzip, table.is_parquet) == (False, False, True)
    assert SourceFile("tsv.csv", "x.tsv/b.csv").delimiter == ","


def test_a_source_without_tables_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "d/readme.txt")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b""))
    for source, why in [
        ("none.csv", "There is no file"),
        ("*.parquet", "No file matches"),
        ("d", "no file of a known format"),
        ("d/readme.txt", "of no known format"),
    ]:
        with pytest.raises(DataError, match=why):
            source_files([f"{tmp_path}/{source}"])
    with pytest.raises(DataError, match="No source"):
        source_files([])
