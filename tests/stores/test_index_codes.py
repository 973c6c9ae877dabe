"""Codes say what they are, and what a store cannot build."""

from __future__ import annotations

import pytest

from evergram.errors import DataError
from evergram.stores.index_codes import FLOAT32, IndexCodes


def test_whole_vectors_are_searched_by_themselves() -> None:
    assert FLOAT32.whole
    assert not IndexCodes("float16", 1).whole


@pytest.mark.parametrize(
    ("kind", "oversample", "words"),
    [
        ("int4", 4, "Codes are 'int4'; they are float32, float16, int8, binary"),
        ("int8", 0, "Oversample is 0; it must be 1 to 100"),
        ("int8", 101, "Oversample is 101; it must be 1 to 100"),
        ("float32", 4, "searched by the vectors themselves; leave it out"),
    ],
)
def test_what_codes_cannot_be(kind: str, oversample: int, words: str) -> None:
    with pytest.raises(DataError, match=words):
        IndexCodes(kind, oversample)


def test_a_store_that_has_no_such_index_says_what_it_has() -> None:
    IndexCodes("float16", 2).check(("float32", "float16"), "here")
    with pytest.raises(
        DataError, match=r"here cannot build .* of int8; its kinds are float32, float16"
    ):
        IndexCodes("int8", 2).check(("float32", "float16"), "here")
