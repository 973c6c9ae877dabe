"""A prepared folder is the corpus of the same sources, row by row, and is never half-written."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.prepared import assert_same

from evergram import atomic_files
from evergram.data import (
    Corpus,
    PrepareSettings,
    load_table,
    prepare,
)
from evergram.data.prepared.mapped_corpus import load_prepared
from evergram.data.prepared.prepare import Database, PreparedRecord, machine_memory
from evergram.errors import DataError

PREPARE = "evergram.data.prepared.prepare"
INTEGERS = st.integers(-3, 5) | st.sampled_from([2**63 - 1, -(2**63)])
TEXTS = st.sampled_from(["a", "b", "B", "é", "NULL", "00017", "17", " ", "x'y"])
IDS = [(pa.int64(), INTEGERS), (pa.string(), TEXTS)]
CLOCKS: dict[str, Any] = {
    "none": None,
    "integer": (pa.int64(), st.integers(0, 4) | st.sampled_from([2**62, -(2**62)])),
    "decimal": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e18, 3.0])),
    "date": (pa.date32(), st.dates()),
}


@st.composite
def interactions(draw: st.DrawFn) -> pa.Table:
    """Draw a small table with repeated pairs and tied times."""
    rows = draw(st.integers(1, 12))

    def cells(kind: pa.DataType, one: st.SearchStrategy[Any]) -> pa.Array:
        return pa.array(draw(st.lists(one, min_size=rows, max_size=rows)), kind)

    columns: dict[str, Any] = {}
    for side in ("query", "candidate"):
        columns[side] = cells(*draw(st.sampled_from(IDS)))
    if draw(st.booleans()):
        columns["candidate"] = columns["candidate"].dictionary_encode()
    if draw(st.booleans()):
        columns["value"] = cells(pa.float64(), st.sampled_from([0.1, 0.7, 3.0, -1.0]))
    if draw(st.booleans()):
        columns["weight"] = cells(pa.float32(), st.sampled_from([0.5, 2.0]))
    if clock := CLOCKS[draw(st.sampled_from(sorted(CLOCKS)))]:
        columns["time"] = cells(*clock)
    return pa.table(columns)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(table=interactions(), pieces=st.integers(1, 3), shared=st.booleans())
def test_a_prepared_corpus_is_the_corpus_in_memory(
    table: pa.Table, pieces: int, shared: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        size, out = -(-table.num_rows // pieces), Path(folder) / "out"
        for number, start in enumerate(range(0, table.num_rows, size)):
            pq.write_table(table.slice(start, size), Path(folder) / f"{number}.parquet")
        summary = prepare(folder, out, PrepareSettings(shared_ids=shared))
        assert_same(Corpus.of(table, shared_ids=shared), load_prepared(out))
        assert summary.rows_read == summary.interactions == table.num_rows


def test_each_step_is_reported_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"query": [1, 1, 2, 2, None], "candidate": [5, 6, 5, 6, 6]}
    table = pa.table(rows | {"time": [3, 1, 2, 4, 5], "value": [9, 9, 9, 0.7, 9]})
    text = pa.BufferOutputStream()
    csv.write_csv(table, text)
    (tmp_path / "events.csv.gz").write_bytes(gzip.compress(text.getvalue().to_pybytes()))
    monkeypatch.setattr(f"{PREPARE}.EVERY", 0.0)
    lines: list[str] = []
    chosen = PrepareSettings(bad_rows="drop")
    summary = prepare(tmp_path / "events.csv.gz", tmp_path / "out", chosen, progress=lines.append)
    assert lines.pop(1).startswith("read 5 rows")
    assert [line.split()[0] for line in lines] == [
        *("reading", "sorting", "numbering", "writing", "writing")
    ]
    assert (summary.rows_read, summary.bad_rows["count"], summary.interactions) == (5, 1, 4)
    assert (summary.first_time, summary.last_time) == (1, 4)
    first, second, bad, times, *_ = str(summary).splitlines()
    assert first.endswith("out: 4 interactions of 2 queries with 2 candidates.")
    assert second == "Read 5 rows; left out 1 bad rows."
    assert bad.startswith("Bad: ")
    assert times == "Times from 1 to 4."
    assert summary.size == sum(p.stat().st_size for p in (tmp_path / "out").rglob("*.*"))
    record = PreparedRecord.load(tmp_path / "out")
    assert record.fingerprint == summary.fingerprint
    for role, kind in {"query": "<i4", "candidate": "<i4", "value": "<f4", "time": "<i8"}.items():
        column = np.load(tmp_path / "out" / f"{role}.npy")
        assert (record.columns[role], column.dtype.str) == (column.dtype.name, kind)


EVENTS = pa.table(
    {
        "query": ["ann", "ben", "ann", "cat", "ben"],
        "candidate": [10, 10, 11, 12, 10],
        "value": [4.0, 5.0, 1.0, 3.5, 5.0],
        "time": [300, 200, 100, 200, 200],
    }
)


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    tables = [
        EVENTS,
        EVENTS,
        EVENTS.set_column(0, "query", pa.array(["ann", "ben", "ann", "dan", "ben"])),
        EVENTS.set_column(2, "value", pa.array([4.0, 5.0, 1.5, 3.5, 5.0])),
        EVENTS.drop(["value"]),
    ]
    first, *others = [prepare(t, tmp_path / "a", overwrite=True).fingerprint for t in tables]
    assert [one == first for one in others] == [True, False, False, False]


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    out, other, link = tmp_path / "out", tmp_path / "other", tmp_path / "link"
    prepare(EVENTS, out)
    prepare(EVENTS.slice(3), out, overwrite=True)
    assert load_prepared(out).column("time").tolist() == [200, 200]
    (tmp_path / "file").write_text("")
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    link.symlink_to(out)
    for place, options, why in [
        (out, {}, "--overwrite replaces it"),
        (other, {"overwrite": True}, "has other files"),
        (link, {"overwrite": True}, "is a file or a link"),
        (tmp_path / "file", {"overwrite": True}, "is a file or a link"),
        (tmp_path / "file" / "out", {}, "cannot be written"),
        (Path("/proc/x"), {}, "/proc/x cannot be written"),  # the lock, which no process holds
    ]:
        with pytest.raises(DataError, match=why):
            prepare(EVENTS, place, **options)  # type: ignore[arg-type]
    assert (other / "thesis.txt").read_text() == "mine"


def test_tables_are_prepared_without_torch(tmp_path: Path) -> None:
    pq.write_table(EVENTS, tmp_path / "events.parquet")
    (tmp_path / "f.csv").write_text("id,tag\n10,a|b\n")
    code = (
        "import sys; from evergram.data import PrepareSettings, prepare; "
        "prepare('events.parquet', 'out', PrepareSettings(candidate_features='f.csv')); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("rows", [300_000, pytest.param(6_000_000, marks=pytest.mark.long)])
def test_many_rows_in_several_threads_are_in_the_order_of_numpys_sort(
    tmp_path: Path, rows: int
) -> None:
    """More rows than the engine keeps in one group, with ties; in the long test they take more
    memory than the engine has."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {
        "query": rng.integers(0, rows // 15, rows) * 977,
        "candidate": rng.integers(0, 30_000, rows),
        "value": rng.random(rows, np.float32),
        "time": rng.integers(0, 1_000, rows),
    }
    prepare(pa.table(columns), tmp_path / "out", PrepareSettings(memory="128MiB"))
    corpus = load_prepared(tmp_path / "out")
    order = np.argsort(columns["time"], kind="stable")
    for role in ("value", "time"):
        assert np.array_equal(corpus.column(role), columns[role][order])
    for side in ("query", "candidate"):
        ids, first, inverse = np.unique(
            columns[side][order], return_index=True, return_inverse=True
        )
        row = np.empty(len(ids), np.int64)
        row[np.argsort(first)] = np.arange(len(ids))
        assert np.array_equal(corpus.column(side), row[inverse])


