"""Files of vectors in every format are read alike; what does not fit is named with its row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.vector_file_makers import (
    GOOD,
    NAMES,
    NUMBERS,
    TEXT,
    VECTORS,
    array,
    blocks_of,
    junk,
    lists,
    parquet,
    put,
    tensors,
    whole,
    with_ids,
)
from torch import Tensor

from evergram.errors import DataError
from evergram.vector_files.base import (
    COMPUTED_FROM,
    FINGERPRINT,
    Block,
    EmbeddingFile,
    provenance_of,
)
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import (
    read_embeddings,
    vectors_from_arrow,
    vectors_to_arrow,
    write_embeddings,
    write_vectors,
)


class InMemory(EmbeddingFile):
    """Vectors [N, D], whose ids are the rows."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__(Path("memory"), *vectors.shape)
        self.vectors = vectors

    def ids(self) -> pa.Array:
        return pa.array(range(self.rows))

    def _read(self, size: int) -> Iterator[Block]:
        for start in range(0, self.rows, size):
            block = self.vectors[start : start + size]
            yield self.ids().slice(start, len(block)), block


def test_rows_whose_sum_alone_is_too_large_pass() -> None:
    vectors = torch.full((3, 4), 3e38)
    assert [len(ids) for ids, _ in InMemory(vectors).blocks(2)] == [2, 1]
    vectors[2, 1] = float("nan")
    with pytest.raises(DataError, match=r"memory row 3 \(id 2\): its vector has a NaN .*correct"):
        list(InMemory(vectors).blocks(2))


def test_a_file_without_rows_or_dims_holds_no_vectors() -> None:
    for shape in ((0, 2), (2, 0)):
        with pytest.raises(DataError, match="memory holds no vectors"):
            InMemory(torch.zeros(shape))


def test_arrays(tmp_path: Path) -> None:
    kinds: list[Any] = [("f2", "C"), ("f8", "F"), (">f4", "C")]
    for dtype, order in kinds:
        np.save(tmp_path / "x.npy", np.array(VECTORS, dtype=dtype, order=order))
        ids, vectors = whole(open_embeddings(tmp_path / "x.npy"))
        assert ids == [0, 1, 2, 3, 4]
        assert vectors.tolist() == VECTORS.tolist()
        assert vectors.dtype == (torch.float64 if dtype == "f8" else torch.float32)


def test_ids_beside_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    (tmp_path / "x.ids.txt").write_text("\n".join(TEXT))
    (tmp_path / "other").write_text("a\r\nb\r\nc\r\nd\r\ne\r\n", encoding="utf-8-sig")
    assert whole(open_embeddings(tmp_path / "x.npy"))[0] == TEXT
    assert whole(open_embeddings(tmp_path / "x.npy", ids=tmp_path / "other"))[0] == list("abcde")


def test_tensors(tmp_path: Path) -> None:
    for dtype in [torch.float16, torch.bfloat16, torch.float64]:
        vectors = torch.tensor(VECTORS).to(dtype)
        ids, matrix = whole(open_embeddings(tensors(anything=vectors)(tmp_path)))
        assert ids == [0, 1, 2, 3, 4]
        assert matrix.tolist() == vectors.tolist()
        path = tensors(w=vectors, e=vectors + 1, key=torch.tensor(NUMBERS))(tmp_path)
        ids, matrix = whole(open_embeddings(path, id_column="key", vector_column="w"))
        assert ids == NUMBERS
        assert matrix.tolist() == vectors.tolist()
    for kind in [torch.uint8, torch.uint16, torch.int32, torch.uint64]:
        path = tensors(vector=torch.ones(2, 2), id=torch.tensor([7, 200], dtype=kind))(tmp_path)
        assert whole(open_embeddings(path))[0] == [7, 200]


def wrong_array(content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "x.npy").write_bytes(content)
        return folder / "x.npy"

    return make


