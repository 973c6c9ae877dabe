"""A shop with a recipe for two versions, and a recipe of a comparison."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

RECIPE = """
name = "shop"
[data]
kind = "table"
path = "clicks.parquet"
[split]
versions = [0.5, 0.7]
kind = "time"
[model]
dim = [4, 6]
[task]
penalty = 2.0
l2 = 0.1
[training]
epochs = 2
batch_size = 64
"""


@pytest.fixture
def growing_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and a table of 4,000 clicks, by people of four tastes."""
    draw = random.Random(0)
    queries = [draw.randrange(200) for _ in range(4000)]
    rows = [(q, f"item{4 * draw.randrange(15) + q % 4}") for q in queries]
    table = pa.table(
        {
            "query": [q for q, _ in rows],
            "candidate": [c for _, c in rows],
            "time": range(4000),
        }
    )
    pq.write_table(table, tmp_path / "clicks.parquet")
    (tmp_path / "shop.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMPARISON = """
name = "tiny"
[data]
kind = "synthetic"
queries = 300
candidates = 200
interactions = 8000
[split]
kind = "time"
versions = [0.6, 0.7]
[model]
dim = [8, 12]
[task]
penalty = 5.0
l2 = 0.1
[training]
epochs = 3
batch_size = 256
table_rate = 0.1
metric = "recall@50"
[compare]
methods = ["keep-all", "non-bc", "bc-aligner"]
hidden = [16]
dropout = [0.0]
consumers = 2
epochs = 5
minimum_ratings = 5
"""


@pytest.fixture
def compare_recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(COMPARISON)
    return path
