"""Rows of ids, against a dictionary."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from evergram.errors import DataError
from evergram.retrieval import id_lookup
from evergram.retrieval.id_lookup import IdLookup

TEXTS = st.text(alphabet="ab1", max_size=3)
NUMBERS = st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(
    st.one_of(
        *(
            st.tuples(
                st.lists(one, unique=True, max_size=12), st.lists(one | st.none(), max_size=12)
            )
            for one in (TEXTS, NUMBERS)
        )
    )
)
def test_the_rows_are_those_of_a_dictionary(ids: tuple[list[int | str], list[int | str]]) -> None:
    stored, asked = ids
    expected = {value: row for row, value in enumerate(stored)}
    kind = pa.string() if any(isinstance(i, str) for i in (*stored, *asked)) else pa.int64()
    rows = IdLookup(pa.array(stored, kind)).rows(pa.chunked_array([pa.array(asked, kind)]))
    assert rows.tolist() == [expected.get(value, -1) for value in asked]


def test_texts_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        id_lookup, "keys_of", lambda ids: np.array([len(i) for i in ids.to_pylist()], np.uint64)
    )
    lookup = IdLookup(pa.array(["aa", "b", "bb"]))
    assert lookup.rows(pa.array(["bb", "b", "ab", None, "aa"])).tolist() == [2, 1, -1, -1, 0]
    assert IdLookup(pa.array(["aa", "b"])).rows(pa.array(["bb", "b"])).tolist() == [-1, 1]


def test_ids_of_another_type_are_refused() -> None:
    with pytest.raises(DataError, match="int64, and the stored ones string"):
        IdLookup(pa.array(["a"])).rows(pa.array([1]))


def test_views_of_texts_are_texts() -> None:
    asked = pa.array(["b", None, "c"], pa.string_view())
    assert IdLookup(pa.array(["a", "b"])).rows(asked).tolist() == [1, -1, -1]


@pytest.mark.parametrize(
    "asked",
    [
        pa.array([True]),
        pa.array([1.0]),
        pa.array([0], pa.timestamp("s")),
        pa.array([b"a"]),
        pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"])),
        pa.array([[1]]),
        pa.array([1.0]).dictionary_encode(),
    ],
    ids=lambda a: str(a.type)[:12],
)
def test_what_no_id_can_be_is_refused_by_its_own_type(asked: pa.Array) -> None:
    for stored in (pa.array(["a", "1", "1.0"]), pa.array([1])):
        with pytest.raises(DataError) as caught:
            IdLookup(stored).rows(asked)
        assert f"The ids of a batch are {asked.type}, and the stored ones" in str(caught.value)


def test_an_id_past_64_bits_is_refused_by_its_own_type() -> None:
    with pytest.raises(DataError, match="are uint64, and the stored ones int64"):
        IdLookup(pa.array([1])).rows(pa.array([1, 2**63], pa.uint64()))


def test_nulls_alone_are_no_rows() -> None:
    assert IdLookup(pa.array(["a"])).rows(pa.nulls(2)).tolist() == [-1, -1]
