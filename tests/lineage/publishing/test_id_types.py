"""Ids of a side keep their type from version to version."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

from evergram.errors import DataError
from evergram.lineage.publishing.id_types import blocks_with_id_type, with_id_type

NUMBERS, TEXTS = pa.int64(), pa.string()


@pytest.mark.parametrize(
    ("ids", "expected", "result"),
    [
        (pa.array([1, 2]), NUMBERS, pa.array([1, 2])),
        (pa.array([1, 2]), TEXTS, pa.array(["1", "2"])),
        (pa.array(["1", "-2"]), NUMBERS, pa.array([1, -2])),
        (pa.array(["a"]), TEXTS, pa.array(["a"])),
    ],
)
def test_ids_become_numbers_or_texts_as_before(
    ids: pa.Array, expected: pa.DataType, result: pa.Array
) -> None:
    assert with_id_type(ids, expected, "query", "shop").equals(result)


@pytest.mark.parametrize("text", ["x", "01", "1.0", " 1", "9" * 19])
def test_a_text_that_is_no_integer_is_named(text: str) -> None:
    with pytest.raises(DataError, match=f"The query ids in shop are integers, .* text '{text}'"):
        with_id_type(pa.array(["5", text]), NUMBERS, "query", "shop")


def test_every_block_is_converted_and_none_without_a_version_before() -> None:
    blocks = [(pa.array(["1"]), torch.ones(1, 2)), (pa.array(["2"]), torch.zeros(1, 2))]
    converted = list(blocks_with_id_type(blocks, NUMBERS, "query", "shop"))
    assert [ids.to_pylist() for ids, _ in converted] == [[1], [2]]
    assert all(one is other for (_, one), (_, other) in zip(converted, blocks, strict=True))
    assert [ids.type for ids, _ in blocks_with_id_type(blocks, None, "query", "shop")] == [
        TEXTS
    ] * 2
