"""`.npy` and safetensors: any floats, with the ids inside, beside, or by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from tests.support.vector_blocks import NUMBERS, TEXT
from tests.support.vector_file_makers import (
    VECTORS,
    array,
    junk,
    tensors,
    whole,
    with_ids,
)

from evergram.errors import DataError
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.writers import write_vectors


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
    ids, matrix = whole(open_embeddings(tmp_path / "a.safetensors"))
    assert ids == [0, 1, 2, 3, 4]
    assert matrix.tolist() == vectors.tolist()
    named = open_embeddings(tmp_path / "b.safetensors", id_column="key", vector_column="w")
    assert whole(named)[0] == NUMBERS
    assert whole(named)[1].tolist() == vectors.tolist()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"0.5 0.25\n", "is no array of NumPy"),
        (b"", "is no array of NumPy"),
        (b"\x93NUM", "is no array of NumPy"),
        (b"PK\x03\x04 cut short", "is a zip"),
        (b"\x80\x04 a pickle", "is a pickle, which is never opened"),
    ],
)
def test_what_is_no_array_is_not_taken_for_python_objects(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        open_embeddings(tmp_path / "x.npy")


def test_an_array_cut_short_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content[:-8])
    with pytest.raises(DataError, match="cannot be read"):
        open_embeddings(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (array(VECTORS[:0]), "holds no vectors"),
        (array(VECTORS[0]), r"float64 of shape \[4\]; floats \[N, D\]"),
        (array(VECTORS.astype(np.int64)), "holds int64"),
        (array(np.array([["a", {}]], dtype=object)), "never unpickled"),
        (with_ids("a\nb\n"), "has 2 ids and .* 5 vectors"),
        (with_ids("a\nb\n\nc\nd\n"), "line 3 has no id"),
        (tensors(a=torch.ones(2, 2), b=torch.ones(2, 2)), r"no tensor 'vector'.*a \[2, 2\], b"),
        (tensors(vector=torch.ones(2)), "no tensor 'vector' of two dims"),
        (tensors(vector=torch.ones(2, 2, dtype=torch.int8)), r"holds torch\.int8; floats"),
        (tensors(vector=torch.ones(2, 2), id=torch.arange(3)), r"'id' is torch.int64 \[3\]; 2 int"),
        (
            tensors(vector=torch.ones(2, 2), id=torch.ones(2) > 0),
            r"'id' is torch.bool \[2\]; 2 int",
        ),
        (
            tensors(vector=torch.ones(2, 2), id=torch.tensor([7, 2**63], dtype=torch.uint64)),
            r"an id of 2\^63 or more",
        ),
        (tensors(vector=torch.ones(0, 2)), "holds no vectors"),
        *(
            (junk("x" + suffix), "cannot be read|in spite of")
            for suffix in (".npy", ".safetensors")
        ),
    ],
)
def test_arrays_tensors_and_ids_that_do_not_fit_are_refused(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        whole(open_embeddings(path))
    assert str(path) in str(caught.value) or "x.ids.txt" in str(caught.value)


def test_the_mark_at_the_beginning_of_a_text_file_is_no_part_of_an_id(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    (tmp_path / "ids.txt").write_text("5\n6\n7\n8\n9\n", encoding="utf-8-sig")
    assert whole(open_embeddings(tmp_path / "x.npy", ids=tmp_path / "ids.txt"))[0] == [
        5,
        6,
        7,
        8,
        9,
    ]


def test_numbers_with_a_decimal_point_are_no_ids(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VECTORS)
    (tmp_path / "ids.txt").write_text("0.0\n1.0\n2.0\n3.0\n4.0\n")
    with pytest.raises(DataError, match=r"with a decimal point, such as 0\.0"):
        open_embeddings(tmp_path / "x.npy", ids=tmp_path / "ids.txt")


@pytest.mark.parametrize("kind", ["npy", "safetensors"])
@pytest.mark.parametrize("text", ["1.5", "1e5", "None", "NULL", "n/a", " ", "\ufeffx", "a\0b"])
def test_texts_beside_an_array_that_was_written_here_are_taken_as_they_are(
    tmp_path: Path, text: str, kind: str
) -> None:
    """Whatever they look like; the same file given by name is read like any other."""
    path = tmp_path / f"x.{kind}"
    write_vectors(path, [(pa.array([text]), torch.ones(1, 2))])
    assert whole(open_embeddings(path))[0] == [text]
    if text.startswith("\ufeff"):
        assert whole(open_embeddings(path, ids=tmp_path / "x.ids.txt"))[0] == ["x"]
        return
    with pytest.raises(
        DataError, match=r"with a decimal point|means a missing value|has no id|a NUL"
    ):
        open_embeddings(path, ids=tmp_path / "x.ids.txt")


def test_an_empty_line_is_no_id_in_a_file_that_was_written_here_either(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    write_vectors(path, [(pa.array(["a", "b"]), torch.ones(2, 2))])
    (tmp_path / "x.ids.txt").write_text("a\n\n")
    with pytest.raises(DataError, match=r"ids\.txt line 2 has no id"):
        open_embeddings(path)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.uint64])
def test_ids_may_be_integers_of_any_width(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tensors(vector=torch.ones(2, 2), id=torch.tensor([7, 200], dtype=dtype))(tmp_path)
    assert whole(open_embeddings(path))[0] == [7, 200]
