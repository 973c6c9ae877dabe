"""Filters as LanceDB's SQL: whatever a value is, it stays one."""

from __future__ import annotations

import operator
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from evergram.errors import DataError
from evergram.stores.lance.lance_filter import limits, quoted, sql_of

TEXTS = ["a", "b'c", "' or true --", "\\'", "x\ny", "", "%", "é", '"', "`", "a'); drop table t; --"]
NUMBERS = [-128, -3, -1, 0, 1, 2, 100, 127]
COLUMNS = {"text": pa.string(), "small": pa.int8(), "real": pa.float64(), "on": pa.bool_()}
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
    query = table.search().where(sql_of(asked, COLUMNS, list(COLUMNS)))
    values: list[Any] = query.select([column]).to_arrow()[column].to_pylist()
    return values


common = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@common
@given(st.lists(TEXT, min_size=1, max_size=4), st.sampled_from(["in", *SIGNS]))
@example(TEXTS[:4], "in")
def test_a_text_matches_itself_alone(table: Any, texts: list[str], sign: str) -> None:
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
def test_numbers_are_compared_as_python_compares_them(
    table: Any, numbers: list[float], sign: str
) -> None:
    for column, values in (("small", NUMBERS), ("real", [n / 4 for n in NUMBERS])):
        if sign == "in":
            expected = [v for v in values if v in numbers]
            assert matching(table, {column: numbers}, column) == expected
        else:
            expected = [v for v in values if SIGNS[sign](v, numbers[0])]
            assert matching(table, {column: {sign: numbers[0]}}, column) == expected


def test_conditions_become_literals() -> None:
    asked = {"text": ["a'b", "c"], "small": {"gte": 1.5, "lt": 900}, "on": True}
    assert sql_of(asked, COLUMNS, list(COLUMNS)) == (
        "(`text` in ('a''b', 'c') and `small` >= 2 and `small` is not null and `on` in (true))"
    )
    assert sql_of("kind like 'a%' -- so", COLUMNS, []) == "(\nkind like 'a%' -- so\n)"
    assert limits(pa.uint8()) == (0, 255)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"text` = '' or `text": "a"}, "may name on, real, small, text"),
        ({"embedding": "a"}, "may name"),
        ({"text": 1}, "of type string, with a number"),
        ({"small": "1"}, "of type int8, with a text"),
        ({"small": True}, "with a boolean"),
        ({"on": {"gt": True}}, "with a boolean"),
        ({"day": "yesterday"}, "give a date without a time, such as '2026-01-31'"),
        ({"day": "2026-01-31T12:00:00"}, "give a date without a time, such as '2026-01-31'"),
        ({"moment": "noon"}, "give a date or a time such as '2026-01-31' or"),
        ({"day": {"gt": 3}}, r"of type date32\[day\], with a number"),
        ("", "boolean expression"),
        (("text = 'a'", []), "boolean expression"),
        ("text = 'a') or (text = 'b'", "do not pair"),
        ("(text = 'a'", "do not pair"),
        (3, "boolean expression"),
    ],
)
def test_other_filters_are_refused(asked: Any, words: str) -> None:
    columns = {
        **COLUMNS,
        "day": pa.date32(),
        "moment": pa.timestamp("us"),
        "embedding": pa.string(),
    }
    named = asked if isinstance(asked, dict) else {}
    allowed = [*COLUMNS, *({"day", "moment"} & named.keys())]
    with pytest.raises(DataError, match=words):
        sql_of(asked, columns, allowed)


def test_a_name_that_cannot_be_written_is_refused() -> None:
    assert quoted("a'b\"c") == "`a'b\"c`"
    with pytest.raises(DataError, match="LanceDB's SQL cannot write"):
        quoted("a`b")
