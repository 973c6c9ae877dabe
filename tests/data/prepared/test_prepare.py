"""A prepared folder is the corpus of the same sources, row by row, and is never half-written."""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
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
from tests.support.prepared_folders import assert_is_corpus, column, entities, pairs_of_ids

from evergram import atomic_files
from evergram.data.corpus import Corpus
from evergram.data.prepared.engine import database
from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.vocabularies import Vocabularies
from evergram.data.prepared.prepared_record import PreparedRecord
from evergram.data.prepared.writing import earlier_parts, part_files
from evergram.data.prepared.writing import settings as settings_module
from evergram.data.prepared.writing.part_files import row_type, write_part
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.prepared_folder import writing
from evergram.data.prepared.writing.settings import PrepareSettings, machine_memory
from evergram.data.prepared.writing.summary import PrepareSummary
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


@pytest.mark.parametrize("suffix", ["arrow", "csv.gz"])
def test_each_format_is_the_corpus_of_its_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"events.{suffix}"
    if suffix == "arrow":
        feather.write_feather(EVENTS, path)
    else:
        text = pa.BufferOutputStream()
        csv.write_csv(EVENTS, text)
        path.write_bytes(gzip.compress(text.getvalue().to_pybytes()))
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


def test_a_run_says_what_it_does_and_records_it(tmp_path: Path) -> None:
    table = pa.table(
        {"query": [1, 1, 2, 2, 2], "candidate": [5, 6, 5, 6, 6], "time": [3, 1, 2, 4, 5]}
    )
    lines: list[str] = []
    chosen = PrepareSettings(unique=True, k_core=2, name="shop")
    summary = prepare(table, tmp_path / "out", chosen, progress=lines.append)
    assert (summary.added, summary.repeats_dropped) == (4, 1)
    assert lines == [
        "reading 1 source",
        "sorting 5 interactions by time",
        "looking for repeated pairs",
        "looking for the 2-core",
        "numbering ids",
        "writing interactions",
        "writing entities",
    ]
    record = PreparedRecord.load(tmp_path / "out")
    assert (record.name, record.fingerprint) == ("shop", summary.fingerprint)
    assert record.columns == {"query": "int32", "candidate": "int32", "time": "int64"}
    assert (record.times, record.choices.unique, record.choices.k_core) == ("numbers", True, 2)


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


FIRST = pa.table({"query": [1, 2, 1], "candidate": [5, 5, 6], "time": [10, 20, 30]})
LATER = pa.table({"query": [2, 3], "candidate": [7, 5], "time": [30, 40]})

# Prepares LATER and dies before or after one function.
DYING = """
import os, sys
import pyarrow as pa
from evergram.data.prepared.writing import preparation, prepared_folder
from evergram.data.prepared.writing.prepare import prepare
module, name, how = sys.argv[1:4]
place = {"preparation": preparation, "folder": prepared_folder}[module]
old = getattr(place, name)
def die(*arguments, **options):
    if how == "after":
        old(*arguments, **options)
    os._exit(9)
setattr(place, name, die)
table = pa.table({"query": [2, 3], "candidate": [7, 5], "time": [30, 40]})
prepare(table, sys.argv[4], **{sys.argv[5]: True})
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize(
    ("module", "name", "how", "done"),
    [
        ("preparation", "stage", "after", False),
        ("preparation", "write_part", "after", False),
        ("preparation", "write_text", "before", False),
        ("preparation", "write_text", "after", False),
        ("folder", "exchange_folders", "before", False),
        ("folder", "exchange_folders", "after", True),
    ],
)
def test_a_killed_run_leaves_the_old_content_or_the_new(
    tmp_path: Path, mode: str, module: str, name: str, how: str, done: bool
) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)
    arguments = [module, name, how, str(out), mode]
    killed = subprocess.run([sys.executable, "-c", DYING, *arguments], check=False, timeout=120)
    assert killed.returncode == 9
    whole = [10, 20, 30, 30, 40] if mode == "append" else [30, 40]
    assert column(out, "time").tolist() == (whole if done else [10, 20, 30])
    assert PreparedRecord.load(out).interactions == len(column(out, "time"))
    assert (tmp_path / ".out.part").exists()
    prepare(FIRST, out, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.lock", "out"]


def test_without_an_exchange_the_next_run_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a system without the kernel's exchange, a process dies between the two renames."""
    out = tmp_path / "out"
    prepare(FIRST, out)
    monkeypatch.setattr(atomic_files, "_exchange", lambda one, other: False)
    prepare(LATER, out, append=True)
    assert column(out, "time").tolist() == [10, 20, 30, 30, 40]
    out.rename(atomic_files.displaced(out))
    last = pa.table({"query": [9], "candidate": [9], "time": [50]})
    prepare(last, out, append=True)
    assert column(out, "time").tolist() == [10, 20, 30, 30, 40, 50]


