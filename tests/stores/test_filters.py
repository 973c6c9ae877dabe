"""Filters of tables of one's own: whatever a value is, it stays a value, in every database."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from qdrant_client import models
from tests.support.lineages import DIMS, vectors_of
from tests.support.own_tables import KINDS, table_of

from evergram.errors import DataError, StoreError
from evergram.stores.open_store import open_store

QUERY = {0: np.ones((1, DIMS[0]), np.float32)}
TEXTS = ["a", "b'c", "' or true --", "\\'", "x\ny", "", "%", "é", '"', "`", "a'); drop table t; --"]
NUMBERS = [-128, -3, -1, 0, 1, 2, 100, 127]
COLUMNS: dict[str, list[Any]] = {
    "id": list(range(40)),
    "kind": [["news", "sport", "o'clock; --"][i % 3] for i in range(40)],
    "text": [TEXTS[i % len(TEXTS)] for i in range(40)],
    "small": [NUMBERS[i % len(NUMBERS)] for i in range(40)],
    "year": [2000 + i % 20 for i in range(40)],
    "price": [i / 10 for i in range(40)],
    "sold": [i % 2 == 0 for i in range(40)],
    "day": [date(2026, 1, 1) + timedelta(i) for i in range(40)],
    "at": [datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(i) for i in range(40)],
}


@pytest.fixture(scope="module", params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("filtered")
    types = {"pgvector-table": {"small": "smallint", "at": "timestamptz"}}.get(request.param, {})
    columns = {**COLUMNS, "title": COLUMNS["kind"]}
    address = table_of(request.param, folder, columns, vectors_of(0, 40).numpy(), types)
    with open_store(f"{address}&id=id&filter={','.join(COLUMNS)}") as opened:
        yield opened


def ids(store: Any, asked: Any) -> list[int]:
    return sorted(store.where(asked).search(QUERY, 99)[0].ids.to_pylist())


def having(column: str, *values: Any) -> list[int]:
    return [i for i, value in enumerate(COLUMNS[column]) if value in values]


ACCEPTED: list[tuple[dict[str, Any], list[int]]] = [
    ({"kind": "o'clock; --"}, having("kind", "o'clock; --")),
    ({"kind": ["news", "o'clock; --"], "year": [2000, 2003]}, [0, 3, 20, 23]),
    ({"day": {"gte": "2026-01-31", "lt": "2026-02-02"}}, [30, 31]),
    ({"at": {"gt": "2026-02-07T12:00:00+01:00", "lte": "2026-02-08 12:00"}}, [37, 38]),
    ({"price": [0.3, 1]}, [3, 10]),
    ({"price": {"gt": -1e39, "lt": 0.35}}, [0, 1, 2, 3]),
    ({"year": 2000.0}, [0, 20]),
    *(({"year": number}, []) for number in (2000.5, 2**53 + 1, 2**63 - 1)),
    ({"year": {"gt": 2018.5, "lt": 10**9}}, [19, 39]),
    ({"sold": False, "price": {"lt": 0.35}}, [1, 3]),
    ({"sold": [True, False]}, list(range(40))),
]
# A store's own terms.
RAW: dict[str, list[tuple[Any, list[int]]]] = {
    "pgvector-table": [
        ("kind = 'news' and year >= 2018 -- so", [18, 39]),
        (("kind = %s and year > %s", ["news", 2017]), [18, 39]),
        ("(year > 2018) or (year < 2001)", [0, 19, 20, 39]),
        (
            "kind = ')' or kind = 'it''s (' or kind = E'\\')' or kind like 'new%'",
            having("kind", "news"),
        ),
        ("kind = $$($$ or kind = $x$ $$ ) $x$ /* ) */ or id = 3 -- )", [3]),
    ],
    "lance-table": [
        ("kind = 'news' and year >= 2018 -- so", [18, 39]),
        ("kind like 'new%' or `kind` = ')'", having("kind", "news")),
    ],
    "qdrant-collection": [
        (
            models.Filter(should=[models.FieldCondition(key="price", range=models.Range(gt=3.85))]),
            [39],
        ),
        # Its payload has no types: a value of another type is in no point.
        *(({"year": "2001"}, []), ({"kind": 3}, [])),
    ],
}


def test_filters_of_every_form_and_a_store_s_own_terms(store: Any) -> None:
    for asked, expected in (*ACCEPTED, *RAW[store.kind]):
        assert ids(store, asked) == expected, asked


ANYWHERE: list[Any] = [
    *({}, {str(i): 1 for i in range(33)}, {1: 1}, {"a\0": 1}, {"kind": []}, {"title": "x"}),
    *({"year": list(range(1001))}, {"kind": [1, "x"]}, {"sold": [1, True]}, {"year": {}}),
    *({"year": {"near": 1}}, {"year": {"gte": [1]}}, {"kind": None}, {"year": float("nan")}),
    *({"year": 2**63}, {"kind": "x\0"}, {"kind": "\ud800"}, {"sold": {"gt": True}}),
    *({"day": {"gte": "yesterday or so"}}, {"at": {"gte": "noon"}}, "", 3, ("a", "b", "c")),
    *({'kind" = 1 or "kind': "a"}, {"e0": "a"}),
]
SQL: list[Any] = [
    *({"kind": 1}, {"year": "1"}, {"small": True}, {"day": {"gt": 3}}, {"day": "2020-13-99"}),
    *(
        "kind = ",
        "true; drop table x",
        "none = 1",
        "true) or (true",
        "(year > 20",
        "kind = ')' )\n)",
    ),
    "year > 20 /* /* */ ( */ ) or (1 = 1 /* /* */ ) */",
]
REFUSED: dict[str, list[Any]] = {
    "pgvector-table": [
        *SQL,
        {"day": "2026-W05-6"},
        {"day": {"gte": "infinity"}},
        ("kind = %s", "a"),
    ],
    "lance-table": [*SQL, {"day": "2026-01-31T12:00:00"}, ("kind = %s", ["a"])],
    "qdrant-collection": [
        *("kind = 'news'", ("kind = %s", ["a"]), {"kind": {"gt": "a"}}, {"year": {"gt": 2**60}}),
    ],
}


def test_what_cannot_be_compared_is_refused(store: Any) -> None:
    for asked in (*ANYWHERE, *REFUSED[store.kind]):
        with pytest.raises((DataError, StoreError)):
            ids(store, asked)
    assert store.count() == {0: 40}


SIGNS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
TEXT = st.one_of(
    st.sampled_from(TEXTS),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    st.text(alphabet="'\"`\\;-() /*%or tue", max_size=20),
)
NUMBER = st.one_of(
    st.integers(-300, 300),
    st.floats(-300, 300, allow_nan=False),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(NUMBERS),
)
generated = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@generated
@given(st.lists(TEXT, min_size=1, max_size=4))
@example(TEXTS[:4])
def test_a_text_matches_itself_alone(store: Any, texts: list[str]) -> None:
    assert ids(store, {"text": texts}) == having("text", *texts)
    if store.kind == "lance-table":
        for sign, compare in SIGNS.items():
            expected = [
                i
                for i, text in enumerate(COLUMNS["text"])
                if compare(text.encode(), texts[0].encode())
            ]
            assert ids(store, {"text": {sign: texts[0]}}) == expected


@generated
@given(st.lists(NUMBER, min_size=1, max_size=4), st.sampled_from(["in", *SIGNS]))
@example([2, 1.5], "in")
@example([2**63 - 1], "gt")
@example([-(2**63)], "gte")
@example([-128], "lt")
@example([127.0], "lte")
@example([1e300], "lt")
def test_numbers_are_compared_as_python_compares_them(
    store: Any, numbers: list[float], sign: str
) -> None:
    if sign == "in":
        assert ids(store, {"small": numbers}) == having("small", *numbers)
        return
    number, small = numbers[0], COLUMNS["small"]
    if store.kind == "qdrant-collection" and isinstance(number, int) and abs(number) > 2**53:
        return  # it compares doubles, and refuses
    expected = [i for i, value in enumerate(small) if SIGNS[sign](value, number)]
    assert ids(store, {"small": {sign: number}}) == expected
