"""Filters as SQL: values are never part of the text, and names only as the operator allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evergram.errors import DataError
from evergram.stores.postgres.sql_filter import sql_of

COLUMNS = {
    **{"kind": "text", "year": "int4", "price": "float8", "on": "bool", "day": "date", "v": "x"},
    **{"time": "timestamptz", "key": "uuid"},
}
ALLOWED = list(COLUMNS)


def text_of(asked: Any) -> tuple[str, list[Any]]:
    query, values = sql_of(asked, COLUMNS, ALLOWED)
    return query.as_string(None), values


def test_conditions_become_bound_parameters() -> None:
    asked = {"kind": "a'); drop table x; --", "year": {"gte": 1, "lt": 2.5}, "on": True}
    text, values = text_of(asked)
    assert text == (
        '("kind" = any(%s::text[]) and "year" >= (%s::bigint[])[1]'
        ' and "year" < (%s::numeric[])[1] and "on" = any(%s::boolean[]))'
    )
    assert values == [["a'); drop table x; --"], [1], [2.5], [True]]


def test_dates_times_and_uuids_are_written_as_such() -> None:
    key = "0f8fad5b-d9cb-469f-a165-70867728950e"
    times = ["2026-01-31", "2026-01-31 12:00", "2026-01-31T12:00:00.5+01:00"]
    _, values = text_of({"day": "2026-01-31", "time": times, "key": key})
    assert values == [["2026-01-31"], times, [key]]


def test_sql_of_pythons_own_is_used_as_it_is() -> None:
    assert text_of("kind like 'a%' -- so") == ("(\nkind like 'a%%' -- so\n)", [])
    assert text_of(("kind = %s", ["a"])) == ("(\nkind = %s\n)", ["a"])


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
def test_parentheses_within_strings_names_and_comments_need_no_partner(asked: str) -> None:
    assert text_of(asked)[0] == f"(\n{asked}\n)"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({'kind" = 1 or "kind': "a"}, "may name day, key, kind"),
        ({"embedding": "a"}, "may name"),
        ({"kind": 1}, "of type text, with a number"),
        ({"year": "1"}, "of type int4, with a text"),
        ({"year": True}, "with a boolean"),
        ({"on": {"gt": True}}, "with a boolean"),
        ({"v": "a"}, "of type x"),
        ({"day": "yesterday"}, "'day', of type date, with 'yesterday'; write it as '2026-01-31'"),
        ({"day": {"gte": "infinity"}}, "of type date"),
        ({"day": "2020-13-99"}, "with '2020-13-99'; write it as"),
        ({"day": "2026-W05-6"}, "of type date"),
        ({"time": ["2026-01-31", "now"]}, "of type timestamptz, with 'now'"),
        ({"key": "no uuid"}, "of type uuid, with 'no uuid'"),
        ("", "boolean expression"),
        (3, "boolean expression"),
        (("a", "b", "c"), "boolean expression"),
        (("kind = %s", "a"), "boolean expression"),
        ("year > 2020) or (year < 1995", "do not pair"),
        ("(year > 2020", "do not pair"),
        ("year > 2020 /* /* */ ( */ ) or (1 = 1 /* /* */ ) */", "a comment is within another"),
        ("kind = ')' -- )\n)", "do not pair"),
    ],
)
def test_other_filters_are_refused(asked: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        text_of(asked)


def test_without_allowed_columns_no_field_may_be_named() -> None:
    with pytest.raises(DataError, match="no field may be named"):
        sql_of({"kind": "a"}, COLUMNS, [])


def test_a_column_of_float32_is_compared_in_its_own_precision() -> None:
    """PostgreSQL refuses numbers beyond it, where every row is below or above them."""
    query, values = sql_of({"score": {"gt": -1e39, "lt": 0.1}}, {"score": "float4"}, ["score"])
    assert query.as_string(None) == '("score" > (%s::real[])[1] and "score" < (%s::real[])[1])'
    assert values == [[-float("inf")], [float(np.float32(0.1))]]
