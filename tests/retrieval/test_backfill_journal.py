"""The files of a backfill: damage is noticed before a row is taken from one."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from tests.support.older_stores import older_store, vectors_by_id

from evergram.errors import IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfill import Backfill
from evergram.retrieval.backfill_journal import write_table

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
