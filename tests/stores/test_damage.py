"""A bit of a file is flipped: an error, or a row that is missed, but never a wrong vector."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import as_dict

from evergram.errors import IntegrityError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows, Space


@pytest.mark.long
@pytest.mark.parametrize("kind", ["lance", "qdrant", "sqlite"])
def test_no_wrong_vector_comes_out_of_a_damaged_folder(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / kind
    inside = "/emb.db" if kind == "sqlite" else ""
    address = f"{kind}:{folder}{inside}#emb"
    vectors = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    with open_store(address, create="int64") as store:
        store.add_space(Space(0, 8, "sha256:zero"))
        store.add_space(Space(1, 6, "sha256:one"))
        store.upsert(Rows(0, pa.array(range(200)), vectors))
        store.upsert(Rows(1, pa.array(range(100, 130)), vectors[:30, :6].copy()))
        written = as_dict(store.scan())
        store.delete(range(10))
        truth = as_dict(store.scan())
    # Lance has no checksum of which rows are removed: one may come back, as it was.
    allowed = written if kind == "lance" else truth
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
    chance = random.Random(0)
    errors = 0
    for _ in range(100):
        file = chance.choice(files)
        whole = file.read_bytes()
        place = chance.randrange(len(whole))
        flipped = whole[place] ^ 1 << chance.randrange(8)
        file.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        try:
            with open_store(address) as store:
                fetched = as_dict(store.fetch(range(200)))
            assert fetched.items() <= allowed.items()
        except (StoreError, IntegrityError):
            errors += 1
        file.write_bytes(whole)
    assert errors
    with open_store(address) as store:
        assert as_dict(store.scan()) == truth
