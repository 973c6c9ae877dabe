"""Addresses of tables of somebody's own."""

from __future__ import annotations

import uuid

import pytest

from evergram.errors import DataError
from evergram.stores.postgres.table_address import read_table_address, sendable

BASE = "pgvector-table:postgresql://me:se%40cret@db/shop"


def test_an_address_says_the_table_and_its_columns() -> None:
    address = read_table_address(
        f"{BASE}?sslmode=require#table=My %26 docs&schema=s&id=key&v0=old&v12=n%2Cew&filter=a,b%2Cc"
    )
    assert (address.schema, address.table, address.id) == ("s", "My & docs", "key")
    assert address.vectors == {0: "old", 12: "n,ew"}
    assert address.filters == ("a", "b,c")
    assert address.params["password"] == "se@cret"
    assert "cret" not in address.shown
    again = read_table_address(address.shown)
    assert (again.table, again.vectors, again.filters) == (
        address.table,
        address.vectors,
        address.filters,
    )
    assert again.shown == address.shown


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "#documents",
        "#table=documents",
        "#v0=e",
        "#table=&v0=e",
        "#table=d&v0=e&v0=f",
        "#table=d&v00=e",
        "#table=d&vx=e",
        "#table=d&v0=e&other=1",
        "#table=d%00&v0=e",
        ":x#table=d&v0=e",
    ],
)
def test_other_addresses_are_refused_and_not_repeated(rest: str) -> None:
    with pytest.raises(DataError, match="v0=COLUMN") as refused:
        read_table_address(f"pgvector-table:postgresql://me:secret@db{rest}")
    assert "secret" not in str(refused.value)


def test_two_versions_are_in_two_columns() -> None:
    with pytest.raises(DataError, match="one column"):
        read_table_address(f"{BASE}#table=d&v0=e&v1=e")


def test_only_ids_that_a_column_can_hold_are_sent() -> None:
    one = str(uuid.uuid4())
    assert sendable(["a", "b\0"], "text") == ["a"]
    assert sendable(["a", one, one.upper(), f"{{{one}}}"], "uuid") == [one]
