"""The examples of docs/engines.md, each run in a process of its own on the real engine."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.lineages import DIMS, lineage_of, read_as, vectors_of

from evergram.vector_files.writers import write_vectors

PAGE = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
# By section: the packages that it needs.
ENGINES = {
    "DuckDB": ["duckdb"],
    "Polars": ["polars"],
    "Ray Data": ["ray"],
    "Daft": ["daft"],
    "Spark": ["pysail", "pyspark"],
}
SLOW = {"Ray Data", "Spark"}
# These take the vectors themselves; and what must hold after their example.
TAKERS = {
    "MLflow": (
        ["mlflow", "pandas"],
        "assert answer['id'].tolist() == [12, 7] and len(answer['vector'][0]) == 6\n",
    ),
    "Feast": (
        ["feast"],
        "tags = FeatureStore('features').get_feature_view('shop_v0').tags\n"
        "assert tags['evergram_version'] == '0'\n",
    ),
}
FEAST_REPOSITORY = """\
project: shop
registry: registry.db
provider: local
online_store: {type: sqlite, path: online.db}
entity_key_serialization_version: 3
"""
ROWS = 300
# None of them may report that it was used.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "DAFT_ANALYTICS_ENABLED": "0", "DO_NOT_TRACK": "true"}


def sections() -> dict[str, str]:
    """The Python of each section of the page, by its heading; of the text above them by ""."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    named = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    blocks = {
        name: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for name, text in named.items()
    }
    return {name: block for name, (block,) in blocks.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lineage `shop`, and vectors of its newest version."""
    lineage_of(tmp_path / "shop")
    write_vectors(tmp_path / "vectors.parquet", [(pa.array(range(ROWS)), vectors_of(2))])
    return tmp_path


def run(code: str, folder: Path) -> None:
    # A file, as pyspark takes a program of `-c` for a shell of its own and looks for a JVM.
    (folder / "example.py").write_text(code)
    subprocess.run(
        [sys.executable, "example.py"],
        cwd=folder,
        env={**os.environ, **QUIET},
        check=True,
        timeout=500,
        stdout=subprocess.PIPE,
    )


def test_the_page_has_every_engine() -> None:
    assert set(sections()) == {"", *ENGINES, *TAKERS}


@pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=pytest.mark.long if e in SLOW else ()) for e in ENGINES]
)
def test_an_engine_writes_the_vectors_of_the_past_version(engine: str, folder: Path) -> None:
    for package in ENGINES[engine]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; pip install 'evergram[engines]' has it")
    run(sections()[engine], folder)
    table = pq.read_table(folder / "as_v0.parquet").sort_by("id")
    assert table["id"].to_pylist() == list(range(ROWS))
    vectors = np.array(table["vector"].to_pylist())
    assert vectors.shape == (ROWS, DIMS[0])
    np.testing.assert_allclose(vectors, read_as(2, 0).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("taker", TAKERS)
def test_a_taker_of_vectors_takes_them(taker: str, folder: Path) -> None:
    packages, check = TAKERS[taker]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; the extra {taker.lower()} has it")
    (folder / "features").mkdir()
    (folder / "features" / "feature_store.yaml").write_text(FEAST_REPOSITORY)
    run(sections()[taker] + check, folder)


def test_the_first_example_makes_functions_of_vectors_and_of_ids(folder: Path) -> None:
    check = (
        "import pyarrow as pa\n"
        "by_id = named(pa.table({'id': [3, -1]}))['vector'].to_pylist()\n"
        "stored = pa.array([view.embeddings('object')[1][3].tolist()])\n"
        "assert by_id[1] is None\n"
        "assert [round(x, 4) for x in by_id[0]] == [round(x, 4) for x in stored[0].as_py()]\n"
        "import pickle; assert len(pickle.dumps(as_v0)) < 600\n"
    )
    run(sections()[""] + check, folder)
