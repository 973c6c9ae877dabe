"""Parquet and Arrow: columns of any list of floats, and of any ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.vector_blocks import NUMBERS, TEXT
from tests.support.vector_file_makers import (
    GOOD,
    VECTORS,
    junk,
    lists,
    parquet,
    put,
    whole,
)

from evergram.errors import DataError
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.parquet import write_embeddings


@pytest.mark.parametrize("kind", ["fixed", "list", "large"])
@pytest.mark.parametrize("floats", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_columns_of_any_list_of_floats(tmp_path: Path, kind: str, floats: pa.DataType) -> None:
    table = pa.table({"other": range(5), "id": TEXT, "vector": lists(floats, kind)})
    paths = [tmp_path / name for name in ("a.arrow", "b.feather", "c.arrows")]
    with pa.ipc.new_file(paths[0], table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    if floats != pa.float16():
        feather.write_feather(table, paths[1], compression="zstd")
    with pa.ipc.new_stream(paths[2], table.schema) as stream:
        stream.write_table(table, max_chunksize=3)
    if floats != pa.float16() or kind != "fixed":
        paths.append(tmp_path / "d.parquet")
        pq.write_table(table, paths[-1], row_group_size=3)
    for path in paths:
        if path.exists():
            ids, vectors = whole(open_embeddings(path))
            assert ids == TEXT
            assert vectors.tolist() == VECTORS.tolist()
            assert vectors.dtype == (torch.float64 if floats == pa.float64() else torch.float32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.int32(), NUMBERS),
        (pa.uint64(), NUMBERS),
        (pa.large_string(), [str(n) for n in NUMBERS]),
        (pa.dictionary(pa.int8(), pa.string()), [str(n) for n in NUMBERS]),
    ],
    ids=str,
)
def test_ids_of_any_integer_or_text(tmp_path: Path, kind: pa.DataType, expected: Any) -> None:
    ids = pa.array(expected).cast(kind)
    pq.write_table(
        pa.table({"key": ids, "emb": lists(pa.float32(), "list")}), tmp_path / "x.parquet"
    )
    file = open_embeddings(tmp_path / "x.parquet", id_column="key", vector_column="emb")
    assert whole(file)[0] == expected


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    for name in ("x.parquet", "x.arrow"):
        table = pa.table({"key": TEXT, "emb": GOOD})
        path = tmp_path / name
        if name == "x.arrow":
            feather.write_feather(table, path)
        else:
            pq.write_table(table, path)
        with pytest.raises(
            DataError, match=r"no column 'id'; its columns are: key, emb; .*--id-col"
        ):
            open_embeddings(path)
        with pytest.raises(DataError, match=r"no column 'vector'.*--vector-column"):
            open_embeddings(path, id_column="key")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            parquet(TEXT, pa.array([*VECTORS.tolist()[:3], [1.0, 2.0], [0.0] * 4])),
            r"row 4 \(id 'object-0'\).*has 2 numbers.*first row has 4",
        ),
        (parquet(TEXT, lists(pa.float32(), "fixed", put(3, None))), "row 4 .*holds a null"),
        (parquet(TEXT, pa.array([*VECTORS.tolist()[:4], None])), "row 5 .*is missing"),
        (parquet(TEXT, pa.array([None] * 5, pa.list_(pa.float32()))), "row 1: .* is missing"),
        (parquet(TEXT, pa.array([[]] * 5, pa.list_(pa.float32()))), "no vectors"),
        (parquet([*TEXT[:3], None, "x"], GOOD), "row 4 has no id"),
        (parquet([1.5] * 5, GOOD), "column 'id' is double; ids are integers or text"),
        (parquet(pa.array([2**63] * 5, pa.uint64()), GOOD), "no 64-bit integer"),
        (parquet(TEXT, pa.array([1.0] * 5)), "column 'vector' is double; lists of floats"),
        (parquet(TEXT, pa.array([[1, 2]] * 5)), "holds int64; float16"),
        (parquet(pa.array(TEXT)[:0], GOOD[:0]), "holds no vectors"),
        *((junk("x" + suffix), "cannot be read") for suffix in (".parquet", ".arrow")),
    ],
)
def test_columns_that_are_no_ids_or_vectors_are_refused(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        whole(open_embeddings(path))
    assert str(path) in str(caught.value) or "x.ids.txt" in str(caught.value)


def test_reading_a_parquet_file_holds_a_few_blocks_and_not_the_file(tmp_path: Path) -> None:
    size, blocks, dim = 2000, 40, 64
    draw = torch.Generator().manual_seed(0)
    every = (
        (pa.array(range(n * size, (n + 1) * size)), torch.randn(size, dim, generator=draw))
        for n in range(blocks)
    )
    write_embeddings(tmp_path / "z.parquet", every)
    before, held, rows = pa.total_allocated_bytes(), 0, 0
    for ids, _ in open_embeddings(tmp_path / "z.parquet").blocks(size):
        rows += len(ids)
        held = max(held, pa.total_allocated_bytes() - before)
    assert rows == size * blocks
    # A block, its decoded pages and READ_AHEAD of each column.
    assert held < size * blocks * dim * 4 / 4


def test_a_file_without_rows_is_told_so_though_its_columns_have_no_type(tmp_path: Path) -> None:
    table = pa.table({"id": pa.nulls(0), "vector": pa.nulls(0, pa.list_(pa.null()))})
    pq.write_table(table, tmp_path / "v.parquet")
    with pytest.raises(DataError, match="holds no vectors; it has no rows"):
        open_embeddings(tmp_path / "v.parquet")
