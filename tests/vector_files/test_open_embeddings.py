"""Every format is read and written alike, block by block; what is wrong with a file is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.support.vector_blocks import NAMES, NUMBERS, TEXT, blocks_of
from torch import Tensor

from evergram.errors import DataError
from evergram.vector_files.open_embeddings import EmbeddingFile, companion, open_embeddings
from evergram.vector_files.writers import write_vectors

VECTORS = np.arange(20, dtype=np.float64).reshape(5, 4) / 4 - 1


def whole(file: EmbeddingFile, size: int = 2) -> tuple[list[Any], Tensor]:
    """All of a file, by blocks of `size`."""
    ids: list[Any] = []
    vectors = []
    for some, block in file.blocks(size):
        assert len(some) == len(block) <= size
        ids += some.to_pylist()
        vectors.append(block)
    assert ids == file.ids().to_pylist()
    found = torch.cat(vectors)
    assert found.shape == (file.rows, file.dim)
    return ids, found


def lists(value_type: pa.DataType, kind: str, rows: Any = VECTORS) -> pa.Array:
    """Rows of numbers as one of Arrow's kinds of list."""
    number = np.float16 if value_type == pa.float16() else float
    values = [[None if x is None else number(x) for x in r] for r in rows]
    inner = {
        "fixed": pa.list_(value_type, 4),
        "list": pa.list_(value_type),
        "large": pa.large_list(value_type),
    }[kind]
    return pa.array(values, inner)


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


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays(tmp_path: Path, dtype: str, order: Any) -> None:
    np.save(tmp_path / "x.npy", np.array(VECTORS, dtype=dtype, order=order))
    ids, vectors = whole(open_embeddings(tmp_path / "x.npy"))
    assert ids == [0, 1, 2, 3, 4]
    assert vectors.tolist() == VECTORS.tolist()
    assert vectors.dtype == (torch.float64 if dtype == "f8" else torch.float32)


