"""The layout of a lineage's own files of embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.vector_blocks import TEXT, blocks_of
from torch import Tensor

from evergram.errors import DataError
from evergram.vector_files.parquet import (
    read_embeddings,
    vectors_from_arrow,
    vectors_to_arrow,
    write_embeddings,
)

VECTORS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_blocks_of_any_size_make_one_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "e.parquet"
    assert write_embeddings(path, blocks_of(TEXT, VECTORS, size), {"key": "value"}) == 5
    ids, vectors = read_embeddings(path)
    assert ids.to_pylist() == TEXT
    assert torch.equal(vectors, VECTORS)
    schema = pq.read_schema(path)
    assert schema.field("vector").type == pa.list_(pa.float32(), 3)
    assert schema.metadata[b"key"] == b"value"


def test_a_failure_or_nothing_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    write_embeddings(path, blocks_of(TEXT, VECTORS, 5))
    before = path.read_bytes()

    def failing() -> Iterator[tuple[pa.Array, Tensor]]:
        yield pa.array(["a"]), VECTORS[:1]
        raise KeyError

    with pytest.raises(KeyError):
        write_embeddings(path, failing())
    with pytest.raises(DataError, match="no embeddings to write"):
        write_embeddings(path, [])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["e.parquet"]
    with pytest.raises(DataError, match=r"cannot be written: .*No such file"):
        write_embeddings(tmp_path / "no" / "e.parquet", blocks_of(TEXT, VECTORS, 5))


def test_files_of_another_layout_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"id": [1], "vector": [[1.0]]}), path)
    with pytest.raises(DataError, match=r"column 'vector' is list.*; a fixed-size list is needed"):
        read_embeddings(path)
    pq.write_table(pa.table({"id": [1]}), path)
    with pytest.raises(DataError, match="not a readable file of embeddings"):
        read_embeddings(path)


def test_slices_chunks_and_empty_columns_are_read(tmp_path: Path) -> None:
    array = vectors_to_arrow(VECTORS.double())
    chunked = pa.chunked_array([array.slice(1, 2), array.slice(4)])
    assert torch.equal(vectors_from_arrow(chunked), VECTORS[[1, 2, 4]])
    assert vectors_from_arrow(chunked.slice(3)).shape == (0, 3)