REFUSED: list[tuple[Callable[[Path], Path], str]] = [
    # Numbers that are not finite, by their row.
    (parquet(TEXT, lists(pa.float32(), "fixed", put(2, float("nan")))), "row 3 .*'object-4'.*NaN"),
    (parquet(TEXT, lists(pa.float32(), "list", put(4, float("-inf")))), "row 5 .*infinity"),
    (array(np.array(put(1, -1e300))), "row 2 .*id 1.*too large for float32"),
    (array(np.array(put(1, float("nan")))), "row 2 .*id 1.*NaN"),
    # Arrays, tensors, and ids beside them.
    (array(VECTORS[:0]), "holds no vectors"),
    (array(VECTORS[0]), r"float64 of shape \[4\]"),
    (array(VECTORS.astype(np.int64)), "holds int64"),
    (array(np.array([["a", {}]], dtype=object)), "never unpickled"),
    (with_ids("a\nb\n"), "has 2 ids and .* 5 vectors"),
    (with_ids("a\nb\n\nc\nd\n"), "line 3 has no id"),
    (tensors(a=torch.ones(2, 2), b=torch.ones(2, 2)), r"no tensor 'vector'.*a \[2, 2\], b"),
    (tensors(vector=torch.ones(2)), "no tensor 'vector' of two dims"),
    (tensors(vector=torch.ones(2, 2, dtype=torch.int8)), r"holds torch\.int8"),
    (tensors(vector=torch.ones(2, 2), id=torch.arange(3)), r"'id' is torch.int64 \[3\]; 2 int"),
    (tensors(vector=torch.ones(2, 2), id=torch.ones(2) > 0), r"'id' is torch.bool \[2\]; 2 int"),
    (tensors(vector=torch.ones(2, 2), id=torch.tensor([7, 2**63], dtype=torch.uint64)), r"2\^63"),
    (tensors(vector=torch.ones(0, 2)), "holds no vectors"),
    # Columns.
    (
        parquet(TEXT, pa.array([*VECTORS.tolist()[:3], [1.0, 2.0], [0.0] * 4])),
        r"row 4 \(id 'object-0'\).*has 2 numbers.*first row has 4",
    ),
    (parquet(TEXT, lists(pa.float32(), "fixed", put(3, None))), "row 4 .*holds a null"),
    (parquet(TEXT, pa.array([*VECTORS.tolist()[:4], None])), "row 5 .*is missing"),
    (parquet(TEXT, pa.array([None] * 5, pa.list_(pa.float32()))), "row 1: .* is missing"),
    (parquet(TEXT, pa.array([[]] * 5, pa.list_(pa.float32()))), "no vectors"),
    (parquet([*TEXT[:3], None, "x"], GOOD), "row 4 has no id"),
    (parquet([1.5] * 5, GOOD), "column 'id' is double"),
    (parquet(pa.array([2**63] * 5, pa.uint64()), GOOD), "no 64-bit integer"),
    (parquet(TEXT, pa.array([1.0] * 5)), "column 'vector' is double"),
    (parquet(TEXT, pa.array([[1, 2]] * 5)), "holds int64"),
    (parquet(pa.array(TEXT)[:0], GOOD[:0]), "holds no vectors"),
    (parquet(pa.nulls(0), pa.nulls(0, pa.list_(pa.null()))), "it has no rows"),
    # Files and paths; nothing is taken for a Python object.
    (wrong_array(b"0.5 0.25\n"), "is not a NumPy array"),
    (wrong_array(b"\x93NUM"), "is not a NumPy array"),
    (wrong_array(b"PK\x03\x04 cut short"), "is a zip"),
    (wrong_array(b"\x80\x04 a pickle"), "is a pickle, which is never opened"),
    *((junk("x" + suffix), "cannot be read") for suffix in (".parquet", ".arrow", ".safetensors")),
    (junk("x.npy"), "in spite of|cannot be read"),
    (junk("x.txt"), r"no known format; the known ones end in \.parquet"),
    (junk("x.csv"), r"not read from it; give a file that ends in one of \.parquet"),
    (lambda folder: folder, "is a folder"),
    (lambda folder: folder / "none.npy", "is not there"),
]


