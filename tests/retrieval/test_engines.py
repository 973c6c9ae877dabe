"""A view's vectors in other engines: Arrow functions, the page's examples, Feast and MLflow."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.lineages import DIMS, lineage_of, publish, read_as, vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DataError, LineageError, ShapeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.retrieval import ArrowFunction
from evergram.vector_files.shards import Shards
from evergram.vector_files.writers import write_vectors

ROWS = 300


def lists(vectors: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])


def matrix(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return np.array(column.to_pylist(), dtype=np.float32)


NEWEST = vectors_of(2).numpy()

AS_0 = read_as(2, 0).numpy()

KINDS = {
    "fixed": pa.list_(pa.float32(), DIMS[2]),
    "list": pa.list_(pa.float32()),
    "large": pa.large_list(pa.float64()),
}


@pytest.mark.parametrize(
    ("kind", "form"), [("fixed", pa.table), ("list", pa.record_batch), ("large", pa.table)]
)
def test_vectors_of_any_list_are_read_as_the_past_version(
    lineage: Lineage, kind: str, form: type
) -> None:
    function = lineage.view(0).arrow_function()
    batch = form({"vector": lists(NEWEST).cast(KINDS[kind]), "day": ["Mon"] * ROWS})
    read = function(batch)
    assert type(read) is type(batch)
    assert read.schema == function.schema(batch.schema)
    assert read.schema.field("vector").type == pa.list_(pa.float32(), DIMS[0])
    assert read["day"].to_pylist() == ["Mon"] * ROWS
    np.testing.assert_allclose(matrix(read["vector"]), AS_0, rtol=1e-5, atol=1e-5)


def test_ids_get_the_stored_vectors_and_unknown_ones_a_null(lineage: Lineage) -> None:
    function = lineage.view(0).arrow_function("object", id_column="page", vector_column="z")
    read = function(pa.table({"page": pa.array([7, None, 1000, 299], pa.int32())}))
    assert read.schema.names == ["page", "z"]
    assert [v is None for v in read["z"].to_pylist()] == [False, True, True, False]
    kept = matrix(read["z"].drop_null())
    np.testing.assert_allclose(kept, AS_0[[7, 299]], rtol=1e-5, atol=1e-5)
    none = function(pa.record_batch({"page": pa.array([], pa.int32())}))
    assert (none.num_rows, none.schema) == (0, read.schema)


def test_a_stream_is_rewritten_batch_by_batch(lineage: Lineage) -> None:
    batches = pa.table({"vector": lists(NEWEST)}).to_batches(max_chunksize=64)
    read_so_far: list[int] = []

    def counted() -> object:
        for batch in batches:
            read_so_far.append(batch.num_rows)
            yield batch

    source = pa.RecordBatchReader.from_batches(batches[0].schema, counted())
    stream = lineage.view(0).arrow_function().reader(source)
    assert stream.read_next_batch().num_rows == 64
    assert read_so_far == [64]
    assert stream.read_all().num_rows == ROWS - 64


def test_it_is_pickled_by_reference_and_opened_elsewhere(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function = Lineage.open("line").view(0).arrow_function("object")
    pickled = pickle.dumps(function)
    assert len(pickled) < 600
    (tmp_path / "function").write_bytes(pickled)
    program = (
        "import pickle, sys, pyarrow as pa\n"
        f"f = pickle.loads(open({str(tmp_path / 'function')!r}, 'rb').read())\n"
        "print(f(pa.table({'id': [5]}))['vector'].to_pylist()[0])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd="/", capture_output=True, text=True, check=True
    )
    np.testing.assert_allclose(eval(run.stdout), AS_0[5], rtol=1e-5, atol=1e-5)


NO_VECTORS = {
    "no column": (pa.table({"z": lists(NEWEST)}), DataError, "no column 'vector'"),
    "no list": (pa.table({"vector": [1.0]}), DataError, "is double"),
    "integers": (pa.table({"vector": [[1] * 10]}), DataError, "holds int64"),
    "another dim": (pa.table({"vector": lists(NEWEST[:, :6].copy())}), ShapeError, "has 6 numbers"),
    "a null": (
        pa.table({"vector": pa.array([[None] * 10], pa.list_(pa.float32()))}),
        DataError,
        "a null in it",
    ),
    "a NaN": (
        pa.table({"vector": lists(NEWEST * np.float32("nan"))}),
        DataError,
        "column 'vector'.*a NaN",
    ),
    "too large": (
        pa.table({"id": ["a", "b"], "vector": lists(np.full((2, 10), [[0.0], [1e300]]))}),
        DataError,
        r"Row 2 of a batch \(id 'b'\): its vector \(column 'vector'\) has .*\(1e\+300\)",
    ),
    "two columns": (
        pa.table([lists(NEWEST), lists(NEWEST)], names=["vector", "vector"]),
        DataError,
        "2 columns 'vector'",
    ),
}


@pytest.mark.parametrize("case", NO_VECTORS)
def test_what_is_no_vector_of_the_version_is_refused(lineage: Lineage, case: str) -> None:
    table, error, message = NO_VECTORS[case]
    with pytest.raises(error, match=message):
        lineage.view(0).arrow_function()(table)


def growing(folder: Path) -> Lineage:
    """Version 1 is read as version 0 by numbers too large for float32."""
    lineage = publish(Lineage.create(folder), 0, 20)
    back = LinearTransform.from_matrix(1e26 * torch.eye(DIMS[0]))
    sides = {"object": (pa.array(range(20)), 1e14 * (1 + vectors_of(0, 20).abs()))}
    publish_next(lineage, Artefact(DIMS[0], sides, back, {"metrics": {"model": {}}}, {}))
    return lineage


def test_what_would_overflow_in_the_past_version_is_refused(tmp_path: Path) -> None:
    view = growing(tmp_path / "line").view(0)
    large = np.full((1, DIMS[0]), 3e38, dtype=np.float32)
    column = pa.array([None, large[0].tolist()], pa.list_(pa.float32()))
    too_large = r"\(column 'vector'\) has numbers as large as \S+, and read as version 0"
    with pytest.raises(DataError, match=rf"Row 2 of a batch: its vector {too_large}"):
        view.arrow_function()(pa.table({"vector": column}))
    with pytest.raises(DataError, match=r"\(id 7\): the stored vector .*\(column 'id'\)"):
        view.arrow_function("object")(pa.table({"id": [7]}))
    with pytest.raises(DataError, match=r"Row 1 has numbers as large as 3e\+38"):
        view.transform(large)
    for write in (
        lambda: view.export(tmp_path / "z.parquet", "object"),
        lambda: view.export_shards(Shards(tmp_path / "z", 2), "object"),
    ):
        with pytest.raises(DataError, match=rf"row 1 \(id 0\): its vector {too_large}"):
            write()
    assert not (tmp_path / "z.parquet").exists()


def test_another_lineage_at_its_place_is_refused(tmp_path: Path) -> None:
    function = lineage_of(tmp_path / "line").view(0).arrow_function()
    shutil.rmtree(tmp_path / "line")
    publish(publish(Lineage.create(tmp_path / "line", "other"), 0, 20), 1, 20)
    publish(Lineage.open(tmp_path / "line"), 2, 20)
    with pytest.raises(LineageError, match="another fingerprint"):
        function(pa.table({"vector": lists(NEWEST)}))


def test_a_side_that_is_not_there_is_refused_when_it_is_made(lineage: Lineage) -> None:
    with pytest.raises(LineageError, match="no side 'candidate'"):
        lineage.view(0).arrow_function("candidate")
    with pytest.raises(DataError, match="no kind of lists"):
        lineage.view(0).arrow_function(lists="long")  # type: ignore[arg-type]
    assert isinstance(lineage.view(0).arrow_function(), ArrowFunction)


PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()

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
