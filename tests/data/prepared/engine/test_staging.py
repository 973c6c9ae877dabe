"""All sources become one table, in their order, of the narrowest types that hold them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evergram.data.prepared.engine import staging
from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.staging import Staged, stage
from evergram.data.reading import table_stream
from evergram.data.reading.interaction_source import Interactions, sources_of_files
from evergram.data.reading.source_files import source_files
from evergram.errors import DataError


class Bench:
    """Stages files of a folder."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder, self.database = folder, database
        self.lines: list[str] = []

    def __call__(self, *texts: str, minimum: float | None = None, shared: bool = False) -> Staged:
        for number, text in enumerate(texts):
            (self.folder / f"{number}.csv").write_text(text)
        files = source_files(self.folder)
        them = Interactions(sources_of_files(files, {}), shared_ids=shared)
        return stage(self.database, them, minimum, self.lines.append)

    def rows(self) -> list[tuple[object, ...]]:
        return self.database.rows("SELECT * FROM interactions ORDER BY rowid")


@pytest.fixture
def bench(tmp_path: Path, database: Database) -> Bench:
    (tmp_path / "files").mkdir()
    return Bench(tmp_path / "files", database)


def test_ids_of_texts_are_integers_if_all_are(bench: Bench) -> None:
    staged = bench("query,candidate\n5,a\n6,b\n", "query,candidate\n7,c\n")
    assert staged.columns == {"query": pa.int64(), "candidate": pa.string()}
    assert bench.rows() == [(5, "a"), (6, "b"), (7, "c")]


def test_a_late_text_makes_all_ids_texts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_stream, "ROWS", 2)
    pq.write_table(pa.table({"query": [1], "candidate": [2]}), bench.folder / "0.parquet")
    text = "query,candidate\n5,1\n6,2\n7,3\n007,4\n"
    staged = bench(text)
    assert staged.columns == {"query": pa.string(), "candidate": pa.int64()}
    assert staged.rows == 5
    assert {row[0] for row in bench.rows()} == {"1", "5", "6", "7", "007"}


def test_shared_ids_are_of_one_type(bench: Bench) -> None:
    assert bench("query,candidate\n5,a\n6,5\n", shared=True).columns["query"] == pa.string()
    assert bench.rows() == [("5", "a"), ("6", "5")]


def test_times_with_decimals_make_all_decimals(bench: Bench) -> None:
    staged = bench("query,candidate,time\n1,1,3\n", "query,candidate,time\n1,1,3.5\n")
    assert staged.columns["time"] == pa.float64()
    assert staged.in_order
    assert not bench("query,candidate,time\n1,1,3\n", "query,candidate,time\n1,1,2\n").in_order


def test_small_values_are_left_out_as_they_are_stored(bench: Bench) -> None:
    staged = bench("query,candidate,value\n1,1,0.7\n2,2,0.699\n3,3,9\n", minimum=0.7)
    assert (staged.rows, staged.small) == (3, 1)
    assert [row[0] for row in bench.rows()] == [1, 3]
    with pytest.raises(DataError, match="at least 10"):
        bench(minimum=10)
    with pytest.raises(DataError, match=r"no values; name their column by --column value=NAME"):
        bench("query,candidate\n1,1\n", minimum=1)


def test_no_rows_are_refused(bench: Bench) -> None:
    with pytest.raises(DataError, match="has no rows"):
        bench("query,candidate\n")


def test_weights_that_are_all_0_are_refused(bench: Bench) -> None:
    with pytest.raises(DataError, match="the weight of every row is 0"):
        bench("query,candidate,weight\n1,1,0\n2,2,0\n")
    assert bench("query,candidate,weight\n1,1,0\n2,2,0.5\n").rows == 2


def test_progress_says_how_many_rows_are_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "EVERY", 0.0)
    bench("query,candidate\n1,2\n3,4\n")
    assert bench.lines[0].startswith("read 2 rows, ")
