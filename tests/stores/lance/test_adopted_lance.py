"""What only a table of one's own in LanceDB has: precisions, NaNs, states, and tables made anew."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from tests.support.lineages import DIMS, lineage_of, vectors_of

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.retrieval.reader import Reader
from evergram.stores.lance.table_state import TableState, read_state
from evergram.stores.open_store import open_store

QUERY = {0: np.ones((1, DIMS[0]), np.float32)}


def vectors(
    rows: int = 20, kind: pa.DataType | None = None, values: np.ndarray | None = None
) -> pa.Array:
    block = vectors_of(0, rows).numpy() if values is None else values
    flat = pa.array(block.reshape(-1)).cast(kind or pa.float32(), safe=False)
    return pa.FixedSizeListArray.from_arrays(flat, block.shape[1])


def table(folder: Path, name: str = "mine", **columns: Any) -> Any:
    """Make a table, with the columns `id` and `e0` unless they are among the others."""
    rows = len(next(iter(columns.values()))) if columns else 20
    every = {"id": pa.array(range(rows)), "e0": vectors(rows), **columns}
    return lancedb.connect(folder).create_table(name, pa.table(every), on_bad_vectors="null")


@pytest.mark.parametrize("kind", [pa.float16(), pa.float64()])
def test_vectors_of_other_precisions(kind: pa.DataType, tmp_path: Path) -> None:
    table(tmp_path / "own", id=pa.array(range(300)), e0=vectors(300, kind))
    lineage = lineage_of(tmp_path / "line", 1, canaries=2)
    address = f"lance-table:{tmp_path}/own#table=mine&v0=e0"
    with closing(Reader.open(lineage, {"object": address})) as reader:
        query = vectors_of(0).numpy()[17]
        assert reader.search(query, 1, 0, metric="l2")[0].ids.to_pylist() == [17]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_a_vector_that_is_not_finite_is_refused_wherever_it_is(tmp_path: Path, bad: float) -> None:
    values = vectors_of(0, 20).numpy().astype(np.float64)
    values[7, 2] = bad
    table(tmp_path, id=pa.array(range(20)), e0=vectors(20, pa.float64(), values))
    with open_store(f"lance-table:{tmp_path}#table=mine&v0=e0") as store:
        for read in (
            lambda: store.fetch([7]),
            lambda: list(store.scan()),
            lambda: store.search(QUERY, 1),
        ):
            with pytest.raises(
                IntegrityError, match=r"vector of id 7 .* is not finite; correct it"
            ):
                read()


def test_a_view_is_of_one_moment_and_the_next_sees_what_was_written(tmp_path: Path) -> None:
    mine = table(tmp_path)
    with open_store(f"lance-table:{tmp_path}#table=mine&v0=e0") as store:

        def look(view: Any) -> int:
            before = view.count()[0]
            mine.delete("id >= 10")
            assert len(view.search(QUERY, 99)[0]) == before
            return int(before)

        assert store.read_consistently(look) == 20
        assert store.read_consistently(lambda view: view.count()) == {0: 10}


@pytest.mark.parametrize("writes", [0, 3])
def test_a_table_that_was_made_anew_is_compared_again(writes: int, tmp_path: Path) -> None:
    """It has the version numbers of the one before, or lower ones."""
    lineage = lineage_of(tmp_path / "line", 1)
    ids = pa.array(range(300))
    mine = table(tmp_path / "own", id=ids, e0=vectors(300))
    for _ in range(writes):
        mine.add(pa.table({"id": pa.array([999]), "e0": vectors(1)}))
        mine.delete("id = 999")
    database = lancedb.connect(tmp_path / "own")
    address = f"lance-table:{tmp_path / 'own'}#table=mine&v0=e0"
    with closing(Reader.open(lineage, {"object": address})) as reader:
        query = vectors_of(0)[7].numpy()
        before = reader.search(query, 3)[0].ids
        for _ in range(2):
            database.drop_table("mine")
            other = vectors(values=-vectors_of(0, 300).numpy())
            database.create_table("mine", pa.table({"id": ids, "e0": other}))
            for read in (
                lambda: reader.search(query, 3),
                lambda: reader.embed([7]),
                lambda: list(reader.store().scan()),
            ):
                with pytest.raises(IntegrityError, match="200 of 200 vectors"):
                    read()
            database.drop_table("mine")
            database.create_table("mine", pa.table({"id": ids, "e0": vectors(300)}))
            assert reader.search(query, 3)[0].ids.equals(before)
            assert reader.embed([7]).sources.tolist() == [0]
            (rows,) = reader.store().scan()
            assert len(rows) == 300
        database.drop_table("mine")
        for read in (lambda: reader.search(query, 3), lambda: reader.embed([7])):
            with pytest.raises((DataError, StoreError)):
                read()


DATA = pa.table({"id": [1, 2]})


def test_the_names_of_both_namings_are_read(tmp_path: Path) -> None:
    assert read_state(tmp_path, 3) == TableState(3, None)
    (tmp_path / "_versions").mkdir()
    (tmp_path / "_versions" / "3.manifest").write_bytes(b"12")
    old = read_state(tmp_path, 3)
    assert old.manifest is not None
    assert old.manifest[2] == 2
    (tmp_path / "_versions" / "18446744073709551612.manifest").write_bytes(b"123")
    assert read_state(tmp_path, 3) != old
