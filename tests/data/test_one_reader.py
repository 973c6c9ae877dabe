"""The same rows are the same corpus, or the same refusal, however they are divided into files and
through whatever door they are read."""

from __future__ import annotations

import gzip
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.command import Command

from evergram import Corpus, Recipe, load_corpus
from evergram.data.prepared.prepare import PrepareSettings, prepare
from evergram.data.tables import load_table, read_interactions
from evergram.errors import DataError

SMALL = PrepareSettings(memory="128MiB")
Row = tuple[str, str]
Seen = tuple[str, Counter[tuple[Any, ...]]] | type[DataError]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def seen(make: Callable[[], Corpus]) -> Seen:
    """Return the type of a corpus's queries and its interactions, in no order; or the refusal."""
    try:
        corpus = make()
    except DataError:
        return DataError
    table, keys = corpus.interactions, corpus.queries.vocabulary.keys
    queries = keys.take(pa.array(table["query"].to_numpy())).to_pylist()
    times = table["time"].to_pylist()
    return str(keys.type), Counter(zip(queries, times, strict=True))


def prepared(path: Path, out: Path) -> Corpus:
    prepare(str(path), out, SMALL)
    return load_corpus(Recipe.of({"data": {"kind": "prepared", "path": str(out)}}))


def write(folder: Path, parts: Sequence[Sequence[Row]]) -> Path:
    folder.mkdir()
    for number, rows in enumerate(parts):
        lines = "".join(f"{query},7,{time}\n" for query, time in rows)
        (folder / f"{number}.csv").write_text(f"query,candidate,time\n{lines}")
    return folder


QUERIES = st.sampled_from(["17", "00017", "017", "a", "1.5", "-3", str(2**40), str(2**64)])
TIMES = st.sampled_from(
    [
        "1577836800",
        "1577836800.5",
        "1577836800000",
        "5",
        "2020-01-01",
        "2020-01-01T10:00:00",
        "2020-01-01 10:00:00Z",
        "2020-01-01T10:00:00+02:00",
        "2020-13-01",
        str(2**53 + 1),
    ]
)
# Two kinds of each at most, so that many tables can be used.
ROWS = st.tuples(
    st.lists(QUERIES, min_size=1, max_size=2), st.lists(TIMES, min_size=1, max_size=2)
).flatmap(
    lambda few: st.lists(
        st.tuples(st.sampled_from(few[0]), st.sampled_from(few[1])), min_size=2, max_size=4
    )
)


