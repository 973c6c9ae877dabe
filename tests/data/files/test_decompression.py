"""Compressed files that expand without end are refused; genuine ones are not."""

from __future__ import annotations

import bz2
import gzip
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evergram.data.amazon import load_amazon
from evergram.data.files import decompression
from evergram.data.files.csv_file import read_csv
from evergram.data.files.decompression import HARMLESS, TIMES, GzipReader, most_bytes
from evergram.data.files.json_lines import blocks
from evergram.data.movielens import load_movielens
from evergram.data.tables import load_table
from evergram.data.wikipedia.sql_dump import SqlTable
from evergram.data.wikispeedia import load_wikispeedia
from evergram.errors import DataError

# Rows alike, which gzip makes a hundredth or less of: past both limits, where little is harmless.
SIZE, LITTLE = 4 << 20, 1 << 20


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests need not expand files of 64 MiB each."""
    monkeypatch.setattr(decompression, "HARMLESS", LITTLE)


def bomb(row: str = "1,1,1,1\n", header: str = "userId,movieId,rating,timestamp\n") -> bytes:
    return (header + row * (SIZE // len(row))).encode()


def in_gzip(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    assert max(LITTLE, path.stat().st_size * TIMES) < len(content)
    return path


def in_zip(path: Path, name: str, content: bytes, how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr(name, content)
    return path


def table(folder: Path) -> Any:
    path = in_gzip(folder / "pairs.csv.gz", bomb(header="query,candidate,value,time\n"))
    return load_table(path)


def movielens(folder: Path) -> Any:
    return load_movielens(in_zip(folder / "ml.zip", "ratings.csv", bomb()))


def movielens_bzip2(folder: Path) -> Any:
    return load_movielens(in_zip(folder / "ml.zip", "ratings.csv", bomb(), zipfile.ZIP_BZIP2))


def movielens_lzma(folder: Path) -> Any:
    return load_movielens(in_zip(folder / "ml.zip", "ratings.csv", bomb(), zipfile.ZIP_LZMA))


def movielens_member(folder: Path) -> Any:
    in_zip(folder / "ratings.csv.zip", "ratings.csv", bomb())
    return load_movielens(folder)


def amazon(folder: Path) -> Any:
    review = '{"reviewerID": "a", "asin": "b", "overall": 5.0, "unixReviewTime": 1}\n'
    return load_amazon(in_gzip(folder / "reviews.json.gz", bomb(review, "")))


def beauty(folder: Path) -> Any:
    in_gzip(folder / "events.tsv.gz", bomb("u\ti\t1\n", "user\titem\tunix_time\n"))
    return load_amazon(folder)


def wikispeedia(folder: Path) -> Any:
    in_gzip(folder / "articles.tsv.gz", bomb("Alone\n", ""))
    return load_wikispeedia(folder)


def mediawiki(folder: Path) -> Any:
    row = "INSERT INTO `page` VALUES (1,0,'A',0);\n"
    path = in_gzip(folder / "x-page.sql.gz", bomb(row, "CREATE TABLE `page` (`page_id` int);\n"))
    return list(SqlTable(path, "page").batches({"page_id": pa.int64()}))


LOADERS: list[Callable[[Path], Any]] = [
    table,
    movielens,
    movielens_bzip2,
    movielens_lzma,
    movielens_member,
    amazon,
    beauty,
    wikispeedia,
    mediawiki,
]


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("load", LOADERS, ids=lambda load: load.__name__)
def test_a_file_that_expands_too_far_is_refused(
    tmp_path: Path, load: Callable[[Path], Any]
) -> None:
    with pytest.raises(DataError, match=r"expands to more than \d MiB, over 100 times its size"):
        load(tmp_path)


@pytest.mark.long
def test_a_file_that_expands_too_far_is_not_held_in_memory_first(tmp_path: Path) -> None:
    """Of a gigabyte no more is read than the limit."""
    path = tmp_path / "pairs.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="expands to more than"), GzipReader(path) as reader:
        reader.read()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 600 * 1024, "KiB"


@pytest.mark.usefixtures("little")
def test_the_limit_can_be_raised_and_a_wrong_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_gzip(tmp_path / "rows.csv.gz", bomb("1,1,1,1\n", "query,candidate,value,time\n"))
    monkeypatch.setenv("EVERGRAM_MAX_EXPANSION", "2000")
    assert len(read_csv(path, str(path))) == SIZE // 8
    for wrong in ("much", "0", "-5", "nan", "inf"):
        monkeypatch.setenv("EVERGRAM_MAX_EXPANSION", wrong)
        with pytest.raises(DataError, match=f"EVERGRAM_MAX_EXPANSION is '{wrong}'"):
            read_csv(path, str(path))


def test_a_file_with_a_small_expanded_size_is_read_however_well_compressed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes(HARMLESS)))
    with GzipReader(path) as reader:
        assert len(reader.read()) == HARMLESS
    with GzipReader(path) as reader:
        assert sum(map(len, iter(lambda: reader.read1(1 << 20), b""))) == HARMLESS
    assert most_bytes(10 << 20) == 1000 << 20


def test_a_member_whose_compression_is_damaged_is_refused(tmp_path: Path) -> None:
    for how in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED):
        rows = "".join(f"{i},{i * 7},3,9\n" for i in range(2000))
        path = in_zip(tmp_path / "ml.zip", "ratings.csv", rows.encode(), how)
        content = bytearray(path.read_bytes())
        content[60:90] = bytes(30)
        path.write_bytes(content)
        with pytest.raises(DataError, match="not a readable zip"):
            load_movielens(path)


def test_genuine_files_are_far_from_the_limit(real_data: Path) -> None:
    """All that is compressed there, of every kind."""
    ratios = {}
    for path in sorted(real_data.rglob("*")):
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                size = len(file.read())
            ratios[path.name] = size / path.stat().st_size
        elif path.suffix == ".bz2":
            ratios[path.name] = len(bz2.decompress(path.read_bytes())) / path.stat().st_size
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            size = sum(member.file_size for member in members)
            ratios[path.name] = size / path.stat().st_size
    assert len(ratios) > 10
    assert max(ratios.values()) < TIMES / 5, ratios
    for path in real_data.rglob("*.json.gz"):
        assert sum(len(block) for _, block in blocks(path))