def hold(out: Path, holding: object, free: object) -> None:
    with writing(out):
        holding.set()  # type: ignore[attr-defined]
        free.wait(60)  # type: ignore[attr-defined]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    holding, free = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path / "out", holding, free))
    process.start()
    try:
        assert holding.wait(60)
        with pytest.raises(DataError, match="Another process is preparing"):
            prepare(FIRST, tmp_path / "out")
    finally:
        free.set()
        process.join()
    prepare(FIRST, tmp_path / "out")


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match="No space left on device; it is as it was"):
        prepare(LATER, out, append=True)
    assert column(out, "time").tolist() == [10, 20, 30]
    assert not (tmp_path / ".out.part").exists()


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        prepare(FIRST, tmp_path / "file" / "out")
    # A lock that cannot be made is no other process.
    with pytest.raises(DataError, match="/proc/x cannot be written"):
        prepare(FIRST, "/proc/x")
    with pytest.raises(DataError, match="is a file or a link"):
        prepare(FIRST, tmp_path / "file", overwrite=True)


def content(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_old_rows_stay_and_counts_grow(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)
    before = content(out)
    summary = prepare(LATER, out, append=True)
    assert (summary.added, summary.interactions, summary.parts) == (2, 5, 2)
    assert summary.new_entities == {"query": 1, "candidate": 1}
    assert entities(out, "query").to_pydict() == {"id": [1, 2, 3], "count": [2, 2, 1]}
    assert entities(out, "candidate").to_pydict() == {"id": [5, 6, 7], "count": [3, 1, 1]}
    after = content(out)
    assert all(after[name] == before[name] for name in before if name.startswith("parts"))
    parts = PreparedRecord.load(out).parts
    assert [part.entities["query"] for part in parts] == [2, 3]
    assert [(part.first_time, part.last_time) for part in parts] == [(10, 30), (30, 40)]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)
    before = content(out)
    for columns, why in [
        ({"time": [29, 40]}, r"begins at 29, before the end of .* at 30 \(1 interactions"),
        ({"time": [30.5, 40.0]}, "times of .* are integers"),
        ({"query": ["a", "b"]}, "query ids of .* are integers"),
        ({"value": [1.0, 2.0]}, "has the columns query, candidate, time, and what is appended"),
    ]:
        with pytest.raises(DataError, match=why):
            prepare(pa.table(LATER.to_pydict() | columns), out, append=True)
    first: dict[str, Any] = {"unique": True, "k_core": 2, "minimum_value": 2, "shared_ids": True}
    for name, value in first.items():
        with pytest.raises(DataError, match=f"with {name} = .*--overwrite"):
            prepare(LATER, out, PrepareSettings(**{name: value}), append=True)
    assert content(out) == before


def test_times_of_another_unit_are_refused(tmp_path: Path) -> None:
    out, seconds = tmp_path / "out", pa.array([1_700_000_000, 1_700_000_100])
    prepare(pa.table({"query": [1, 2], "candidate": [1, 2], "time": seconds}), out)
    dates = seconds.cast(pa.timestamp("s"))
    with pytest.raises(DataError, match=r"numbers in seconds at .*, and dates without a time zone"):
        prepare(pa.table({"query": [1, 2], "candidate": [1, 2], "time": dates}), out, append=True)


def test_integers_are_appended_to_texts_and_to_decimals(tmp_path: Path) -> None:
    texts = pa.table({"query": ["a", "3"], "candidate": [5, 5], "time": [1.5, 2.5]})
    prepare(texts, tmp_path / "out")
    prepare(LATER, tmp_path / "out", append=True)
    assert entities(tmp_path / "out", "query")["id"].to_pylist() == ["a", "3", "2"]


