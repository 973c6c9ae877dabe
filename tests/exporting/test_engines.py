"""A view's vectors in other engines: Arrow functions, and the page's examples."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.lineages import DIMS, lineage_of, publish, read_as, vectors_of
from tests.support.optional import need
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DataError, LineageError, ShapeError
from evergram.exporting.arrow_function import arrow_function
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.vector_files.open_embeddings import write_vectors

ROWS = 300


def lists(vectors: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])


def matrix(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return np.array(column.to_pylist(), dtype=np.float32)


NEWEST = vectors_of(2).numpy()
AS_0 = read_as(2, 0).numpy()
KINDS = {
    "fixed": (pa.list_(pa.float32(), DIMS[2]), pa.table),
    "list": (pa.list_(pa.float32()), pa.record_batch),
    "large": (pa.large_list(pa.float64()), pa.table),
}


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_any_list_are_read_as_the_past_version(lineage: Lineage, kind: str) -> None:
    function = arrow_function(lineage.view(0))
    lists_of, form = KINDS[kind]
    batch = form({"vector": lists(NEWEST).cast(lists_of), "day": ["Mon"] * ROWS})
    read = function(batch)
    assert type(read) is type(batch)
    assert read.schema == function.schema(batch.schema)
    assert read.schema.field("vector").type == pa.list_(pa.float32(), DIMS[0])
    assert read["day"].to_pylist() == ["Mon"] * ROWS
    np.testing.assert_allclose(matrix(read["vector"]), AS_0, rtol=1e-5, atol=1e-5)


def test_a_stream_is_rewritten_batch_by_batch(lineage: Lineage) -> None:
    batches = pa.table({"vector": lists(NEWEST)}).to_batches(max_chunksize=64)
    read_so_far: list[int] = []

    def counted() -> object:
        for batch in batches:
            read_so_far.append(batch.num_rows)
            yield batch

    source = pa.RecordBatchReader.from_batches(batches[0].schema, counted())
    stream = arrow_function(lineage.view(0)).reader(source)
    assert stream.read_next_batch().num_rows == 64
    assert read_so_far == [64]
    assert stream.read_all().num_rows == ROWS - 64


def test_it_is_pickled_by_reference_and_opened_elsewhere(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(arrow_function(Lineage.open("line").view(0)))
    assert len(pickled) < 600
    monkeypatch.chdir("/")
    column = pa.array([NEWEST[5].tolist(), None], pa.list_(pa.float32()))
    read = pickle.loads(pickled)(pa.table({"vector": column}))["vector"]
    assert read.to_pylist()[1] is None
    np.testing.assert_allclose(matrix(read[:1]), AS_0[[5]], rtol=1e-5, atol=1e-5)


NO_VECTORS = {
    "no column": (pa.table({"z": lists(NEWEST)}), DataError, "no column 'vector'"),
    "no list": (pa.table({"vector": [1.0]}), DataError, "is double"),
    "integers": (pa.table({"vector": [[1] * 10]}), DataError, "has lists of int64"),
    "another dim": (pa.table({"vector": lists(NEWEST[:, :6].copy())}), ShapeError, "has 6 numbers"),
    "a null": (pa.table({"vector": [[None, 1.0] * 5]}), DataError, "contains a null"),
    "a NaN": (pa.table({"vector": lists(NEWEST * np.nan)}), DataError, "'vector'.*a NaN"),
    "too large": (
        pa.table({"id": ["a", "b"], "vector": lists(np.full((2, 10), [[0.0], [1e300]]))}),
        *(DataError, r"Row 2 of a batch: its vector \(column 'vector'\) .*\(1e\+300\)"),
    ),
    "two columns": (
        pa.table([lists(NEWEST), lists(NEWEST)], names=["vector", "vector"]),
        *(DataError, "2 columns 'vector'"),
    ),
}


@pytest.mark.parametrize("case", NO_VECTORS)
def test_what_is_no_vector_of_the_version_is_refused(lineage: Lineage, case: str) -> None:
    table, error, message = NO_VECTORS[case]
    with pytest.raises(error, match=message):
        arrow_function(lineage.view(0))(table)


def test_what_would_overflow_in_the_past_version_is_refused(tmp_path: Path) -> None:
    # Version 1 is read as version 0 by numbers too large for float32.
    lineage = publish(Lineage.create(tmp_path / "line"), 0, 20)
    back = LinearTransform.from_matrix(1e26 * torch.eye(DIMS[0]))
    sides = {"object": (pa.array(range(20)), 1e14 * (1 + vectors_of(0, 20).abs()))}
    publish_next(lineage, Artefact(DIMS[0], sides, back, {"metrics": {"model": {}}}, {}))
    view = lineage.view(0)
    large = np.full((1, DIMS[0]), 3e38, dtype=np.float32)
    column = pa.array([None, large[0].tolist()], pa.list_(pa.float32()))
    too_large = r"\(column 'vector'\) has numbers as large as \S+, and reading it as version 0"
    with pytest.raises(DataError, match=rf"Row 2 of a batch: its vector {too_large}"):
        arrow_function(view)(pa.table({"vector": column}))
    with pytest.raises(DataError, match=r"Row 1 has numbers up to 3e\+38"):
        view.transform(large)
    with pytest.raises(DataError, match=rf"row 1 \(id 0\): its vector {too_large}"):
        view.export(tmp_path / "z.parquet", "object")
    assert not (tmp_path / "z.parquet").exists()


def test_another_lineage_at_its_place_and_other_lists_are_refused(tmp_path: Path) -> None:
    view = lineage_of(tmp_path / "line").view(0)
    with pytest.raises(DataError, match="'long'"):
        arrow_function(view, lists="long")  # type: ignore[arg-type]
    function = arrow_function(view)
    shutil.rmtree(tmp_path / "line")
    publish(publish(Lineage.create(tmp_path / "line", "other"), 0, 20), 1, 20)
    publish(Lineage.open(tmp_path / "line"), 2, 20)
    with pytest.raises(LineageError, match="another fingerprint"):
        function(pa.table({"vector": lists(NEWEST)}))


PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
# By section: the packages that it needs, and whether they take a process of their own.
ENGINES = {
    "DuckDB": (["duckdb"], False),
    "Polars": (["polars"], False),
    "Ray Data": (["ray"], True),
    "Daft": (["daft"], True),
    "Spark": (["pysail", "pyspark"], True),
}


def sections() -> dict[str, str]:
    """The Python of each section of the page, by its heading; of the text above them by ""."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)
    named = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    blocks = {
        name: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for name, text in named.items()
    }
    return {name: block for name, (block,) in blocks.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lineage `shop`, and vectors of its newest version."""
    lineage_of(tmp_path / "shop")
    write_vectors(tmp_path / "vectors.parquet", [(pa.array(range(ROWS)), vectors_of(2))])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "engine",
    [pytest.param(e, marks=pytest.mark.long if slow else ()) for e, (_, slow) in ENGINES.items()],
)
def test_an_engine_writes_the_vectors_of_the_past_version(engine: str, folder: Path) -> None:
    packages, own_process = ENGINES[engine]
    need(*packages)
    code = sections()[engine]
    if own_process:
        # A file, as pyspark takes a program of `-c` for a shell of its own and looks for a JVM.
        (folder / "example.py").write_text(code)
        # None of them may report that it was used.
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "DAFT_ANALYTICS_ENABLED": "0"}
        environment = {**os.environ, **quiet, "DO_NOT_TRACK": "true"}
        subprocess.run([sys.executable, "example.py"], env=environment, check=True, timeout=500)
    else:
        exec(code, {})
    table = pq.read_table(folder / "as_v0.parquet").sort_by("id")
    assert table["id"].to_pylist() == list(range(ROWS))
    np.testing.assert_allclose(matrix(table["vector"]), AS_0, rtol=1e-5, atol=1e-5)


def test_the_first_example_makes_a_function_of_vectors(folder: Path) -> None:
    made: dict[str, Any] = {}
    exec(sections()[""], made)
    read = made["as_v0"](pa.table({"vector": lists(NEWEST)}))
    np.testing.assert_allclose(matrix(read["vector"]), AS_0, rtol=1e-5, atol=1e-5)