def test_what_is_no_file_of_ids_and_vectors_is_refused(tmp_path: Path) -> None:
    for number, (make, message) in enumerate(REFUSED):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = make(folder)
        with pytest.raises(DataError, match=message) as caught:
            whole(open_embeddings(path))
        assert str(path) in str(caught.value) or "x.ids.txt" in str(caught.value)


def test_texts_beside_an_array_that_was_written_here_are_taken_as_they_are(tmp_path: Path) -> None:
    """Whatever they look like; the same file given by name is read like any other."""
    for kind in ["npy", "safetensors"]:
        for text in ["1.5", "None", " ", "\ufeffx", "a\0b"]:
            path = tmp_path / f"x.{kind}"
            write_vectors(path, [(pa.array([text]), torch.ones(1, 2))])
            assert whole(open_embeddings(path))[0] == [text]
            beside = tmp_path / "x.ids.txt"
            if text.startswith("\ufeff"):
                assert whole(open_embeddings(path, ids=beside))[0] == ["x"]
                continue
            with pytest.raises(
                DataError, match=r"with a decimal point|means a missing value|has no id|a NUL"
            ):
                open_embeddings(path, ids=beside)
    (tmp_path / "x.ids.txt").write_text("\n")
    with pytest.raises(DataError, match=r"ids\.txt line 1 has no id"):
        open_embeddings(tmp_path / "x.npy")


