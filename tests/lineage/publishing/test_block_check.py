"""Ids and vectors that could not be read again are refused before they are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.exact_versions import SIDE, exact_lineage, exact_version
from tests.support.publishing import publish_next

from evergram.errors import DataError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.lineage.publishing.block_check import checked_block, checked_blocks

ROWS = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("ids", "vectors", "sentence"),
    [
        (pa.array([1, None]), ROWS, "Row 1 of the shop embeddings: its id is empty"),
        (pa.array(["a", ""]), ROWS, "Row 1 of the shop embeddings: its id is empty"),
        (pa.array([1.0, 2.0]), ROWS, r"shop ids cannot be published \(double\)"),
        ([True, False], ROWS, r"shop ids cannot be published \(bool\)"),
        ([1, "a"], ROWS, "shop ids cannot be published"),
        ([2**63, 1], ROWS, "shop ids cannot be published"),
        (None, ROWS, "shop ids cannot be published"),
        ([1, 2], ROWS.long(), r"are of torch\.int64; they must be floats"),
        ([1, 2], [[1.0] * 3] * 2, "are of list; they must be floats"),
        ([1, 2], np.ones((2, 3), dtype=np.int32), "are of int32; they must be floats"),
        ([1, 2], torch.ones(2, 4), r"are \[2, 4\] for 2 ids; with dim 3"),
        ([1], ROWS, r"are \[2, 3\] for 1 ids"),
        ([1, 2], torch.ones(2), r"are \[2\] for 2 ids"),
    ],
)
def test_a_block_that_cannot_be_read_again_is_refused(
    ids: Any, vectors: Any, sentence: str
) -> None:
    with pytest.raises((DataError, ShapeError), match=sentence):
        checked_block(ids, vectors, "shop", 3)


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2],
        np.array([1, 2], dtype=np.int32),
        pa.array([1, 2], pa.uint8()),
        pa.chunked_array([[1], [2]]),
        ["a", "b"],
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["a", "b"], pa.large_string()),
    ],
)
def test_ids_and_vectors_of_every_library_become_arrow_and_torch(ids: Any) -> None:
    keys, rows = checked_block(ids, np.ones((2, 3), dtype=np.float64), "shop", 3)
    assert keys.type in (pa.int64(), pa.string())
    assert keys.to_pylist() in ([1, 2], ["a", "b"])
    assert isinstance(rows, torch.Tensor)
    assert rows.shape == (2, 3)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), max_size=5), max_size=5))
def test_an_id_that_occurs_twice_is_named_wherever_it_is(parts: list[list[int]]) -> None:
    ids = [i for part in parts for i in part]
    blocks = ((pa.array(p, pa.int64()), torch.ones(len(p), 3)) for p in parts)
    twice = {i for i in ids if ids.count(i) > 1}
    if ids and not twice:
        assert [i for keys, _ in checked_blocks(blocks, "shop", 3) for i in keys.to_pylist()] == ids
        return
    with pytest.raises(DataError) as caught:
        list(checked_blocks(blocks, "shop", 3))
    if ids:
        named = int(str(caught.value).split(" id ")[1].split(" ")[0])
        assert named in twice
        assert f"occurs {ids.count(named)} times" in str(caught.value)
    else:
        assert "at least one row" in str(caught.value)


def test_integers_and_texts_are_not_mixed() -> None:
    blocks = [([1], torch.ones(1, 3)), (["a"], torch.ones(1, 3))]
    with pytest.raises(DataError, match="int64 in one block and string in another"):
        list(checked_blocks(blocks, "shop", 3))


def test_lists_and_numpy_arrays_are_published_as_they_are(tmp_path: Path) -> None:
    lineage = exact_lineage(tmp_path / "lineage")
    version = exact_version(2, 1)
    ids, z = version.block(SIDE)
    plain = replace(version, embeddings={SIDE: (ids.to_pylist(), z.numpy())})
    publish_next(lineage, plain)
    read_ids, read_z = Lineage.open(lineage.path).embeddings(SIDE)
    assert read_ids.equals(ids)
    assert torch.equal(read_z, z)


def test_vectors_of_a_model_and_arrays_that_torch_does_not_take_are_read() -> None:
    wanted = torch.arange(6.0).reshape(3, 2)
    array = wanted.numpy()
    backwards = np.ascontiguousarray(array[::-1])[::-1]
    for vectors in (wanted.clone().requires_grad_(), backwards, array.astype(">f4")):
        _, rows = checked_block([1, 2, 3], vectors, "object", 2)
        assert not rows.requires_grad
        assert torch.equal(rows, wanted)
    with pytest.raises(DataError, match="dense torch tensor"):
        checked_block([1, 2, 3], wanted.to_sparse(), "object", 2)
