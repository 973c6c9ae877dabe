"""Points as they come from Qdrant."""

from __future__ import annotations

from types import SimpleNamespace as Point
from typing import Any

import pyarrow as pa
import pytest

from evergram.errors import IntegrityError
from evergram.stores.qdrant.collection_facts import read_collection_address
from evergram.stores.qdrant.own_points import OwnPoints


def points(names: str, answers: list[Any] | None = None) -> OwnPoints:
    left = list(answers or [])
    connection: Any = Point(ask=lambda *_, **__: left.pop(0))
    return OwnPoints(
        connection, read_collection_address(f"qdrant-collection:d#collection=c{names}")
    )


def test_the_newest_vector_that_a_point_has_is_its_version() -> None:
    two = points("&v0=a&v3=b")
    assert two.version_of(Point(vector={"a": [1.0], "b": [2.0]})) == 3
    assert two.version_of(Point(vector={"a": [1.0]})) == 0
    assert two.version_of(Point(vector={})) is None
    assert two.version_of(Point(vector=None)) is None
    assert points("&v1=").version_of(Point(vector=[1.0])) == 1
    assert points("&v1=a").vector_of(Point(vector=[1.0]), "a") is None


def test_ids_that_no_point_can_have_are_not_asked_for() -> None:
    numbers = points("&v0=")
    numbers.id_of(Point(id=3, payload={}))
    (condition,) = numbers.among(pa.array([-1, 5]), 10)
    assert condition.has_id == [5]
    assert [c.has_id for c in numbers.among(pa.array(range(5)), 2)] == [[0, 1], [2, 3], [4]]
    assert list(numbers.among(None, 2)) == [None]
    with pytest.raises(IntegrityError, match="numbers and ids that are texts"):
        numbers.id_of(Point(id="a", payload={}))
    assert list(numbers.among(pa.array([-1]), 2)) == []


def test_pages_are_read_to_the_last() -> None:
    answers = [(["a", "b"], 7), ([], 9), (["c"], None)]
    assert points("&v0=", answers).scroll(None, [""]) == ["a", "b", "c"]
    assert points("&v0=", answers).scroll(None, [""], 2, pages=1) == ["a", "b"]
