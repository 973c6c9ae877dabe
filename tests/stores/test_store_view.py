"""The reading half of every store: ids of one type, checksums, and the later of two rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dictionary_store import DictionaryStore

from evergram.errors import DataError, IntegrityError, ShapeError
from evergram.stores.rows import Checks, Rows, Space, row_checks


def rows(version: int, *ids: int) -> Rows:
    return Rows(version, pa.array(ids), np.full((len(ids), 2), version, np.float32))


@pytest.fixture
def store() -> DictionaryStore:
    opened = DictionaryStore()
    opened.add_space(Space(0, 2, "sha256:0"))
    opened.add_space(Space(1, 2, "sha256:1"))
    opened.upsert(rows(0, 1, 2))
    return opened


@pytest.mark.parametrize(
    "ids",
    [[1, 2], (1, 2), range(1, 3), pa.array([1, 2], pa.int8()), np.array([1, 2]), pa.array([1, 2])],
)
def test_integers_of_any_container_are_ids_of_int64(store: DictionaryStore, ids: Any) -> None:
    assert store.as_ids(ids).equals(pa.array([1, 2]))


def test_no_ids_are_ids_of_any_type() -> None:
    for id_type in ("int64", "string"):
        store = DictionaryStore(id_type)
        assert store.as_ids([]).type == store.id_type
    for kind in (pa.large_string(), pa.string_view()):
        assert store.as_ids(pa.array(["a"], kind)).equals(pa.array(["a"]))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["1"], "Ids are string; those of dictionary:one are int64"),
        ([1, "a"], "Ids must all be int64, as those of dictionary:one are"),
        ([2**64], "Ids must all be int64"),
        ([1, None], "An id is null; every row needs one"),
        (pa.array([1.5]), "Ids are double; they are integers or texts"),
        ("12", r"ids is the text '12'; give a list, such as \['12'\]"),
        (["\ud800"], "Ids must all be int64"),
    ],
)
def test_other_ids_are_refused(store: DictionaryStore, ids: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        store.as_ids(ids)


def test_of_two_rows_with_one_id_the_later_version_is_fetched(
    store: DictionaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a store that was killed between two steps has them."""

    def read(ids: pa.Array) -> list[tuple[Rows, Checks]]:
        parts = [rows(0, 1, 2), rows(1, 2, 3)]
        return [(part, row_checks(part)) for part in parts]

    monkeypatch.setattr(store, "_read", read)
    fetched = {part.version: part.ids.to_pylist() for part in store.fetch([1, 2, 3])}
    assert fetched == {1: [2, 3], 0: [1]}


def test_a_row_with_another_checksum_is_named(
    store: DictionaryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rows(0, 1, 2)
    checks = row_checks(one)
    checks[1] ^= 1
    monkeypatch.setattr(store, "_read", lambda ids: [(one, checks)])
    with pytest.raises(IntegrityError, match="row of id 2 in dictionary:one is not what was"):
        store.fetch([1, 2])


def test_versions_are_asked_with_as_many_queries_each(store: DictionaryStore) -> None:
    one, two = np.zeros((1, 2), np.float32), np.zeros((2, 2), np.float32)
    with pytest.raises(ShapeError, match=r"Versions have \[1, 2\] queries; give each version"):
        store.search({0: one, 1: two}, 3)
    with pytest.raises(
        ShapeError, match=r"version 1 are \[2\]; they must be \[Q, D\].*\{0: 2, 1: 2"
    ):
        store.search({1: np.zeros(2, np.float32)}, 3)
