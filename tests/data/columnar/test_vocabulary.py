"""Vocabularies: the row of each key, in whatever type it is asked for."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.data.columnar.vocabulary import Vocabulary, plain, to_tensor


def test_keys_of_another_type_are_found_by_their_text() -> None:
    assert Vocabulary(pa.array([10, 20])).rows(pa.array(["20", "x", "10"])).tolist() == [1, -1, 0]
    assert Vocabulary(pa.array(["10"])).rows(pa.array([10, 11])).tolist() == [0, -1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_rows_are_those_of_first_appearance_for_numbers_and_for_their_texts(
    keys: list[int],
) -> None:
    distinct = list(dict.fromkeys(keys))
    expected = [distinct.index(key) for key in keys]
    for asked in (pa.array(keys), pa.array([str(key) for key in keys])):
        vocabulary = Vocabulary.by_first_appearance(asked)
        assert vocabulary.rows(pa.array(keys)).tolist() == expected
        assert vocabulary.rows(pa.array([str(key) for key in keys])).tolist() == expected


def test_a_text_that_is_no_64_bit_number_is_no_key_of_numbers() -> None:
    texts = ["10", "010", " 10", "1e1", "", "9223372036854775808", "-9223372036854775809"]
    rows = Vocabulary(pa.array([10])).rows(pa.array(texts)).tolist()
    assert rows == [0, -1, -1, -1, -1, -1, -1]
    zeros = ["0", "-0", "00", "-010", "0000000000000000010", "-10", "-9223372036854775808"]
    numbers = Vocabulary(pa.array([0, -10, 10, -(2**63)]))
    assert numbers.rows(pa.array(zeros)).tolist() == [0, -1, -1, -1, -1, 1, 3]


def test_plain_ids_are_one_array_of_int64_or_string() -> None:
    chunked = pa.chunked_array([["b"], ["a", "b"]])
    for values in (chunked, chunked.dictionary_encode(), chunked.cast(pa.large_string())):
        assert plain(values).equals(pa.array(["b", "a", "b"]))
    assert plain(pa.array([1, 2], pa.uint8())).equals(pa.array([1, 2]))
    # A number that int64 cannot hold makes texts of all.
    assert plain(pa.array([1, 2**63], pa.uint64())).to_pylist() == ["1", str(2**63)]


def test_a_tensor_never_writes_into_arrow() -> None:
    column = pa.chunked_array([[1, 2], [3]])
    tensor = to_tensor(column)
    tensor.zero_()
    assert column.to_pylist() == [1, 2, 3]


def test_vocabularies_are_the_same_if_keys_and_order_are() -> None:
    one = Vocabulary(pa.array(["a", "b"]))
    assert one.same_keys(Vocabulary(pa.array(["a", "b"])))
    assert not one.same_keys(Vocabulary(pa.array(["b", "a"])))
    assert repr(one) == "Vocabulary(2 keys of string)"
