"""A small shop: a table of clicks with a recipe of it, and two files of vectors."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

RECIPE = """
name = "shop"
[data]
kind = "table"
path = "clicks.parquet"
[model]
dim = 4
[training]
epochs = 1
batch_size = 64
"""


def click_pairs(rows: int = 600) -> list[tuple[int, int]]:
    draw = random.Random(0)
    return [(draw.randrange(40), draw.randrange(30)) for _ in range(rows)]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and a table of 600 clicks, which is where the command runs."""
    columns = {
        "query": [q for q, _ in click_pairs()],
        "candidate": [f"item{c}" for _, c in click_pairs()],
    }
    pq.write_table(pa.table(columns), tmp_path / "clicks.parquet")
    (tmp_path / "shop.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def vector_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of vectors of the same objects, the second a turn of the first."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    old = draw.normal(size=(300, 4)).astype(np.float32)
    new = old @ np.linalg.qr(draw.normal(size=(4, 4)))[0].astype(np.float32)
    for name, vectors in (("old", old), ("new", new)):
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4)
        table = pa.table({"id": [f"id{i}" for i in range(300)], "vector": column})
        pq.write_table(table, f"{name}.parquet")
    return tmp_path
