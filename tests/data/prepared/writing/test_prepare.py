"""A prepared folder is the corpus of the same files, row by row."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.prepared_folders import assert_is_corpus, column, pairs_of_ids

from evergram.data.corpus import Corpus
from evergram.data.prepared.prepared_record import PreparedRecord
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.tables import load_table
from evergram.errors import DataError

INTEGERS = st.integers(-3, 5) | st.sampled_from([2**63 - 1, -(2**63)])
TEXTS = st.sampled_from(["a", "b", "B", "é", "NULL", "00017", "17", " ", "x'y"])
TIMES = st.integers(0, 4) | st.sampled_from([2**62, -(2**62)])
DECIMALS = st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e18, 3.0])


@st.composite
def interactions(draw: st.DrawFn) -> pa.Table:
    """Draw a small table with repeated pairs and tied times."""
    rows = draw(st.integers(1, 12))

    def cells(one: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(one, min_size=rows, max_size=rows))

    columns: dict[str, Any] = {}
    for side in ("query", "candidate"):
        kind, values = draw(st.sampled_from([(pa.int64(), INTEGERS), (pa.string(), TEXTS)]))
        columns[side] = pa.array(cells(values), kind)
    if draw(st.booleans()):
        columns[side] = columns[side].dictionary_encode()
    if draw(st.booleans()):
        columns["value"] = pa.array(cells(st.sampled_from([0.1, 0.7, 3.0, -1.0])))
    if draw(st.booleans()):
        columns["weight"] = pa.array(cells(st.sampled_from([0.5, 2.0])), pa.float32())
    clock = draw(st.sampled_from(["none", "integer", "decimal", "date"]))
    if clock == "integer":
        columns["time"] = pa.array(cells(TIMES))
    elif clock == "decimal":
        columns["time"] = pa.array(cells(DECIMALS), pa.float64())
    elif clock == "date":
        columns["time"] = pa.array(cells(st.dates()), pa.date32())
    return pa.table(columns)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(table=interactions(), shared=st.booleans(), pieces=st.integers(1, 3))
def test_a_prepared_corpus_is_the_corpus_in_memory(
    table: pa.Table, shared: bool, pieces: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        size = -(-table.num_rows // pieces)
        for number, start in enumerate(range(0, table.num_rows, size)):
            pq.write_table(table.slice(start, size), Path(folder) / f"{number}.parquet")
        out = Path(folder) / "out"
        prepare(folder, out, PrepareSettings(shared_ids=shared, memory="256MiB", threads=1))
        assert_is_corpus(out, Corpus.from_tables(table, shared_ids=shared))


def without_repeats(table: pa.Table) -> pa.Table:
    """Return the first interaction of each pair in time, by Python's own sort and set."""
    times = table["time"].to_pylist() if "time" in table.column_names else [0] * table.num_rows
    pairs = list(zip(table["query"].to_pylist(), table["candidate"].to_pylist(), strict=True))
    seen, kept = set(), []
    for row in sorted(range(len(pairs)), key=lambda row: times[row]):
        if pairs[row] not in seen:
            seen.add(pairs[row])
            kept.append(row)
    return table.take(pa.array(kept, pa.int64()))


def core(table: pa.Table, k: int) -> pa.Table:
    """Return the k-core by leaving out one row at a time."""
    rows = table.to_pylist()
    while True:
        count: dict[tuple[str, Any], int] = {}
        for row in rows:
            for side in ("query", "candidate"):
                count[side, row[side]] = count.get((side, row[side]), 0) + 1
        bad = next(
            (
                i
                for i, row in enumerate(rows)
                if min(count["query", row["query"]], count["candidate", row["candidate"]]) < k
            ),
            None,
        )
        if bad is None:
            return pa.Table.from_pylist(rows, table.schema)
        del rows[bad]


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(table=interactions(), k=st.integers(0, 3), unique=st.booleans(), least=st.booleans())
def test_what_is_left_out_is_what_a_slow_program_leaves_out(
    table: pa.Table, k: int, unique: bool, least: bool
) -> None:
    minimum = 0.7 if least and "value" in table.column_names else None
    expected = table
    if minimum is not None:
        kept = [row for row in range(len(table)) if table["value"][row].as_py() >= minimum]
        expected = table.take(pa.array(kept, pa.int64()))
    expected = without_repeats(expected) if unique else expected
    expected = core(expected, k)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        chosen = PrepareSettings(unique=unique, k_core=k, minimum_value=minimum, threads=1)
        if not expected.num_rows:
            with pytest.raises(DataError, match="give a smaller"):
                prepare(table, out, chosen)
            assert not out.exists()
            return
        summary = prepare(table, out, chosen)
        assert_is_corpus(out, Corpus.from_tables(expected))
        dropped = summary.below_minimum + summary.repeats_dropped + summary.outside_core
        assert summary.rows_read == summary.added + dropped == table.num_rows


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(table=interactions(), cut=st.integers(1, 11), shared=st.booleans(), unique=st.booleans())
def test_parts_that_are_appended_are_one_corpus(
    table: pa.Table, cut: int, shared: bool, unique: bool
) -> None:
    """Rows and interactions are those of all sources at once; where ids are shared only the
    interactions are, as a part's new queries come before its new candidates."""
    if "time" in table.column_names:
        table = table.take(np.argsort(table["time"].to_numpy(), kind="stable"))
    first, second = table.slice(0, cut), table.slice(cut)
    if not second.num_rows:
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        chosen = PrepareSettings(shared_ids=shared, unique=unique, threads=1)
        before = prepare(first, out, chosen)
        old_pairs = pairs_of_ids(out)
        expected = without_repeats(table) if unique else table
        if expected.num_rows == before.added:
            with pytest.raises(DataError, match="already"):
                prepare(second, out, append=True)
            assert pairs_of_ids(out) == old_pairs
            return
        after = prepare(second, out, append=True)
        assert after.fingerprint != before.fingerprint
        assert pairs_of_ids(out)[: len(old_pairs)] == old_pairs
        if not shared:
            assert_is_corpus(out, Corpus.from_tables(expected))
        else:
            ids = (expected["query"], expected["candidate"])
            asked = [one.cast(pa.string()).to_pylist() for one in ids]
            read = [(str(q), str(c)) for q, c in pairs_of_ids(out)]
            assert read == list(zip(*asked, strict=True))
        folders = [part.folder for part in PreparedRecord.load(out).parts]
        assert folders == ["parts/00000", "parts/00001"]