@settings(max_examples=10, deadline=None)
@given(ROWS)
def test_every_division_and_door_agree(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        one = write(root / "one", [rows])
        expected = seen(lambda: load_table(one / "0.csv"))
        thirds = [rows[:1], rows[1:2], rows[2:]]
        for number, order in enumerate(permutations(thirds)):
            folder = write(root / f"several{number}", [part for part in order if part])
            assert seen(partial(load_table, folder)) == expected
        folder = root / "several0"
        assert seen(lambda: prepared(folder, root / "out")) == expected
        data = {"kind": "table", "path": str(folder)}
        assert seen(lambda: load_corpus(Recipe.of({"data": data}))) == expected
        assert seen(lambda: Corpus.of(read_interactions(folder))) == expected


PARQUET: list[tuple[str, list[Any], list[Any], Any]] = [
    ("query", [17, 18], ["00017", "17"], ["17", "18", "00017"]),
    ("query", pa.array([1, 2], pa.int8()), pa.array(["2", "x"]).dictionary_encode(), "12x"),
    ("query", [1, 2], [True, False], None),
    ("time", [1577836800, 1577836801], [1577836800000, 1577836801000], None),
    ("time", [date(2020, 1, 1)] * 2, [datetime(2020, 1, 1, tzinfo=UTC)] * 2, None),
    ("time", [1577836800] * 2, [date(2020, 1, 1)] * 2, None),
    ("time", [date(2020, 1, 1)] * 2, [datetime(2020, 1, 1)] * 2, {1577836800 * 10**6}),
    ("time", pa.array([1, 2], pa.timestamp("s")), pa.array([1, 2], pa.timestamp("ns")), ...),
    ("value", [1, 2], [True, False], None),
    ("value", [1, 2], [0.5, 3.0], {1.0, 2.0, 0.5, 3.0}),
]


@pytest.mark.parametrize("case", range(len(PARQUET)))
def test_files_of_several_types_are_widened_or_refused_with_both_named(
    case: int, tmp_path: Path
) -> None:
    role, first, second, expected = PARQUET[case]
    for number, halves in enumerate(((first, second), (second, first))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, cells in zip("ab", halves, strict=True):
            columns = {"query": [1, 2], "candidate": [3, 4]} | {role: cells}
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
        doors: tuple[Callable[[], Corpus], ...] = (
            partial(load_table, folder),
            partial(prepared, folder, folder / "out"),
        )
        for door in doors:
            if expected is None:
                with pytest.raises(DataError) as refused:
                    door()
                assert "b.parquet" in str(refused.value) or "a.parquet" in str(refused.value)
                continue
            corpus = door()
            if role == "query":
                assert set(corpus.queries.vocabulary.keys.to_pylist()) == set(expected)
            elif expected is not ...:
                assert set(corpus.interactions[role].to_pylist()) == expected


def test_a_column_that_only_later_files_have_is_refused(tmp_path: Path) -> None:
    for name, more in (("a", {}), ("b", {"value": [3]})):
        pq.write_table(pa.table({"query": [1], "candidate": [2], **more}), f"{tmp_path}/{name}.pq")
    with pytest.raises(DataError, match=r"b.pq has a column 'value' and .*a.pq does not"):
        load_table(tmp_path)


UNITS = ["1600000000", "1600000000000", "2020-09-13T12:26:40", "2020-09-13T12:26:40Z"]


def test_times_written_otherwise_are_refused(tmp_path: Path, command: Command) -> None:
    def write(name: str, time: str) -> Path:
        (tmp_path / name).write_text(f"query,candidate,time\n1,2,{time}\n")
        return tmp_path / name

    first = write("a.csv", UNITS[0])
    for other in UNITS[1:]:
        message = command("prepare", first, write("b.csv", other), tmp_path / "both").err
        assert "Times are numbers in seconds (" in message
        assert "b.csv row 1: time is" in message
    rows = [f"{i},1,2020-01-01T00:{i % 60:02}:00Z" for i in range(400)]
    text = "\n".join(["query,candidate,when", *rows, "7,1,2020-01-02 00:00:00"])
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(DataError) as refused:
        load_table(tmp_path / "log.csv", columns={"time": "when"})
    for part in ("row 401: when is '2020-01-02 00:00:00'", "log.csv row 1: when is", "ISO 8601"):
        assert part in str(refused.value)


@pytest.mark.parametrize("frame", [dict, pd.DataFrame, pl.DataFrame])
def test_dates_of_several_kinds_in_memory(frame: Callable[[Any], Any]) -> None:
    noon, zoned = datetime(2020, 1, 1, 12), datetime(2020, 1, 1, tzinfo=UTC)

    def corpus(*times: Any) -> Corpus:
        return Corpus.of(frame({"query": [1, 2], "candidate": [3, 4], "time": times}))

    assert len(corpus(noon, noon)) == 2
    if frame is pl.DataFrame:  # which itself refuses or converts them
        return
    for times in ([noon, zoned], [zoned, noon], [date(2020, 1, 1), zoned]):
        with pytest.raises(DataError, match=r"row 2: time is '2020-01-01T"):
            corpus(*times)
    mixed = corpus(date(2020, 1, 1), noon).interactions["time"].to_pylist()
    assert mixed[1] - mixed[0] == 12 * 3600 * 10**6


def test_a_gzip_followed_by_zeros_is_read(tmp_path: Path) -> None:
    content = gzip.compress(b"query,candidate\n1,2\n") + bytes(512)
    (tmp_path / "a.csv.gz").write_bytes(content)
    (tmp_path / "w.csv.gz").write_bytes(gzip.compress(b"id,zip\n1,07\n") + bytes(512))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"1 2\n") + bytes(512))
    described = load_table(tmp_path / "a.csv.gz", query_features=tmp_path / "w.csv.gz")
    assert len(described) == 1
    for kind, name in (("table", "a.csv.gz"), ("adjacency_list", "a.txt.gz")):
        recipe = Recipe.of({"data": {"kind": kind, "path": str(tmp_path / name)}})
        assert len(load_corpus(recipe)) == 1


