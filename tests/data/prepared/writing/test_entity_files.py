"""Entities are uncompressed Arrow files in the order of rows, readable without a copy."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.prepared_folders import entities

from evergram.data.prepared.engine import database
from evergram.data.prepared.writing.prepare import prepare
from evergram.data.prepared.writing.settings import PrepareSettings


def test_the_file_is_mapped_without_a_copy(tmp_path: Path) -> None:
    prepare(pa.table({"query": [4, 2, 4], "candidate": ["x", "y", "x"]}), tmp_path / "out")
    before = pa.total_allocated_bytes()
    with pa.memory_map(str(tmp_path / "out" / "query.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
        assert pa.total_allocated_bytes() == before
        assert table.to_pydict() == {"id": [4, 2], "count": [2, 1]}
        assert table.schema.types == [pa.int64(), pa.int64()]


@pytest.mark.parametrize("fetched", [2, 1 << 17])
def test_many_batches_are_one_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: int
) -> None:
    """Over two parts: counts are added, features of the first part stay, all in order of rows."""
    monkeypatch.setattr(database, "FETCHED", fetched)
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


def test_shared_ids_have_two_counts(tmp_path: Path) -> None:
    links = pa.table({"query": [1, 2], "candidate": [2, 3]})
    prepare(links, tmp_path / "out", PrepareSettings(shared_ids=True))
    names = sorted(path.name for path in (tmp_path / "out").glob("*.arrow"))
    assert names == ["entities.arrow"]
    assert entities(tmp_path / "out", "query")["count"].to_pylist() == [1, 1, 0]
    assert entities(tmp_path / "out", "candidate")["count"].to_pylist() == [0, 1, 1]
