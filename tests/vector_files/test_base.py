"""Blocks of any file: no number that is not finite passes, and its row is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.vector_blocks import TEXT
from tests.support.vector_file_makers import (
    array,
    lists,
    parquet,
    put,
    whole,
)
from torch import Tensor

from evergram.errors import DataError
from evergram.vector_files.base import Block, EmbeddingFile, sentence
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.provenance import FINGERPRINT


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            parquet(TEXT, lists(pa.float32(), "fixed", put(2, float("nan")))),
            "row 3 .*'object-4'.*NaN",
        ),
        (parquet(TEXT, lists(pa.float32(), "list", put(4, float("-inf")))), "row 5 .*infinity"),
        (array(np.array(put(1, -1e300))), "row 2 .*id 1.*too large for float32"),
        (array(np.array(put(1, float("inf")))), "row 2 .*id 1.*infinity"),
        (array(np.array(put(1, float("nan")))), "row 2 .*id 1.*NaN"),
    ],
)
def test_a_number_that_is_not_finite_is_named_by_its_row(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        whole(open_embeddings(path))
    assert str(path) in str(caught.value) or "x.ids.txt" in str(caught.value)


def test_rows_whose_sum_alone_is_too_large_pass() -> None:
    vectors = torch.full((3, 4), 3e38)
    assert [len(ids) for ids, _ in InMemory(vectors).blocks(2)] == [2, 1]
    vectors[2, 1] = float("nan")
    with pytest.raises(DataError, match=r"memory row 3 \(id 2\): its vector has a NaN .*correct"):
        list(InMemory(vectors).blocks(2))


def test_a_file_without_rows_or_dims_holds_no_vectors() -> None:
    for shape in ((0, 2), (2, 0)):
        with pytest.raises(DataError, match="memory holds no vectors; it needs at least one row"):
            InMemory(torch.zeros(shape))


def test_the_fingerprint_is_that_of_the_provenance() -> None:
    file = InMemory(torch.ones(1, 1))
    assert file.fingerprint is None
    file.provenance = {FINGERPRINT: "sha256:a"}
    assert file.fingerprint == "sha256:a"


def test_an_error_of_another_library_is_one_sentence() -> None:
    assert sentence(ValueError("two\n  lines. ")) == "two lines"
    assert sentence(KeyError()) == "KeyError"
