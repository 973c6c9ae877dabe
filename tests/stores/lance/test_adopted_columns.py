"""A table of somebody's own is refused by the column that does not fit, and why."""

from __future__ import annotations

import pyarrow as pa
import pytest

from evergram.errors import StoreError
from evergram.stores.adopted_address import read_names
from evergram.stores.lance.adopted_columns import check_columns, check_unique, own_condition

TYPES = {
    "id": pa.string(),
    "large": pa.uint64(),
    "one": pa.list_(pa.float32(), 3),
    "loose": pa.list_(pa.float32()),
    "whole": pa.list_(pa.int8(), 3),
    "price": pa.float64(),
}


def check(id_column: str, vectors: str, filters: str = "") -> None:
    more = f"&filter={filters}" if filters else ""
    names = read_names(f"table=t&id={id_column}&v0={vectors}{more}", "table", "FORM")
    check_columns(TYPES, id_column, names, "lance-table:t")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("key", "one"), "the column 'key', which the table does not have; it has id, large"),
        (("id", "two"), "the column 'two', which"),
        (("id", "one", "colour"), "the column 'colour', which"),
        (("large", "one"), "'large' .* of type uint64; for ids it must be of whole numbers"),
        (("price", "one"), "'price' .* for ids it must be"),
        (("id", "loose"), "'loose' .* for vectors it must be a fixed_size_list"),
        (("id", "whole"), "'whole' .* for vectors it must be"),
        (("id", "one", "loose"), "'loose' .* which no filter compares"),
    ],
)
def test_a_column_that_does_not_fit_is_named(columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        check(*columns)


def test_columns_that_fit_are_taken() -> None:
    check("id", "one", "price")


def test_an_id_that_is_twice_is_named() -> None:
    check_unique(pa.array([1, 2]), "lance-table:t")
    with pytest.raises(StoreError, match="lance-table:t has the id 2 twice"):
        check_unique(pa.array([1, 2, 3, 2]), "lance-table:t")


def test_a_row_is_of_the_newest_version_whose_column_it_has() -> None:
    vectors = {0: "old", 1: "mid", 2: "new"}
    condition = own_condition(1, "id", vectors)
    assert condition.replace("`", "") == "id is not null and mid is not null and new is null"