def test_what_the_engine_cannot_do_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Database(tmp_path, 16 << 20)) as database:
        schema = pa.schema([("x", pa.int64())])
        batches = [pa.record_batch([pa.array(np.arange(1 << 21))], schema=schema)]
        database.create("t", schema, batches)
        with pytest.raises(DataError, match=r"16 MiB of memory.*--memory"):
            database.rows("SELECT length(string_agg(x || repeat('x', 90), '')) FROM t")
        offsets, letters = pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")
        broken = pa.record_batch({"x": pa.StringArray.from_buffers(1, offsets, letters)})
        with pytest.raises(DataError, match=r"(?i)DuckDB failed .*unicode"):
            database.create("u", broken.schema, [broken])
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(DataError, match=r"evergram\[prepare\]"):
        prepare(EVENTS, tmp_path / "out")


FIRST = pa.table({"query": [1, 2, 1], "candidate": [5, 5, 6], "time": [10, 20, 30]})
LATER = pa.table({"query": [2, 3], "candidate": [7, 5], "time": [30, 40]})

# Prepares LATER and dies before or after one function.
DYING = """
import os, sys
import pyarrow as pa
from evergram.data import prepare
name, how, out = sys.argv[1:]
module = sys.modules["evergram.data.prepared.prepare"]
old = getattr(module, name)
def die(*arguments, **options):
    if how == "after":
        old(*arguments, **options)
    os._exit(9)
setattr(module, name, die)
table = pa.table({"query": [2, 3], "candidate": [7, 5], "time": [30, 40]})
prepare(table, out, overwrite=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "how", "done"),
    [
        ("number_ids", "after", False),
        ("sha256", "after", False),
        ("write_text", "before", False),
        ("write_text", "after", False),
        ("replace_folder", "before", False),
        ("replace_folder", "after", True),
    ],
)
def test_a_killed_run_leaves_the_old_content_or_the_new(
    tmp_path: Path, name: str, how: str, done: bool
) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)
    arguments = [sys.executable, "-c", DYING, name, how, str(out)]
    assert subprocess.run(arguments, check=False, timeout=120).returncode == 9
    assert load_prepared(out).column("time").tolist() == ([30, 40] if done else [10, 20, 30])
    assert (tmp_path / ".out.part").exists() != done  # if done, it was renamed to out
    prepare(FIRST, out, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_next_run_puts_back_what_one_that_died_between_two_renames_left(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)
    out.rename(atomic_files.displaced(out))
    with pytest.raises(DataError, match="--overwrite replaces it"):
        prepare(LATER, out)
    assert load_prepared(out).column("time").tolist() == [10, 20, 30]
    prepare(LATER, out, overwrite=True)
    assert load_prepared(out).column("time").tolist() == [30, 40]


def test_a_second_writer_is_refused_and_no_lock_stays(tmp_path: Path) -> None:
    def while_it_runs(line: str) -> None:
        with pytest.raises(DataError, match="Another process is preparing"):
            prepare(LATER, tmp_path / "out")

    assert prepare(FIRST, tmp_path / "out", progress=while_it_runs).interactions == 3
    for refused in (FIRST, pa.table({"query": [1], "candidate": [None]})):
        for out in ("out", "new") if refused is not FIRST else ("out",):
            with pytest.raises(DataError):
                prepare(refused, tmp_path / out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match="No space left on device; it is unchanged"):
        prepare(LATER, out, overwrite=True)
    assert load_prepared(out).column("time").tolist() == [10, 20, 30]
    assert not (tmp_path / ".out.part").exists()


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    for changed, why in [
        ({"columns": {"user": "u"}}, "column role 'user' is unknown"),
        ({"memory": "much"}, "memory .* is much"),
        ({"memory": "1MiB"}, "at least 128MiB"),
    ]:
        with pytest.raises(DataError, match=why):
            PrepareSettings(**changed)  # type: ignore[arg-type]


def test_the_engine_takes_a_quarter_of_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "1000000\n")
    assert machine_memory() == 1_000_000  # of a container
    monkeypatch.setattr(Path, "read_text", lambda _: "max\n")
    assert machine_memory() > 1_000_000
    assert PrepareSettings(memory="1GiB").memory_bytes == 1 << 30
    for machine, share in [(64 << 30, 2 << 30), (4 << 30, 1 << 30), (1 << 28, 128 << 20)]:
        monkeypatch.setattr(f"{PREPARE}.machine_memory", lambda machine=machine: machine)
        assert PrepareSettings().memory_bytes == share


def checked(sources: Any, out: Path, expected: Corpus, **chosen: Any) -> Any:
    """Prepare sources, check that the folder is the expected corpus, and return the summary."""
    summary = prepare(sources, out, PrepareSettings(memory="256MiB", **chosen))
    assert_same(expected, load_prepared(out))
    return summary


PAIRS = pa.table({"query": [3, 1, 3], "candidate": [1, 2, 4], "value": [0.5, 1.0, 2.0]})
WORDS = pa.table({"query": [3, 1, 3], "candidate": ["a", "b", "a"]})
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


def features(**columns: list[object]) -> pa.Table:
    return pa.table({"id": [1, 2, 3], **columns})


def test_features_of_any_type_are_those_of_the_corpus(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(2)]
    for path, table in zip(paths, (FEATURES.slice(0, 1), FEATURES.slice(1)), strict=True):
        pq.write_table(table, path)
    expected = Corpus.of(WORDS, candidate_features=FEATURES)
    checked(WORDS, tmp_path / "out", expected, candidate_features=paths)


def test_numbers_and_times_of_text_are_those_of_the_corpus_of_the_file(tmp_path: Path) -> None:
    events, described, out = (tmp_path / name for name in ("t.csv", "f.csv", "out"))
    events.write_text("user,sku\n3,a\n1,b\n3,c\n")
    lines = ["sku;price;stock;listed;tags", "a;1234.5;3;2025-01-01;x|y"]
    described.write_text("\n".join([*lines, "b;;n/a;2025-02-01;", "c;7;9;;y"]))
    chosen: dict[str, Any] = {
        "columns": {"query": "user", "candidate": "sku"},
        "candidate_features": described,
    }
    expected = load_table(events, **chosen)
    checked(events, out, expected, **chosen)
    found = {n: f.vocabulary.keys.to_pylist() for n, f in expected.candidates.features.items()}
    assert (found["price"], found["stock"], len(found["listed"])) == ([7, 1234.5], [3, 9], 2)


def test_shared_ids_are_those_of_the_corpus(tmp_path: Path) -> None:
    pairs, one = pa.table({"query": [1, 2], "candidate": [2, 3]}), features(x=["a", "b", "c"])
    apart = one.rename_columns(["id", "y"])
    clash = features(x=["a", "b", "d"])
    for name, table in (("one", one), ("apart", apart), ("clash", clash)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    chosen: dict[str, Any] = {"shared_ids": True, "query_features": tmp_path / "one.parquet"}
    for name, table in (("one", one), ("apart", apart), ("clash", clash)):
        expected = Corpus.of(pairs, query_features=one, candidate_features=table, shared_ids=True)
        path = tmp_path / f"{name}.parquet"
        checked(pairs, tmp_path / name, expected, candidate_features=path, **chosen)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"id": ["a", "a"], "x": [1, 2]}, "1 ids are repeated, such as 'a'"),
        ({"id": ["a"], "x": [["p", None]]}, "null inside a list"),
        ({"id": ["a"], "candidate_count": [1]}, "rename it"),
        ({"id": ["other"], "x": [1]}, "none of the ids"),
    ],
)
def test_what_is_no_feature_is_refused(
    tmp_path: Path, columns: dict[str, list[object]], why: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    lines: list[str] = []
    settings = PrepareSettings(candidate_features=[tmp_path / "f.parquet"])
    with pytest.raises(DataError, match=why):
        prepare(WORDS, tmp_path / "out", settings, progress=lines.append)
    assert not (tmp_path / "out").exists()
    # Before hours of interactions are read, but for ids of the other side.
    assert bool(lines) == (why == "none of the ids")


def test_a_table_is_held_to_the_rules_of_a_corpus_in_memory(tmp_path: Path) -> None:
    table = pa.table({"query": pa.array(["a"], pa.string_view()), "candidate": [1], "price": [2]})
    summary = prepare(table, tmp_path / "out")
    assert (summary.interactions, summary.unread) == (1, ["price"])
    assert "There are no times.\nNot read: price; --column ROLE=NAME" in str(summary)
    twice = pa.table([pa.array([1])] * 3, names=["query", "candidate", "query"])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (table, {"columns": {"candidate": "query"}}, "query and candidate are both the column"),
        (twice, {}, "has two columns 'query'"),
        (tmp_path / "nowhere", {}, "There is no file"),
    ]
    for sources, chosen, why in cases:
        with pytest.raises(DataError, match=why):
            prepare(sources, tmp_path / "other", PrepareSettings(**chosen))
    assert not (tmp_path / "other").exists()