def test_ids_beside_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    (tmp_path / "x.ids.txt").write_text("\n".join(TEXT))
    (tmp_path / "other").write_text("a\r\nb\r\nc\r\nd\r\ne\r\n")
    assert whole(open_embeddings(tmp_path / "x.npy"))[0] == TEXT
    assert whole(open_embeddings(tmp_path / "x.npy", ids=tmp_path / "other"))[0] == list("abcde")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors(tmp_path: Path, dtype: torch.dtype) -> None:
    vectors = torch.tensor(VECTORS).to(dtype)
    save_file({"anything": vectors}, tmp_path / "a.safetensors")
    save_file(
        {"w": vectors, "e": vectors + 1, "key": torch.tensor(NUMBERS)}, tmp_path / "b.safetensors"
    )
    ids, found = whole(open_embeddings(tmp_path / "a.safetensors"))
    assert ids == [0, 1, 2, 3, 4]
    assert found.tolist() == vectors.tolist()
    named = open_embeddings(tmp_path / "b.safetensors", id_column="key", vector_column="w")
    assert whole(named)[0] == NUMBERS
    assert whole(named)[1].tolist() == vectors.tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.sampled_from(["numbers", "text", "rows"]),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 10**6),
)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    kind: str,
    rows: int,
    dim: int,
    size: int,
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("round") / name
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(rows, dim, generator=draw)
    ids: list[Any] = list(range(rows))
    if kind == "numbers":
        ids = [7 * i - 3 for i in torch.randperm(rows, generator=draw).tolist()]
    elif kind == "text":
        ids = [f"ü {i}" for i in ids]
    # What an earlier run left of other ids must not be taken for these, nor is it removed.
    stale = "stale\n" * rows
    companion(path).write_text(stale)
    assert write_vectors(path, blocks_of(ids, vectors, size)) == rows
    if path.suffix in (".npy", ".safetensors"):
        # By other readers.
        again = np.load(path) if path.suffix == ".npy" else load_file(path)["vector"]
        assert torch.equal(torch.as_tensor(again), vectors)
        beside = kind == "text" or path.suffix == ".npy"
        lines = "".join(f"{i}\n" for i in ids)
        assert companion(path).read_text() == (lines if beside else stale)
    found_ids, found = whole(open_embeddings(path), size)
    assert found_ids == ids
    assert torch.equal(found, vectors)
    assert not list(path.parent.glob(".*"))


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_vectors(path, blocks_of(TEXT, torch.ones(5, 2), 2))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def failing() -> Iterator[tuple[pa.Array, Tensor]]:
        yield pa.array(["a"]), torch.zeros(1, 2)
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        write_vectors(path, failing())
    with pytest.raises(DataError, match="no embeddings to write"):
        write_vectors(path, iter([]))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def parquet(ids: Any, vectors: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        pq.write_table(pa.table({"id": ids, "vector": vectors}), folder / "x.parquet")
        return folder / "x.parquet"

    return make


def array(values: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.save(folder / "x.npy", values)
        return folder / "x.npy"

    return make


def tensors(**values: Tensor) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        save_file(values, folder / "x.safetensors")
        return folder / "x.safetensors"

    return make


def junk(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(b"this is no file of vectors, whatever its name says")
        return folder / name

    return make


def with_ids(lines: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "x.ids.txt").write_text(lines)
        return array(VECTORS)(folder)

    return make


def put(row: int, value: Any) -> list[list[Any]]:
    rows: list[list[Any]] = VECTORS.tolist()
    rows[row][1] = value
    return rows


GOOD = lists(pa.float32(), "fixed")
RAGGED = [*VECTORS.tolist()[:3], [1.0, 2.0], [0.0] * 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            parquet(TEXT, pa.array(RAGGED)),
            r"row 4 \(id 'object-0'\).*has 2 numbers.*first row has 4",
        ),
        (
            parquet(TEXT, lists(pa.float32(), "fixed", put(2, float("nan")))),
            "row 3 .*'object-4'.*NaN",
        ),
        (parquet(TEXT, lists(pa.float32(), "list", put(4, float("-inf")))), "row 5 .*infinity"),
        (parquet(TEXT, lists(pa.float32(), "fixed", put(3, None))), "row 4 .*empty place"),
        (parquet(TEXT, pa.array([*VECTORS.tolist()[:4], None])), "row 5 .*is missing"),
        (parquet(TEXT, pa.array([None] * 5, pa.list_(pa.float32()))), "row 1: .* is missing"),
        (parquet(TEXT, pa.array([[]] * 5, pa.list_(pa.float32()))), "no vectors"),
        (array(np.array(put(1, -1e300))), "row 2 .*id 1.*too large for float32"),
        (array(np.array(put(1, float("inf")))), "row 2 .*id 1.*infinity"),
        (parquet([*TEXT[:3], None, "x"], GOOD), "row 4 has no id"),
        (parquet([1.5] * 5, GOOD), "column 'id' is double; ids are integers or text"),
        (parquet(pa.array([2**63] * 5, pa.uint64()), GOOD), "no 64-bit integer"),
        (parquet(TEXT, pa.array([1.0] * 5)), "column 'vector' is double; lists of floats"),
        (parquet(TEXT, pa.array([[1, 2]] * 5)), "holds int64; float16"),
        (parquet(pa.array(TEXT)[:0], GOOD[:0]), "holds no vectors"),
        (array(VECTORS[:0]), "holds no vectors"),
        (array(VECTORS[0]), r"float64 of shape \[4\]; floats \[N, D\]"),
        (array(VECTORS.astype(np.int64)), "holds int64"),
        (array(np.array(put(1, float("nan")))), "row 2 .*id 1.*NaN"),
        (array(np.array([["a", {}]], dtype=object)), "cannot be read"),
        (with_ids("a\nb\n"), "has 2 ids and .* 5 vectors"),
        (with_ids("a\nb\n\nc\nd\n"), "line 3 has no id"),
        (tensors(a=torch.ones(2, 2), b=torch.ones(2, 2)), r"no tensor 'vector'.*a \[2, 2\], b"),
        (tensors(vector=torch.ones(2)), "no tensor 'vector' of two dims"),
        (tensors(vector=torch.ones(2, 2, dtype=torch.int8)), "holds torch.int8; floats"),
        (tensors(vector=torch.ones(2, 2), id=torch.arange(3)), r"'id' is torch.int64 \[3\]; 2 int"),
        (tensors(vector=torch.ones(0, 2)), "holds no vectors"),
        *((junk("x" + suffix), "cannot be read") for suffix in (".parquet", ".arrow", ".npy")),
        (junk("x.safetensors"), "cannot be read"),
        (junk("x.txt"), "no known format; the known ones end in .parquet"),
        (junk("x.csv"), "not read from it; give a file that ends in one of .parquet"),
        (lambda folder: folder, "is a folder"),
        (lambda folder: folder / "none.npy", "is not there"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        whole(open_embeddings(path))
    assert str(path) in str(caught.value) or "x.ids.txt" in str(caught.value)


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


def test_an_array_cut_short_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-8])
    with pytest.raises(DataError, match="cannot be read"):
        open_embeddings(tmp_path / "x.npy")


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    one = [(pa.array(["a\nb"]), torch.ones(1, 2))]
    for name in ("x.npy", "x.safetensors"):
        with pytest.raises(DataError, match=r"'a\\nb' has a line break"):
            write_vectors(tmp_path / name, one)
    for name, message in (("x.txt", "known format"), ("no/x.npy", "is not there"), (".", "folder")):
        with pytest.raises(DataError, match=message):
            write_vectors(tmp_path / name, one)
    assert write_vectors(tmp_path / "x.parquet", one) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.parquet"]


def test_the_header_of_a_safetensors_file_is_plain_json(tmp_path: Path) -> None:
    write_vectors(tmp_path / "x.safetensors", [(pa.array([5, 7]), torch.ones(2, 3))])
    content = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header["vector"]["shape"] == [2, 3]
    assert header["id"]["data_offsets"] == [24, 40]
