"""The data of `--tiny`: a synthetic corpus of a few thousand pairs, and recipes for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from evergram.data.synthetic import generate

COMMON = """
[model]
dim = [4, 6]
[training]
epochs = 2
batch_size = 256
"""
RECIPES = {
    "random": """
name = "tiny-random"
[data]
kind = "table"
path = "pairs.parquet"
candidate_features = "features.parquet"
[split]
kind = "random"
share = 0.2
""",
    "given": """
name = "tiny-given"
[data]
kind = "table"
path = "train.parquet"
test = "test.parquet"
[split]
kind = "given"
share = 0.2
""",
}


@contextmanager
def recipes() -> Iterator[Path]:
    """Yield a folder with `random.toml` and `given.toml`, and the files that they refer to."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        corpus = generate(queries=120, candidates=80, interactions=4000).corpus
        table = corpus.interactions
        for side in ("query", "candidate"):
            table = table.set_column(
                table.column_names.index(side), side, table[side].cast(pa.int64())
            )
        pq.write_table(table, folder / "pairs.parquet")
        pq.write_table(table.slice(0, 3000), folder / "train.parquet")
        pq.write_table(table.slice(3000).select(["query", "candidate"]), folder / "test.parquet")
        ids = list(range(len(corpus.candidates)))
        kinds = [[f"kind {i % 5}", f"kind {i % 7}"] for i in ids]
        pq.write_table(pa.table({"id": ids, "kinds": kinds}), folder / "features.parquet")
        for kind, text in RECIPES.items():
            (folder / f"{kind}.toml").write_text(text + COMMON)
        yield folder
