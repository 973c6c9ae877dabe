"""Filters as Qdrant's own."""

from __future__ import annotations

from typing import Any

import pytest
from qdrant_client import models

from evergram.errors import DataError
from evergram.stores.qdrant.qdrant_filter import filter_of

ALLOWED = ["kind", "year", "on", "day"]


def shown(asked: Any) -> Any:
    return filter_of(asked, ALLOWED).model_dump(exclude_none=True, mode="json")


def test_conditions_become_qdrants() -> None:
    assert shown({"kind": ["a", "b"], "year": {"gte": 1}, "day": {"lt": "2026-01-31"}}) == {
        "must": [
            {"key": "kind", "match": {"any": ["a", "b"]}},
            {"key": "year", "range": {"gte": 1.0}},
            {"key": "day", "range": {"lt": "2026-01-31T00:00:00Z"}},
        ]
    }
    (same,) = shown({"on": True})["must"]
    assert same == {"should": [{"key": "on", "match": {"value": True}}]}


def test_a_number_is_one_whether_it_is_written_with_a_point_or_not() -> None:
    (equal,) = shown({"year": [3, 2.5]})["must"]
    assert {"key": "year", "match": {"any": [3]}} in equal["should"]
    assert {"key": "year", "range": {"gte": 2.5, "lte": 2.5}} in equal["should"]
    # More than a double holds: only the whole number itself.
    (large,) = shown({"year": 2**53 + 1})["must"]
    assert large == {"should": [{"key": "year", "match": {"any": [2**53 + 1]}}]}


def test_a_filter_of_qdrants_is_used_as_it_is() -> None:
    own = models.Filter(must=[models.HasIdCondition(has_id=[1])])
    assert filter_of(own, []) is own


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"title": "a"}, "may name day, kind, on, year"),
        ({"kind": {"gt": "a"}}, "orders numbers and times alone"),
        ({"on": {"gt": True}}, "orders numbers and times alone"),
        ({"year": {"gt": 2**60}}, "compares doubles"),
        ({}, "0 fields"),
        ("kind = 'a'", "has no SQL"),
        (("kind = %s", ["a"]), "has no SQL"),
    ],
)
def test_other_filters_are_refused(asked: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        filter_of(asked, ALLOWED)
