"""The form of filters, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest

from evergram.errors import DataError
from evergram.stores.filters import Condition, read_conditions, type_of


def test_conditions_are_values_lists_and_bounds() -> None:
    asked = {"a": "x", "b": [1, 2.5], "c": {"gte": 1, "lt": 3}, "d": True}
    conditions = read_conditions(asked)
    assert conditions == [
        Condition("a", "in", ("x",)),
        Condition("b", "in", (1, 2.5)),
        Condition("c", "gte", (1,)),
        Condition("c", "lt", (3,)),
        Condition("d", "in", (True,)),
    ]
    assert [type_of(c) for c in conditions] == ["text", "number", "number", "number", "boolean"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "0 fields"),
        ({str(i): 1 for i in range(33)}, "33 fields"),
        ({1: 1}, "no name"),
        ({"a\0": 1}, "no name"),
        ({"a": []}, "0 values"),
        ({"a": list(range(1001))}, "1001 values"),
        ({"a": [1, "x"]}, "several types"),
        ({"a": [1, True]}, "several types"),
        ({"a": {}}, "bounds"),
        ({"a": {"near": 1}}, "bounds"),
        ({"a": {"gte": [1]}}, "no text, number or boolean"),
        ({"a": None}, "no text, number or boolean"),
        ({"a": float("nan")}, "not finite"),
        ({"a": 2**63}, "64 bits"),
        ({"a": "x\0"}, "no text has"),
        ({"a": "\ud800"}, "no text has"),
    ],
)
def test_other_forms_are_refused(asked: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_conditions(asked)
