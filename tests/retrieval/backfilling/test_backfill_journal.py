"""The files of a backfill: damage is noticed before a row is taken from one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.older_stores import older_store, vectors_by_id

from evergram.errors import IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.backfilling.backfill_journal import (
    journal_rows,
    not_in_journals,
    read_order,
    write_journal,
    write_table,
)
from evergram.stores.rows import Rows

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


def test_a_flipped_bit_in_a_journal_is_noticed_before_a_row_is_put_back(lineage: Lineage) -> None:
    store = older_store(lineage)
    before = vectors_by_id(store)
    work = Backfill(lineage, store, "object")
    work.plan(batch=400)
    work.apply()
    after = vectors_by_id(store)
    path = next((work.folder / "journal").glob("*.sealed"))
    whole = path.read_bytes()
    noticed = 0
    draw = np.random.default_rng(0)
    for at in draw.integers(0, len(whole), 200):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(draw.integers(8))
        path.write_bytes(flipped)
        try:
            work.rollback()
        except IntegrityError:
            noticed += 1
        for key, vector in vectors_by_id(store).items():
            assert any(np.array_equal(vector, known[key]) for known in (before, after))
    assert noticed == 200


def test_a_table_of_another_form_is_an_error(lineage: Lineage) -> None:
    work = Backfill(lineage, older_store(lineage), "object")
    work.plan()
    write_table(work.folder / "order.sealed", pa.table({"key": [1]}))
    with pytest.raises(IntegrityError, match=r"order\.sealed is no table of a backfill"):
        work.apply()
    content = b"no table of Arrow's"
    sealed = hashlib.sha256(content).digest() + content
    (work.folder / "order.sealed").write_bytes(sealed)
    with pytest.raises(IntegrityError, match=r"order\.sealed is no table of a backfill"):
        work.apply()


def test_rows_of_several_versions_are_read_as_they_were_written(tmp_path: Path) -> None:
    parts = [
        Rows(2, pa.array(["c"]), np.array([[1, 2, 3]], np.float32)),
        Rows(0, pa.array(["a", "b"]), np.array([[4, 5], [6, 7]], np.float32)),
    ]
    write_journal(tmp_path / "j.sealed", parts)
    first, second = journal_rows(tmp_path / "j.sealed")
    for read, written in ((first, parts[1]), (second, parts[0])):
        assert (read.version, read.ids.to_pylist()) == (written.version, written.ids.to_pylist())
        assert np.array_equal(read.vectors, written.vectors)


def test_only_rows_that_no_journal_has_with_the_same_vector_are_kept_again(tmp_path: Path) -> None:
    kept = Rows(1, pa.array([1, 2, 3]), np.eye(3, dtype=np.float32))
    write_journal(tmp_path / "j.sealed", [kept])
    changed = kept.vectors.copy()
    changed[1] = 7
    now = [
        Rows(1, pa.array([1, 2, 4]), np.stack([changed[0], changed[1], changed[2]])),
        Rows(0, pa.array([3]), kept.vectors[2:]),
    ]
    fresh = not_in_journals(now, [tmp_path / "j.sealed"])
    assert [(rows.version, rows.ids.to_pylist()) for rows in fresh] == [(1, [2, 4]), (0, [3])]
    assert not_in_journals([kept], [tmp_path / "j.sealed"]) == []


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"none\.sealed cannot be read: .*Plan again"):
        read_order(tmp_path / "none.sealed")
