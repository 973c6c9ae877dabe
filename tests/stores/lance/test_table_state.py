"""A table that is made anew has another state, though LanceDB counts its versions again."""

from __future__ import annotations

from pathlib import Path

import lancedb
import pyarrow as pa

from evergram.stores.lance.table_state import TableState, read_state

DATA = pa.table({"id": [1, 2]})


def test_a_state_changes_with_writes_and_with_the_table(tmp_path: Path) -> None:
    database, folder = lancedb.connect(tmp_path), tmp_path / "t.lance"
    table = database.create_table("t", DATA)
    first = read_state(folder, table.version)
    assert first.manifest is not None
    assert read_state(folder, table.version) == first
    table.add(DATA)
    assert read_state(folder, table.version) != first
    assert read_state(folder, 1) == first
    database.drop_table("t")
    table = database.create_table("t", DATA)
    again = read_state(folder, table.version)
    assert again.version == first.version
    assert again != first


def test_the_names_of_both_namings_are_read(tmp_path: Path) -> None:
    assert read_state(tmp_path, 3) == TableState(3, None)
    (tmp_path / "_versions").mkdir()
    (tmp_path / "_versions" / "3.manifest").write_bytes(b"12")
    old = read_state(tmp_path, 3)
    assert old.manifest is not None
    assert old.manifest[2] == 2
    (tmp_path / "_versions" / "18446744073709551612.manifest").write_bytes(b"123")
    assert read_state(tmp_path, 3) != old
