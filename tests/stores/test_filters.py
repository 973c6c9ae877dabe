"""Filters: their form, and as SQL and as Qdrant's own, where whatever a value is, it stays one."""

from __future__ import annotations

import operator
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from qdrant_client import models

from evergram.errors import DataError
from evergram.stores.filters import Condition, read_conditions, type_of
from evergram.stores.lance import lance_filter
from evergram.stores.lance.lance_filter import limits, quoted
from evergram.stores.postgres import sql_filter
from evergram.stores.qdrant.qdrant_filter import filter_of


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


FORMS: list[Any] = [
    *({}, {str(i): 1 for i in range(33)}, {1: 1}, {"a\0": 1}, {"a": []}),
    *({"a": list(range(1001))}, {"a": [1, "x"]}, {"a": [1, True]}, {"a": {}}, {"a": {"near": 1}}),
    *({"a": {"gte": [1]}}, {"a": None}, {"a": float("nan")}, {"a": 2**63}),
    *({"a": "x\0"}, {"a": "\ud800"}),
]


def test_other_forms_are_refused() -> None:
    for asked in FORMS:
        with pytest.raises(DataError):
            read_conditions(asked)


POSTGRES = {
    **{"text": "text", "small": "int4", "real": "float8", "on": "bool", "day": "date"},
    **{"time": "timestamptz", "key": "uuid", "v": "x"},
}
LANCE = {
    **{"text": pa.string(), "small": pa.int8(), "real": pa.float64(), "on": pa.bool_()},
    **{"day": pa.date32(), "time": pa.timestamp("us")},
}


def postgres(asked: Any) -> tuple[str, list[Any]]:
    query, values = sql_filter.sql_of(asked, POSTGRES, list(POSTGRES))
    return query.as_string(None), values


def lance(asked: Any) -> str:
    return lance_filter.sql_of(asked, LANCE, list(LANCE))


def qdrant(asked: Any) -> Any:
    return filter_of(asked, list(LANCE)).model_dump(exclude_none=True, mode="json")


BOTH: list[tuple[Any, str]] = [
    ({'text" = 1 or "text': "a"}, "text"),
    ({"embedding": "a"}, "embedding"),
    ({"text": 1}, "text"),
    ({"small": "1"}, "small"),
    ({"small": True}, "boolean"),
    ({"on": {"gt": True}}, "boolean"),
    ({"day": {"gt": 3}}, "day"),
    *((({"day": text}), "2026-01-31") for text in ("yesterday", "2020-13-99")),
    ({"time": "noon"}, "2026-01-31"),
    *((asked, "boolean expression") for asked in ("", 3, ("a", "b", "c"))),
    *((asked, "pair") for asked in ("a > 20) or (a < 95", "(a > 20", "a = ')' -- )\n)")),
    ("small > 20 /* /* */ ( */ ) or (1 = 1 /* /* */ ) */", "comment"),
]
REFUSED = [
    *((ask, asked, named) for ask in (postgres, lance) for asked, named in BOTH),
    (postgres, {"v": "a"}, "'v'"),
    (postgres, {"day": "2026-W05-6"}, "day"),
    (postgres, {"key": "no uuid"}, "key"),
    (postgres, {"day": {"gte": "infinity"}}, "day"),
    (postgres, ("text = %s", "a"), "boolean expression"),
    (lance, {"day": "2026-01-31T12:00:00"}, "2026-01-31"),
    (lance, ("text = 'a'", []), "boolean expression"),
    (qdrant, {"title": "a"}, "title|text"),
    (qdrant, {"text": {"gt": "a"}}, "orders"),
    (qdrant, {"on": {"gt": True}}, "orders"),
    (qdrant, {"small": {"gt": 2**60}}, "small"),
    *((qdrant, asked, "SQL") for asked in ("text = 'a'", ("text = %s", ["a"]))),
]


def test_what_cannot_be_compared_is_refused() -> None:
    for ask, asked, named in REFUSED:
        with pytest.raises(DataError, match=named):
            ask(asked)


def test_conditions_become_bound_parameters_of_postgresql() -> None:
    asked = {"text": "a'); drop table x; --", "small": {"gte": 1, "lt": 2.5}, "on": True}
    text, values = postgres(asked)
    assert text == (
        '("text" = any(%s::text[]) and "small" >= (%s::bigint[])[1]'
        ' and "small" < (%s::numeric[])[1] and "on" = any(%s::boolean[]))'
    )
    assert values == [["a'); drop table x; --"], [1], [2.5], [True]]
    key = "0f8fad5b-d9cb-469f-a165-70867728950e"
    times = ["2026-01-31", "2026-01-31 12:00", "2026-01-31T12:00:00.5+01:00"]
    _, values = postgres({"day": "2026-01-31", "time": times, "key": key})
    assert values == [["2026-01-31"], times, [key]]
    # Its own precision: PostgreSQL refuses numbers beyond it, where every row is below or above.
    query, values = sql_filter.sql_of({"s": {"gt": -1e39, "lt": 0.1}}, {"s": "float4"}, ["s"])
    assert query.as_string(None) == '("s" > (%s::real[])[1] and "s" < (%s::real[])[1])'
    assert values == [[-float("inf")], [float(np.float32(0.1))]]


