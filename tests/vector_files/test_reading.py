"""Files of vectors in every format are read as they were written; what does not fit is named."""

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
from hypothesis import given, settings
from hypothesis import strategies as st
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
    whole,
    with_ids,
)
from torch import Tensor

from evergram.errors import DataError
from evergram.vector_files.open_embeddings import (
    COMPUTED_FROM,
    FINGERPRINT,
    Block,
    EmbeddingFile,
    companion,
    open_embeddings,
    provenance_of,
    read_embeddings,
    vectors_from_arrow,
    vectors_to_arrow,
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


def test_arrays_and_ids_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    kinds: list[Any] = [("f2", "C"), ("f8", "F"), (">f4", "C")]
    for dtype, order in kinds:
        np.save(path, np.array(VECTORS, dtype=dtype, order=order))
        ids, vectors = whole(open_embeddings(path))
        assert ids == [0, 1, 2, 3, 4]
        assert vectors.tolist() == VECTORS.tolist()
        assert vectors.dtype == (torch.float64 if dtype == "f8" else torch.float32)
    beside = tmp_path / "x.ids.txt"
    beside.write_text("\n".join(TEXT))
    assert whole(open_embeddings(path))[0] == TEXT
    beside.write_text("a\r\nb\r\nc\r\nd\r\ne\r\n", encoding="utf-8-sig")
    assert whole(open_embeddings(path))[0] == list("abcde")


def wrong_array(content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "x.npy").write_bytes(content)
        return folder / "x.npy"

    return make


REFUSED: list[tuple[Callable[[Path], Path], str]] = [
    # Numbers that are not finite, by their row.
    (parquet(TEXT, lists(pa.float32(), "fixed", put(2, float("nan")))), "row 3 .*'object-4'.*NaN"),
    (array(np.array(put(1, -1e300))), "row 2 .*id 1.*too large for float32"),
    (array(np.array(put(1, float("nan")))), "row 2 .*id 1.*NaN"),
    # Arrays, and ids beside them.
    (array(VECTORS[:0]), "has no vectors"),
    (array(VECTORS[0]), r"float64 of shape \[4\]"),
    (array(VECTORS.astype(np.int64)), "has int64"),
    (array(np.array([["a", {}]], dtype=object)), "never unpickled"),
    (with_ids("a\nb\n"), "has 2 ids, but .* has 5 vectors"),
    (with_ids("a\nb\n\nc\nd\n"), "line 3 has no id"),
    # Columns.
    (
        parquet(TEXT, pa.array([*VECTORS.tolist()[:3], [1.0, 2.0], [0.0] * 4])),
        r"row 4 \(id 'object-0'\).*has 2 numbers.*first row has 4",
    ),
    (parquet(TEXT, lists(pa.float32(), "fixed", put(3, None))), "row 4 .*has a null"),
    (parquet(TEXT, pa.array([*VECTORS.tolist()[:4], None])), "row 5 .*is missing"),
    (parquet(TEXT, pa.array([[]] * 5, pa.list_(pa.float32()))), "no vectors"),
    (parquet([*TEXT[:3], None, "x"], GOOD), "row 4 has no id"),
    (parquet([1.5] * 5, GOOD), "column 'id' is double"),
    (parquet(pa.array([2**63] * 5, pa.uint64()), GOOD), "not a 64-bit integer"),
    (parquet(TEXT, pa.array([1.0] * 5)), "column 'vector' is double"),
    (parquet(TEXT, pa.array([[1, 2]] * 5)), "is list<element: int64>"),
    (parquet(pa.array(TEXT)[:0], GOOD[:0]), "has no vectors"),
    (parquet(pa.nulls(0), pa.nulls(0, pa.list_(pa.null()))), "it has no rows"),
    # Files and paths; nothing is taken for a Python object.
    (wrong_array(b"\x93NUM"), "is not a NumPy array"),
    (wrong_array(b"PK\x03\x04 cut short"), "is a zip"),
    (wrong_array(b"\x80\x04 a pickle"), "is a pickle, which is never opened"),
    *((junk("x" + suffix), "cannot be read") for suffix in (".parquet", ".arrow")),
    (junk("x.npy"), "despite|cannot be read"),
    (junk("x.txt"), r"an unsupported format; supported suffixes are \.parquet"),
    (lambda folder: folder, "is a folder"),
    (lambda folder: folder / "none.npy", "does not exist"),
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
    """Whatever they look like."""
    for text in ["1.5", "None", " ", "\ufeffx", "a\0b"]:
        path = tmp_path / "x.npy"
        write_vectors(path, [(pa.array([text]), torch.ones(1, 2))])
        assert whole(open_embeddings(path))[0] == [text]
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
    write_vectors(tmp_path / "z.parquet", every)
    before, held, rows = pa.total_allocated_bytes(), 0, 0
    for ids, _ in open_embeddings(tmp_path / "z.parquet").blocks(size):
        rows += len(ids)
        held = max(held, pa.total_allocated_bytes() - before)
    assert rows == size * blocks
    # A block, its decoded pages and READ_AHEAD of each column.
    assert held < size * blocks * dim * 4 / 4


def test_suffixes_of_any_case_open_their_format(tmp_path: Path) -> None:
    for name in ("vectors.PQ", "vectors.feather"):
        write_vectors(tmp_path / name, blocks_of(TEXT, torch.ones(5, 2), 2))
        assert whole(open_embeddings(tmp_path / name))[0] == TEXT


FORMATS = ("parquet", "arrow", "npy")
PROVENANCE = provenance_of("sha256:" + "a" * 64, "sha256:" + "b" * 64)
EIGHT = torch.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize("suffix", FORMATS)
def test_provenance_that_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    write_vectors(path, blocks_of(list("abcd"), EIGHT, 3), PROVENANCE)
    file = open_embeddings(path)
    assert file.fingerprint == "sha256:" + "a" * 64
    assert file.provenance == {
        FINGERPRINT: "sha256:" + "a" * 64,
        COMPUTED_FROM: "sha256:" + "b" * 64,
    }
    # Without any, the file says nothing, also where one that did was in its place.
    write_vectors(path, blocks_of(list("abcd"), EIGHT, 3))
    again = open_embeddings(path)
    assert (again.fingerprint, again.provenance) == (None, {})
    assert {p.name for p in tmp_path.iterdir()} <= {path.name, "x.ids.txt", "x.npy.json"}


def test_other_metadata_is_not_ours_and_damaged_provenance_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_vectors(path, [(pa.array([1]), EIGHT[:1])], {"author": "somebody", "pandas": "{}"})
    assert open_embeddings(path).provenance == {}
    array(EIGHT.numpy())(tmp_path)
    for text in ["{", "[1]"]:
        (tmp_path / "x.npy.json").write_text(text)
        with pytest.raises(DataError, match=r"x\.npy\.json"):
            open_embeddings(tmp_path / "x.npy")


ROWS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def test_embeddings_are_fixed_size_lists(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    assert write_vectors(path, blocks_of(TEXT, ROWS, 2), {"key": "value"}) == 5
    schema = pq.read_schema(path)
    assert schema.field("vector").type == pa.list_(pa.float32(), 3)
    assert schema.metadata[b"key"] == b"value"
    ids, vectors = read_embeddings(path)
    assert (ids.to_pylist(), torch.equal(vectors, ROWS)) == (TEXT, True)
    for table, message in [
        (
            {"id": [1], "vector": [[1.0]]},
            r"column 'vector' is list.*; it must be a fixed-size list",
        ),
        ({"id": [1]}, "not a readable file of embeddings"),
    ]:
        pq.write_table(pa.table(table), path)
        with pytest.raises(DataError, match=message):
            read_embeddings(path)


def test_slices_chunks_and_empty_columns_are_read(tmp_path: Path) -> None:
    array = vectors_to_arrow(ROWS.double())
    chunked = pa.chunked_array([array.slice(1, 2), array.slice(4)])
    assert torch.equal(vectors_from_arrow(chunked), ROWS[[1, 2, 4]])
    assert vectors_from_arrow(chunked.slice(3)).shape == (0, 3)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.sampled_from(["numbers", "text", "rows"]),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 10**6),
)
def test_rows_that_are_written_are_read_back(
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
    if path.suffix == ".npy":
        # By another reader.
        assert torch.equal(torch.as_tensor(np.load(path)), vectors)
        assert companion(path).read_text() == "".join(f"{i}\n" for i in ids)
    read_ids, matrix = whole(open_embeddings(path), size)
    assert read_ids == ids
    assert torch.equal(matrix, vectors)
    assert not list(path.parent.glob(".*"))


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_leaves_the_files_of_before(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_vectors(path, blocks_of(TEXT, torch.ones(5, 2), 2), {FINGERPRINT: "sha256:a"})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def failing() -> Iterator[tuple[pa.Array, Tensor]]:
        yield pa.array(["a"]), torch.zeros(1, 2)
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        write_vectors(path, failing())
    with pytest.raises(DataError, match="no embeddings to write"):
        write_vectors(path, iter([]), {FINGERPRINT: "sha256:b"})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_ids_and_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    one = [(pa.array(["a\nb"]), torch.ones(1, 2))]
    with pytest.raises(DataError, match=r"'a\\nb' has a line break"):
        write_vectors(tmp_path / "x.npy", one)
    for name, message in (
        ("x.txt", "unsupported format"),
        ("no/x.npy", "does not exist"),
        (".", "folder"),
    ):
        with pytest.raises(DataError, match=message):
            write_vectors(tmp_path / name, one)
    assert write_vectors(tmp_path / "x.parquet", one) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_written_over_unless_it_may_be(tmp_path: Path, name: str) -> None:
    """Neither the file nor any that would be put beside it."""
    path, ids = tmp_path / name, TEXT
    one, other = (blocks_of(ids, torch.full((5, 2), float(n)), 2) for n in (1, 2))
    write_vectors(path, one, {FINGERPRINT: "sha256:a"}, overwrite=False)
    written = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(DataError, match="already exists; give another name"):
        write_vectors(path, other, overwrite=False)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == written
    for mine in written:
        for written_name in written:
            (tmp_path / written_name).unlink(missing_ok=True)
        (tmp_path / mine).write_text("mine")
        with pytest.raises(DataError, match=f"{mine} already exists"):
            write_vectors(path, blocks_of(ids, torch.ones(5, 2), 2), overwrite=False)
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(mine, "mine")]
        assert write_vectors(path, blocks_of(ids, torch.ones(5, 2), 2)) == 5


def test_ids_beside_an_array_are_as_they_were_written(tmp_path: Path) -> None:
    """Text that looks like numbers stays text, and ids that are gone are missed."""
    path = tmp_path / "x.npy"
    looks = (["0", "1", "00017"], ["1.5", "1e5", "2"], ["None", "nan", " "])
    for ids in (*looks, [0, 1, 2], [2**62, -5, 0]):
        write_vectors(path, blocks_of(ids, torch.ones(3, 2), 2))
        assert open_embeddings(path).ids().to_pylist() == ids
    beside = tmp_path / "x.ids.txt"
    beside.write_text("a\nb\nc\n")
    with pytest.raises(DataError, match=r"ids\.txt, such as a,"):
        open_embeddings(path)
    beside.unlink()
    with pytest.raises(DataError, match=r"ids\.txt, which .* is missing"):
        open_embeddings(path)
    (tmp_path / "x.npy.json").unlink()
    assert open_embeddings(path).ids().to_pylist() == [0, 1, 2]