def test_a_core_counts_all_parts_and_drops_new_rows_alone(tmp_path: Path) -> None:
    square = pa.table({"query": [1, 1, 2, 2], "candidate": [5, 6, 5, 6]})
    out = tmp_path / "out"
    prepare(square, out, PrepareSettings(k_core=2))
    later = pa.table({"query": [3, 3, 4, 1], "candidate": [5, 6, 5, 9]})
    summary = prepare(later, out, append=True)
    assert summary.outside_core == 2
    assert pairs_of_ids(out)[4:] == [(3, 5), (3, 6)]


def test_features_of_old_ids_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pq.write_table(pa.table({"id": [1, 2], "x": ["a", "b"]}), tmp_path / "old.parquet")
    prepare(FIRST, out, PrepareSettings(query_features=tmp_path / "old.parquet"))
    pq.write_table(pa.table({"id": [3, 1], "x": ["c", "d"]}), tmp_path / "new.parquet")
    prepare(LATER, out, PrepareSettings(query_features=tmp_path / "new.parquet"), append=True)
    assert entities(out, "query")["x"].to_pylist() == ["a", "b", "c"]
    last = pa.table({"query": [4], "candidate": [5], "time": [50]})
    prepare(last, out, append=True)
    assert entities(out, "query")["x"].to_pylist() == ["a", "b", "c", None]
    pq.write_table(pa.table({"id": [5], "y": ["c"]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"no query feature 'y' \(it has x\)"):
        prepare(
            last.set_column(0, "query", pa.array([5])),
            out,
            PrepareSettings(query_features=tmp_path / "other.parquet"),
            append=True,
        )


def test_parts_are_linked_or_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(FIRST, tmp_path / "out")
    record = PreparedRecord.load(tmp_path / "out")
    earlier_parts.link_parts(record, tmp_path / "out", tmp_path / "linked")
    file = Path("parts/00000/query.npy")
    assert (tmp_path / "linked" / file).samefile(tmp_path / "out" / file)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    earlier_parts.link_parts(record, tmp_path / "out", tmp_path / "copied")
    assert not (tmp_path / "copied" / file).samefile(tmp_path / "out" / file)
    assert (tmp_path / "copied" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()


def test_many_batches_are_one_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two parts: counts are added, features of the first part stay, all in order of rows."""
    monkeypatch.setattr(database, "FETCHED", 2)
    ids = [9, 3, 7, 1, 5]
    features = pa.table({"id": sorted([*ids, 8]), "x": [[i] for i in sorted([*ids, 8])]})
    pq.write_table(features, tmp_path / "f.parquet")
    settings = PrepareSettings(query_features=tmp_path / "f.parquet")
    prepare(pa.table({"query": ids, "candidate": ids}), tmp_path / "out", settings)
    later = pa.table({"query": [8, 3, 6], "candidate": [1, 1, 1]})
    prepare(later, tmp_path / "out", settings, append=True)
    assert entities(tmp_path / "out", "query").to_pydict() == {
        "id": [*ids, 8, 6],
        "count": [1, 2, 1, 1, 1, 1, 1],
        "x": [*([i] for i in ids), [8], None],
    }


COLUMNS = {"query": "int32", "candidate": "int64", "time": "int64"}


def write(folder: Path, times: list[int]) -> part_files.PartFacts:
    folder.mkdir()
    ids = list(range(len(times)))
    table = pa.table({"query": ids[::-1], "candidate": ids, "time": times})
    engine = folder / "engine"
    engine.mkdir()
    with Database(engine, 256 << 20, 1) as database:
        database.create("interactions", table.schema, table.to_batches())
        for side in ("query", "candidate"):
            database.run(
                f"CREATE TABLE ids_{side} AS SELECT {side} AS id, {side} AS row FROM interactions"
            )
        return write_part(folder, database, Vocabularies(False, {}), COLUMNS)


def test_columns_are_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "BLOCK", 3)
    monkeypatch.setattr(part_files, "WINDOW", 0)
    facts = write(tmp_path / "part", [1, 1, 2, 3, 3, 9, 9])
    assert (facts.rows, facts.first_time, facts.last_time) == (7, 1, 9)
    columns = {name: np.load(tmp_path / "part" / f"{name}.npy") for name in COLUMNS}
    assert [c.dtype.str for c in columns.values()] == ["<i4", "<i8", "<i8"]
    assert columns["query"].tolist() == list(range(7))[::-1]
    assert columns["time"].tolist() == [1, 1, 2, 3, 3, 9, 9]

    assert facts.sha256 == {
        name: hashlib.sha256((tmp_path / "part" / f"{name}.npy").read_bytes()).hexdigest()
        for name in COLUMNS
    }
    for block in (2, 100):  # times that fall, across blocks and within one
        monkeypatch.setattr(part_files, "BLOCK", block)
        with pytest.raises(AssertionError, match="not by time"):
            write(tmp_path / str(block), [1, 2, 1, 4])
    assert [row_type(n) for n in (1, 1 << 31, (1 << 31) + 1)] == ["int32", "int32", "int64"]


def test_impossible_settings_are_refused() -> None:
    cases: list[Any] = [
        ({"columns": {"user": "u"}}, "no column 'user' to name"),
        ({"k_core": -1}, "at least 0"),
        ({"minimum_value": float("nan")}, "NaN"),
        ({"name": "../x"}, "is no path"),
        ({"threads": 0}, "at least 1"),
        ({"memory": "much"}, "no size of memory"),
        ({"memory": "1MiB"}, "at least 128MiB"),
    ]
    for changed, why in cases:
        with pytest.raises(DataError, match=why):
            PrepareSettings(**changed)


def test_the_engine_takes_a_quarter_of_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PrepareSettings(memory="1GiB").memory_bytes == 1 << 30
    for machine, share in [(64 << 30, 2 << 30), (4 << 30, 1 << 30), (1 << 28, 128 << 20)]:
        monkeypatch.setattr(settings_module, "machine_memory", lambda machine=machine: machine)
        assert PrepareSettings().memory_bytes == share


def test_a_container_bounds_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "1000000\n")
    assert machine_memory() == 1_000_000
    monkeypatch.setattr(Path, "read_text", lambda _: "max\n")
    assert machine_memory() > 1_000_000


SUMMARY = PrepareSummary(
    out="corpus",
    fingerprint="ab",
    rows_read=1000,
    bad_rows={"count": 0, "reasons": []},
    below_minimum=10,
    repeats_dropped=20,
    outside_core=0,
    added=970,
    interactions=970,
    parts=1,
    entities={"query": 7, "candidate": 5},
    new_entities={"query": 7, "candidate": 5},
    columns={"query": "int32", "candidate": "int32"},
    unread=[],
    first_time=None,
    last_time=None,
    size=2_500_000,
    seconds=2.0,
    peak_memory=300 << 20,
)


def test_a_first_part_is_told_in_four_lines() -> None:
    assert str(SUMMARY).splitlines() == [
        "corpus: 970 interactions of 7 queries with 5 candidates.",
        "Read 1,000 rows; left out 10 below the minimum value, 20 repeats.",
        "There are no times.",
        "2.5 MB on disk; 2.0 s, 500 rows/s, at most 300 MiB of memory.",
    ]


def test_a_later_part_tells_what_is_new() -> None:
    later = replace(SUMMARY, parts=2, interactions=5000, first_time=1, last_time=9)
    text = str(later)
    assert "970 interactions (part 2; 5,000 in all)" in text
    assert "New: 7 queries, 5 candidates.\nTimes from 1 to 9." in text
    assert later.to_json()["parts"] == 2


def test_dates_and_columns_that_were_not_read_are_told() -> None:
    dated = replace(SUMMARY, first_time=1_748_736_206_000_000, last_time=1_764_460_600_000_000)
    text = str(replace(dated, unread=["played_at", "note"]))
    assert "Times from 2025-06-01 00:03 to 2025-11-29 23:56." in text
    assert "Not read: played_at, note; --column time=NAME or --column value=NAME" in text
    every = dict.fromkeys(("query", "candidate", "time", "value", "weight"), "int32")
    assert "Not read: note.\n" in str(replace(SUMMARY, columns=every, unread=["note"]))