@pytest.mark.parametrize(
    "asked",
    [
        "(year > 2020) or (year < 1995)",
        "kind = ')' or kind = 'it''s (' or kind = E'\\')'",
        """"a)b" = $$($$ or kind = $x$ $$ ) $x$""",
        "kind = 'a' -- )",
        "year /* ) */ > 3",
    ],
)
def test_sql_is_used_as_it_is_where_parentheses_have_a_partner(asked: str) -> None:
    assert postgres(asked) == (f"(\n{asked}\n)", [])
    assert postgres(("kind like 'a%%' and kind = %s", ["a"]))[1] == ["a"]
    assert postgres("kind like 'a%'") == ("(\nkind like 'a%%'\n)", [])
    assert lance("kind like 'a%' -- so") == "(\nkind like 'a%' -- so\n)"


TEXTS = ["a", "b'c", "' or true --", "\\'", "x\ny", "", "%", "é", '"', "`", "a'); drop table t; --"]
NUMBERS = [-128, -3, -1, 0, 1, 2, 100, 127]
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


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    columns = pa.table(
        {
            "text": pa.array(TEXTS + [None] * len(NUMBERS)),
            "small": pa.array([None] * len(TEXTS) + NUMBERS, pa.int8()),
            "real": pa.array([None] * len(TEXTS) + [n / 4 for n in NUMBERS]),
        }
    )
    return lancedb.connect(tmp_path_factory.mktemp("lance")).create_table("t", columns)


def matching(table: Any, asked: dict[str, Any], column: str) -> list[Any]:
    values: list[Any] = table.search().where(lance(asked)).select([column]).to_arrow()[column]
    return values.to_pylist()  # type: ignore[attr-defined, no-any-return]


common = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@common
@given(st.lists(TEXT, min_size=1, max_size=4), st.sampled_from(["in", *SIGNS]))
@example(TEXTS[:4], "in")
def test_a_text_in_lancedb_matches_itself_alone(table: Any, texts: list[str], sign: str) -> None:
    if sign == "in":
        assert matching(table, {"text": texts}, "text") == [t for t in TEXTS if t in texts]
        return
    expected = [t for t in TEXTS if SIGNS[sign](t.encode(), texts[0].encode())]
    assert matching(table, {"text": {sign: texts[0]}}, "text") == expected


@common
@given(st.lists(NUMBER, min_size=1, max_size=4), st.sampled_from(["in", *SIGNS]))
@example([2**63 - 1], "gt")
@example([-(2**63)], "gte")
@example([-128], "lt")
@example([127.0], "lte")
@example([1e300], "lt")
def test_numbers_in_lancedb_are_compared_as_python_compares_them(
    table: Any, numbers: list[float], sign: str
) -> None:
    for column, values in (("small", NUMBERS), ("real", [n / 4 for n in NUMBERS])):
        if sign == "in":
            expected = [v for v in values if v in numbers]
            assert matching(table, {column: numbers}, column) == expected
        else:
            expected = [v for v in values if SIGNS[sign](v, numbers[0])]
            assert matching(table, {column: {sign: numbers[0]}}, column) == expected


def test_conditions_become_literals_of_lancedb() -> None:
    asked = {"text": ["a'b", "c"], "small": {"gte": 1.5, "lt": 900}, "on": True}
    assert lance(asked) == (
        "(`text` in ('a''b', 'c') and `small` >= 2 and `small` is not null and `on` in (true))"
    )
    assert "timestamp '2026-01-31 11:00:00'" in lance({"time": "2026-01-31T12:00:00+01:00"})
    assert limits(pa.uint8()) == (0, 255)
    assert quoted("a'b\"c") == "`a'b\"c`"


def test_conditions_become_qdrants() -> None:
    asked = {"text": ["a", "b"], "small": {"gte": 1}, "day": {"lt": "2026-01-31"}}
    assert qdrant(asked)["must"] == [
        {"key": "text", "match": {"any": ["a", "b"]}},
        {"key": "small", "range": {"gte": 1.0}},
        {"key": "day", "range": {"lt": "2026-01-31T00:00:00Z"}},
    ]
    (same,) = qdrant({"on": True})["must"]
    assert same == {"should": [{"key": "on", "match": {"value": True}}]}
    # A number is one whether it is written with a point or not.
    (equal,) = qdrant({"small": [3, 2.5]})["must"]
    assert {"key": "small", "match": {"any": [3]}} in equal["should"]
    assert {"key": "small", "range": {"gte": 2.5, "lte": 2.5}} in equal["should"]
    # More than a double holds: only the whole number itself.
    (large,) = qdrant({"small": 2**53 + 1})["must"]
    assert large == {"should": [{"key": "small", "match": {"any": [2**53 + 1]}}]}
    own = models.Filter(must=[models.HasIdCondition(has_id=[1])])
    assert filter_of(own, []) is own
