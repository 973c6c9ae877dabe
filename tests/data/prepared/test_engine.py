"""The engine that prepares data: rows in order, staging, filters and features."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.prepared_folders import assert_is_corpus

from evergram.data.corpus import Corpus
from evergram.data.prepared.engine import staging
from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.filters import drop_repeats, keep_core, sort_by_time
from evergram.data.prepared.engine.staging import Staged, stage
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.reading import table_stream
from evergram.data.reading.interaction_source import Interactions, sources_of_files
from evergram.data.reading.source_files import source_files
from evergram.data.tables import load_table
from evergram.errors import DataError


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    folder = tmp_path / "engine"
    folder.mkdir()
    with Database(folder, 256 << 20, 1) as opened:
        yield opened


SCHEMA = pa.schema([("x", pa.int64())])


def numbers(batches: int, size: int = 1 << 16) -> Iterator[pa.RecordBatch]:
    for batch in range(batches):
        values = np.arange(batch * size, (batch + 1) * size)[::-1].copy()
        yield pa.record_batch([pa.array(values)], schema=SCHEMA)


def test_rows_keep_the_order_in_which_they_come(tmp_path: Path) -> None:
    with Database(tmp_path, 256 << 20, 4) as database:
        database.create("t", SCHEMA, numbers(16))
        batches = list(database.batches("SELECT x, rowid AS row FROM t"))
        order = np.concatenate([b["row"].to_numpy() for b in batches])
        values = np.concatenate([b["x"].to_numpy() for b in batches])
        expected = np.concatenate([b["x"].to_numpy() for b in numbers(16)])
        assert np.array_equal(values[np.argsort(order)], expected)
        database.run("CREATE TABLE s AS SELECT x FROM t ORDER BY x")
        wrong = "SELECT count(*) FROM s WHERE x <> rowid"
        assert database.number(wrong) == 0
        assert database.number("SELECT max(x) FROM s WHERE x < 0") == 0


def test_an_error_of_the_batches_is_raised_as_it_is(database: Database) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from numbers(2)
        raise DataError("row 7 is wrong.")

    with pytest.raises(DataError, match=r"^row 7 is wrong\.$"):
        database.create("t", SCHEMA, broken())


def test_more_than_memory_goes_to_disk(tmp_path: Path) -> None:
    with Database(tmp_path, 48 << 20, 1) as database:
        database.create("t", SCHEMA, numbers(48))
        database.run("CREATE TABLE s AS SELECT x, x AS a, x AS b FROM t ORDER BY hash(x)")
        assert database.number("SELECT count(DISTINCT x) FROM s") == 48 << 16


def test_too_little_memory_is_a_sentence(tmp_path: Path) -> None:
    with Database(tmp_path, 16 << 20, 1) as database:
        database.create("t", SCHEMA, numbers(32))
        with pytest.raises(DataError, match=r"16 MiB of memory.*--memory"):
            database.rows("SELECT length(string_agg(x || repeat('x', 90), '')) FROM t")


def test_without_duckdb_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(DataError, match=r"evergram\[prepare\]"):
        Database(tmp_path, 256 << 20, 1)


def test_data_that_the_engine_cannot_use_is_a_sentence(database: Database) -> None:
    offsets, letters = (pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe"))
    batch = pa.record_batch({"x": pa.StringArray.from_buffers(1, offsets, letters)})
    with pytest.raises(DataError, match=r"cannot use the data: .*unicode"):
        database.create("t", batch.schema, [batch])


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


def test_ids_of_texts_are_integers_if_all_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = bench("query,candidate\n5,a\n6,b\n", "query,candidate\n7,c\n")
    assert staged.columns == {"query": pa.int64(), "candidate": pa.string()}
    assert bench.rows() == [(5, "a"), (6, "b"), (7, "c")]
    monkeypatch.setattr(staging, "EVERY", 0.0)
    bench("query,candidate\n1,2\n3,4\n")
    assert bench.lines[0].startswith("read 2 rows, ")


def test_a_late_text_makes_all_ids_texts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_stream, "ROWS", 2)
    pq.write_table(pa.table({"query": [1], "candidate": [2]}), bench.folder / "0.parquet")
    text = "query,candidate\n5,1\n6,2\n7,3\n007,4\n"
    staged = bench(text)
    assert staged.columns == {"query": pa.string(), "candidate": pa.int64()}
    assert staged.rows == 5
    assert {row[0] for row in bench.rows()} == {"1", "5", "6", "7", "007"}


def test_small_values_are_left_out_as_they_are_stored(bench: Bench) -> None:
    staged = bench("query,candidate,value\n1,1,0.7\n2,2,0.699\n3,3,9\n", minimum=0.7)
    assert (staged.rows, staged.small) == (3, 1)
    assert [row[0] for row in bench.rows()] == [1, 3]
    with pytest.raises(DataError, match="at least 10"):
        bench(minimum=10)
    with pytest.raises(DataError, match="no values"):
        bench("query,candidate\n1,1\n", minimum=1)


def test_weights_that_are_all_0_are_refused(bench: Bench) -> None:
    with pytest.raises(DataError, match="weight"):
        bench("query,candidate,weight\n1,1,0\n2,2,0\n")
    assert bench("query,candidate,weight\n1,1,0\n2,2,0.5\n").rows == 2


def load(database: Database, **columns: list[int]) -> None:
    table = pa.table(columns)
    database.create("interactions", table.schema, table.to_batches())
    for side in ("query", "candidate"):
        database.run(f"CREATE TABLE known_{side} (id BIGINT, row BIGINT, count BIGINT)")


def rows(database: Database) -> list[tuple[int, ...]]:
    ordered = database.rows("SELECT rowid, * FROM interactions ORDER BY rowid")
    assert [row[0] for row in ordered] == list(range(len(ordered)))
    return [row[1:] for row in ordered]


def test_ties_keep_their_order(database: Database) -> None:
    rng = np.random.default_rng(0)
    times = rng.integers(0, 5, 400_000)
    numbers = list(range(len(times)))
    load(database, query=numbers, candidate=numbers, time=times.tolist())
    sort_by_time(database)
    order = [row[0] for row in rows(database)]
    assert order == np.argsort(times, kind="stable").tolist()


def test_the_first_of_each_pair_stays(database: Database) -> None:
    load(database, query=[1, 1, 2, 1, 2], candidate=[1, 2, 1, 1, 1], time=[0, 1, 2, 3, 4])
    assert drop_repeats(database) == 2
    assert rows(database) == [(1, 1, 0), (1, 2, 1), (2, 1, 2)]
    assert drop_repeats(database) == 0


def test_a_core_is_a_fixed_point(database: Database) -> None:
    """A path falls apart from its ends, one entity after the other; a square stays."""
    path = [(q, c) for q in range(10, 20) for c in (q, q + 1)]
    square = [(1, 1), (1, 2), (2, 1), (2, 2)]
    pairs = path[:7] + square + path[7:]
    load(database, query=[q for q, _ in pairs], candidate=[c for _, c in pairs])
    assert keep_core(database, 2) == len(path)
    assert rows(database) == square
    with pytest.raises(DataError, match=r"k_core \(--k-core\) 3"):
        keep_core(database, 3)


PAIRS = pa.table({"query": [3, 1, 3], "candidate": ["a", "b", "a"]})
FEATURES = pa.table(
    {
        "id": ["b", "a", "unseen"],
        "Genre": [["x", "y"], [], ["z"]],
        "genre": pa.array([1, None, 3], pa.int16()),
        "new": [True, False, None],
        "maker": pa.array(["m", "n", "m"]).dictionary_encode(),
        "codes": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        'odd "name"; --': ["p", "q", "r"],
    }
)


def test_features_of_any_type_are_those_of_the_corpus(tmp_path: Path) -> None:
    half = [FEATURES.slice(0, 1), FEATURES.slice(1)]
    paths: list[str | Path] = []
    for number, table in enumerate(half):
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(table, paths[-1])
    settings = PrepareSettings(candidate_features=paths)
    prepare(PAIRS, tmp_path / "out", settings)
    assert_is_corpus(tmp_path / "out", Corpus.from_tables(PAIRS, None, FEATURES))


def test_numbers_and_times_of_text_are_those_of_the_corpus_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,sku\n3,a\n1,b\n3,c\n")
    lines = ["sku;price;stock;listed;tags", "a;1.234,5;3;2025-01-01;x|y"]
    lines += ["b;;n/a;2025-02-01;", "c;7;9;;y"]
    (tmp_path / "f.csv").write_text("\n".join(lines))
    columns = {"query": "user", "candidate": "sku"}
    settings = PrepareSettings(columns=columns, candidate_features=tmp_path / "f.csv")
    prepare(tmp_path / "t.csv", tmp_path / "out", settings)
    expected = load_table(
        tmp_path / "t.csv", columns=columns, candidate_features=tmp_path / "f.csv"
    )
    assert_is_corpus(tmp_path / "out", expected)
    features = expected.candidates.features
    assert features["price"].vocabulary.keys.to_pylist() == [7, 1234.5]
    assert features["stock"].vocabulary.keys.to_pylist() == [3, 9]
    assert len(features["listed"].vocabulary) == 2
    prepare(expected, tmp_path / "again")
    assert_is_corpus(tmp_path / "again", expected)
    (tmp_path / "f.csv").write_text("sku;price;stock;listed;tags\nd;cheap;3;2025-01-01;")
    (tmp_path / "t.csv").write_text("user,sku\n3,d\n")
    with pytest.raises(DataError, match=r"'price' is a number.*a category"):
        prepare(tmp_path / "t.csv", tmp_path / "out", settings, append=True)


@pytest.mark.parametrize("sides", ["same", "apart", "clash"])
def test_shared_ids_have_one_table_of_entities(tmp_path: Path, sides: str) -> None:
    pairs = pa.table({"query": [1, 2], "candidate": [2, 3]})
    one = pa.table({"id": [1, 2, 3], "x": ["a", "b", "c"]})
    other = one.rename_columns(["id", "y" if sides == "apart" else "x"])
    pq.write_table(one, tmp_path / "one.parquet")
    pq.write_table(other, tmp_path / "other.parquet")
    second = tmp_path / ("one.parquet" if sides == "same" else "other.parquet")
    settings = PrepareSettings(
        shared_ids=True, query_features=tmp_path / "one.parquet", candidate_features=second
    )
    if sides == "clash":
        with pytest.raises(DataError, match=r"Both tables of features have 'x'"):
            prepare(pairs, tmp_path / "out", settings)
        return
    prepare(pairs, tmp_path / "out", settings)
    expected = Corpus.from_tables(pairs, one, one if sides == "same" else other, shared_ids=True)
    assert_is_corpus(tmp_path / "out", expected)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": ["a"]}, "no column 'id'"),
        ({"id": ["a", "a"], "x": [1, 2]}, "name the id a twice"),
        ({"id": ["a", None], "x": [1, 2]}, "row 2: id is empty"),
        ({"id": ["a"], "x": [[1.5]]}, "lists of floats"),
        ({"id": ["a"], "x": [["p", None]]}, "null inside a list"),
        ({"id": ["a"], "count": [1]}, "rename it"),
        ({"id": ["other"], "x": [1]}, "none of the ids"),
    ],
)
def test_what_is_no_feature_is_refused(
    tmp_path: Path, columns: dict[str, list[object]], why: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    settings = PrepareSettings(candidate_features=[tmp_path / "f.parquet"])
    with pytest.raises(DataError, match=why):
        prepare(PAIRS, tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()


def test_columns_are_checked_before_any_interaction_is_read(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("id,from\na,2025-01-01\nb,2025-01-01T00:00Z\n")
    settings = PrepareSettings(candidate_features=tmp_path / "f.csv")
    lines: list[str] = []
    with pytest.raises(DataError, match="row 1: from is '2025-01-01'"):
        prepare(PAIRS, tmp_path / "out", settings, progress=lines.append)
    assert lines == []


def test_texts_are_no_features_of_integers(tmp_path: Path) -> None:
    pq.write_table(FEATURES, tmp_path / "f.parquet")
    settings = PrepareSettings(query_features=tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"theirs are text, such as 'b'"):
        prepare(PAIRS, tmp_path / "out", settings)
    pq.write_table(FEATURES.select(["id"]), tmp_path / "g.parquet")
    both: list[str | Path] = [tmp_path / "f.parquet", tmp_path / "g.parquet"]
    with pytest.raises(DataError, match="has a column 'Genre' and"):
        prepare(PAIRS, tmp_path / "out", PrepareSettings(candidate_features=both))
