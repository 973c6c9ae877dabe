"""An append keeps what is there, and refuses what would change it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.prepared_folders import entities, pairs_of_ids

from evergram.data.prepared.prepared_record import PreparedRecord
from evergram.data.prepared.writing import earlier_parts
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.errors import DataError

FIRST = pa.table({"query": [1, 2, 1], "candidate": [5, 5, 6], "time": [10, 20, 30]})
LATER = pa.table({"query": [2, 3], "candidate": [7, 5], "time": [30, 40]})


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


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"time": [29, 40]}, r"begins at 29, before the end of .* at 30 \(1 interactions"),
        ({"time": [30.5, 40.0]}, "times of .* are integers"),
        ({"query": ["a", "b"]}, "query ids of .* are integers"),
        ({"value": [1.0, 2.0]}, "has the columns query, candidate, time, and what is appended"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, columns: dict[str, list[object]], why: str
) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)
    before = content(out)
    changed = pa.table(LATER.to_pydict() | columns)
    with pytest.raises(DataError, match=why):
        prepare(changed, out, append=True)
    assert content(out) == before


def test_times_of_another_unit_are_refused(tmp_path: Path) -> None:
    out, seconds = tmp_path / "out", pa.array([1_700_000_000, 1_700_000_100])
    prepare(pa.table({"query": [1, 2], "candidate": [1, 2], "time": seconds}), out)
    dates = seconds.cast(pa.timestamp("s"))
    with pytest.raises(DataError, match=r"numbers in seconds at .*, and dates without a time zone"):
        prepare(pa.table({"query": [1, 2], "candidate": [1, 2], "time": dates}), out, append=True)


@pytest.mark.parametrize("name", ["unique", "shared_ids", "k_core", "minimum_value"])
def test_settings_of_the_first_part_hold(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    prepare(FIRST, out)
    value: Any = 2 if name in ("k_core", "minimum_value") else True
    changed = PrepareSettings(**{name: value})
    with pytest.raises(DataError, match=f"with {name} = .*--overwrite"):
        prepare(LATER, out, changed, append=True)


def test_names_of_columns_are_kept(tmp_path: Path) -> None:
    names = ["user", "film", "time"]
    columns = {"query": "user", "candidate": "film"}
    prepare(FIRST.rename_columns(names), tmp_path / "out", PrepareSettings(columns=columns))
    prepare(LATER.rename_columns(names), tmp_path / "out", append=True)
    assert pairs_of_ids(tmp_path / "out") == [(1, 5), (2, 5), (1, 6), (2, 7), (3, 5)]


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