EVENTS = pa.table(
    {
        "query": ["ann", "ben", "ann", "cat", "ben"],
        "candidate": [10, 10, 11, 12, 10],
        "value": [4.0, 5.0, 1.0, 3.5, 5.0],
        "time": [300, 200, 100, 200, 200],
    }
)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "tsv", "csv.gz"])
def test_each_format_is_the_corpus_of_its_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"events.{suffix}"
    if suffix == "parquet":
        pq.write_table(EVENTS, path)
    elif suffix == "arrow":
        feather.write_feather(EVENTS, path)
    else:
        text = pa.BufferOutputStream()
        options = csv.WriteOptions(delimiter="\t" if suffix == "tsv" else ",")
        csv.write_csv(EVENTS, text, options)
        content = text.getvalue().to_pybytes()
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    lines: list[str] = []
    summary = prepare(path, tmp_path / "out", progress=lines.append)
    assert_is_corpus(tmp_path / "out", load_table(path))
    assert (summary.first_time, summary.last_time) == (100, 300)
    assert summary.size == sum(p.stat().st_size for p in (tmp_path / "out").rglob("*.*"))
    assert lines[0] == "reading 1 source"
    assert len(lines) == 5


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    first = prepare(EVENTS, tmp_path / "a").fingerprint
    assert prepare(EVENTS, tmp_path / "b").fingerprint == first
    changed = [
        EVENTS.slice(1),
        EVENTS.set_column(0, "query", pa.array(["ann", "ben", "ann", "dan", "ben"])),
        EVENTS.set_column(2, "value", pa.array([4.0, 5.0, 1.5, 3.5, 5.0])),
        EVENTS.drop(["value"]),
    ]
    for table in changed:
        assert prepare(table, tmp_path / "b", overwrite=True).fingerprint != first


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(EVENTS, out)
    with pytest.raises(DataError, match="--append adds a new part to it, --overwrite"):
        prepare(EVENTS, out)
    with pytest.raises(DataError, match="exclude each other"):
        prepare(EVENTS, out, append=True, overwrite=True)
    prepare(EVENTS.slice(3), out, overwrite=True)
    assert column(out, "time").tolist() == [200, 200]
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="holds other files"):
        prepare(EVENTS, other, overwrite=True)
    with pytest.raises(DataError, match="no prepared corpus"):
        prepare(EVENTS, other, append=True)
    assert (other / "thesis.txt").read_text() == "mine"


def test_an_append_goes_where_a_link_leads(tmp_path: Path) -> None:
    out, link = tmp_path / "disk", tmp_path / "link"
    events = EVENTS.sort_by("time")
    prepare(events.slice(0, 3), out)
    link.symlink_to(out)
    prepare(events.slice(3), link, append=True)
    assert link.is_symlink()
    assert PreparedRecord.load(out).parts[1].interactions == len(EVENTS) - 3
    with pytest.raises(DataError, match="is a file or a link"):
        prepare(EVENTS, link, overwrite=True)


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sources is dict; give paths"):
        prepare({"query": [1]}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".out.part").exists()


def test_tables_are_prepared_without_torch(tmp_path: Path) -> None:
    pq.write_table(EVENTS, tmp_path / "events.parquet")
    (tmp_path / "f.csv").write_text("id,tag\n10,a|b\n")
    code = (
        "import sys; from evergram.data.prepared.writing.prepare import prepare; "
        "from evergram.data.prepared.writing.settings import PrepareSettings; "
        "prepare('events.parquet', 'out', PrepareSettings(candidate_features='f.csv')); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


@pytest.mark.long
def test_many_rows_in_several_threads_are_in_the_order_of_numpys_sort(tmp_path: Path) -> None:
    """More rows than the engine keeps in one group, with ties, in less memory than they take."""
    rng = np.random.default_rng(0)
    rows = 3_000_000
    columns: dict[str, Any] = {
        "query": rng.integers(0, 200_000, rows) * 977,
        "candidate": rng.integers(0, 30_000, rows),
        "value": rng.random(rows, np.float32),
        "time": rng.integers(0, 1_000, rows),
    }
    prepare(pa.table(columns), tmp_path / "out", PrepareSettings(memory="128MiB", threads=2))
    order = np.argsort(columns["time"], kind="stable")
    for role in ("value", "time"):
        assert np.array_equal(column(tmp_path / "out", role), columns[role][order])
    for side in ("query", "candidate"):
        ids, first, inverse = np.unique(
            columns[side][order], return_index=True, return_inverse=True
        )
        row = np.empty(len(ids), np.int64)
        row[np.argsort(first)] = np.arange(len(ids))
        assert np.array_equal(column(tmp_path / "out", side), row[inverse])