LINES = [[str(i), str(i % 4), "3", f"2020-01-{i:02}"] for i in range(1, 31)]
for line in LINES[::3]:
    line[0] = ""
LINES[4][1], LINES[5][2] = "NULL", "x"
NAMES: dict[str, str] = {"query": "user", "candidate": "item", "value": "stars", "time": "when"}
DIRTY = "\n".join(map(";".join, [NAMES.values(), *LINES]))
OPTIONS = [f"--column={role}={name}" for role, name in NAMES.items()]


@pytest.fixture
def dirty(tmp_path: Path) -> Path:
    (tmp_path / "log.csv").write_text(DIRTY)
    return tmp_path / "log.csv"


def assert_counted(text: str) -> None:
    """Assert that a text counts the bad rows by column and reason, with the first of each."""
    text = " ".join(text.split())
    assert "log.csv row 1: user is empty; it must be an id (10 such rows)" in text
    assert "log.csv row 5: item is 'NULL'; it must be an id" in text
    assert "log.csv row 6: stars is 'x'; it must be a number" in text


def test_bad_rows_are_counted_or_dropped_and_reported(
    dirty: Path, tmp_path: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    for refusal in (
        command("prepare", dirty, out, *OPTIONS).err,
        command.refused("init", dirty, "--out", tmp_path / "r.toml", *OPTIONS),
    ):
        assert_counted(refusal)
        assert "--drop-bad-rows" in refusal
    done = command("prepare", dirty, out, *OPTIONS, "--drop-bad-rows")
    assert "left out 12 bad rows" in done.out
    assert_counted(done.out)
    data = {"kind": "table", "path": str(dirty), "columns": NAMES, "bad_rows": "drop"}
    assert len(load_corpus(Recipe.of({"data": data}))) == 18
    assert_counted(caplog.text)
    assert len(load_corpus(Recipe.of({"data": {"kind": "prepared", "path": str(out)}}))) == 18
    columns = zip(NAMES.values(), zip(*LINES, strict=True), strict=True)
    table = {name: [None if c in ("", "NULL") else c for c in cells] for name, cells in columns}
    assert len(Corpus.of(table, bad_rows="drop", **NAMES)) == 18  # type: ignore[arg-type]
    dirty.write_text("query;candidate;value\n1;2;dear\n1;3;cheap\n")
    refusal = command.refused("init", dirty, "--out", tmp_path / "r.toml", "--drop-bad-rows")
    assert "log.csv row 1: value is 'dear'; it must be a number (2 such rows)" in refusal
    # No row would be left, so the advice is not to drop them.
    assert command.refused("init", dirty).endswith("(2 such rows). Correct them.\n")


@pytest.mark.parametrize("choice", ["refuse", "drop"])
def test_bad_rows_of_features_and_lists(choice: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("query,candidate\n1,5\n")
    (tmp_path / "f.csv").write_text("id,tag\n5,a\n,b\n")
    (tmp_path / "l.txt").write_text("1 2\n\n3 NULL\n")
    features = {"candidate_features": str(tmp_path / "f.csv")}
    for place, data in [
        ("f.csv row 2", {"kind": "table", "path": str(tmp_path / "x.csv"), **features}),
        ("l.txt row 2", {"kind": "adjacency_list", "path": str(tmp_path / "l.txt")}),
    ]:
        recipe = Recipe.of({"data": {**data, "bad_rows": choice}})
        if choice == "drop":
            assert len(load_corpus(recipe)) == 1
        else:
            with pytest.raises(DataError, match=place):
                load_corpus(recipe)