def test_columns_of_any_list_of_floats(tmp_path: Path) -> None:
    for kind, floats in product(
        ("fixed", "list", "large"), (pa.float16(), pa.float32(), pa.float64())
    ):
        table = pa.table({"other": range(5), "id": TEXT, "vector": lists(floats, kind)})
        paths = [tmp_path / name for name in ("a.arrow", "c.arrows")]
        with pa.ipc.new_file(paths[0], table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
        with pa.ipc.new_stream(paths[1], table.schema) as stream:
            stream.write_table(table, max_chunksize=3)
        if floats != pa.float16():
            paths += [tmp_path / "b.feather", tmp_path / "d.parquet"]
            feather.write_feather(table, paths[2], compression="zstd")
            pq.write_table(table, paths[3], row_group_size=3)
        for path in paths:
            ids, vectors = whole(open_embeddings(path))
            assert ids == TEXT
            assert vectors.tolist() == VECTORS.tolist()
            assert vectors.dtype == (torch.float64 if floats == pa.float64() else torch.float32)


def test_ids_of_any_integer_or_text(tmp_path: Path) -> None:
    for kind, expected in [
        (pa.int32(), NUMBERS),
        (pa.uint64(), NUMBERS),
        (pa.large_string(), [str(n) for n in NUMBERS]),
        (pa.dictionary(pa.int8(), pa.string()), [str(n) for n in NUMBERS]),
    ]:
        ids = pa.array(expected).cast(kind)
        pq.write_table(
            pa.table({"key": ids, "emb": lists(pa.float32(), "list")}), tmp_path / "x.parquet"
        )
        file = open_embeddings(tmp_path / "x.parquet", id_column="key", vector_column="emb")
        assert whole(file)[0] == expected


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    table = pa.table({"key": TEXT, "emb": GOOD})
    pq.write_table(table, tmp_path / "x.parquet")
    feather.write_feather(table, tmp_path / "x.arrow")
    for path in (tmp_path / "x.parquet", tmp_path / "x.arrow"):
        with pytest.raises(DataError, match=r"no column 'id'; its columns are: key, emb"):
            open_embeddings(path)
        with pytest.raises(DataError, match=r"no column 'vector'"):
            open_embeddings(path, id_column="key")


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


def test_every_suffix_opens_its_format(tmp_path: Path) -> None:
    for name in [*NAMES, "vectors.PQ", "vectors.feather"]:
        write_vectors(tmp_path / name, blocks_of(TEXT, torch.ones(5, 2), 2))
        ids, vectors = whole(open_embeddings(tmp_path / name))
        assert ids == TEXT
        assert torch.equal(vectors, torch.ones(5, 2))


def test_a_file_of_ids_goes_only_with_a_file_without_ids(tmp_path: Path) -> None:
    write_vectors(tmp_path / "x.parquet", blocks_of(TEXT, torch.ones(5, 2), 2))
    with pytest.raises(DataError, match=r"x\.parquet has its ids in its column 'id'; a file"):
        open_embeddings(tmp_path / "x.parquet", ids=tmp_path / "ids.txt")


FORMATS = ("parquet", "arrow", "npy", "safetensors")
PROVENANCE = provenance_of("sha256:" + "a" * 64, "sha256:" + "b" * 64)
EIGHT = torch.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("ids", [[7, 5, 3, 1], ["a", "b", "c", "d"]])
def test_provenance_that_is_written_is_read(
    tmp_path: Path, suffix: str, ids: list[int | str]
) -> None:
    path = tmp_path / f"x.{suffix}"
    blocks = [(pa.array(ids[:3]), EIGHT[:3]), (pa.array(ids[3:]), EIGHT[3:])]
    write_vectors(path, blocks, PROVENANCE)
    file = open_embeddings(path)
    assert file.fingerprint == "sha256:" + "a" * 64
    assert file.provenance == {
        FINGERPRINT: "sha256:" + "a" * 64,
        COMPUTED_FROM: "sha256:" + "b" * 64,
    }
    assert [str(i) for i in file.ids().to_pylist()] == [str(i) for i in ids]
    assert torch.equal(torch.cat([v for _, v in file.blocks()]), EIGHT)
    # Without any, the file says nothing, also where one that did was in its place.
    write_vectors(path, blocks)
    again = open_embeddings(path)
    assert (again.fingerprint, again.provenance) == (None, {})
    assert {p.name for p in tmp_path.iterdir()} <= {path.name, "x.ids.txt", "x.npy.json"}


def test_other_metadata_is_not_ours_and_damaged_provenance_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_vectors(path, [(pa.array([1]), EIGHT[:1])], {"author": "somebody", "pandas": "{}"})
    assert open_embeddings(path).provenance == {}
    np.save(tmp_path / "x.npy", EIGHT.numpy())
    for text in ["{", "[1]", "null"]:
        (tmp_path / "x.npy.json").write_text(text)
        with pytest.raises(DataError, match=r"x\.npy\.json"):
            open_embeddings(tmp_path / "x.npy")


ROWS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def test_blocks_of_any_size_make_one_file(tmp_path: Path) -> None:
    for size in [1, 2, 5]:
        path = tmp_path / "e.parquet"
        assert write_embeddings(path, blocks_of(TEXT, ROWS, size), {"key": "value"}) == 5
        ids, vectors = read_embeddings(path)
        assert ids.to_pylist() == TEXT
        assert torch.equal(vectors, ROWS)
        schema = pq.read_schema(path)
        assert schema.field("vector").type == pa.list_(pa.float32(), 3)
        assert schema.metadata[b"key"] == b"value"


def test_files_of_another_layout_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"id": [1], "vector": [[1.0]]}), path)
    with pytest.raises(DataError, match=r"column 'vector' is list.*; a fixed-size list is needed"):
        read_embeddings(path)
    pq.write_table(pa.table({"id": [1]}), path)
    with pytest.raises(DataError, match="not a readable file of embeddings"):
        read_embeddings(path)


def test_slices_chunks_and_empty_columns_are_read(tmp_path: Path) -> None:
    array = vectors_to_arrow(ROWS.double())
    chunked = pa.chunked_array([array.slice(1, 2), array.slice(4)])
    assert torch.equal(vectors_from_arrow(chunked), ROWS[[1, 2, 4]])
    assert vectors_from_arrow(chunked.slice(3)).shape == (0, 3)
