"""The names in an address of a table or a collection of somebody's own."""

from __future__ import annotations

import uuid

import pytest

from evergram.errors import DataError
from evergram.stores.adopted_address import canonical_uuids, read_names


def test_names_are_read_and_written_again() -> None:
    names = read_names(
        "table=My %26 docs&schema=s&id=key&v1=new&v0=o%23ld&filter=a,b%2Cc",
        "table",
        "F",
        ["schema"],
    )
    assert names.others == {"table": "My & docs", "schema": "s"}
    assert names.id == "key"
    assert list(names.vectors.items()) == [(0, "o#ld"), (1, "new")]
    assert names.filters == ("a", "b,c")
    again = read_names(names.fragment, "table", "F", ["schema"])
    assert again == names
    assert read_names("table=t&v0=", "table", "F", unnamed=True).vectors == {0: ""}


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "t",
        "table=t",
        "v0=e",
        "table=&v0=e",
        "table=t&v0=e&v0=f",
        "table=t&v00=e",
        "table=t&v0=",
        "table=t&v0=e&schema=s",
        "table=t%00&v0=e",
        "table=t&id=&v0=e",
    ],
)
def test_other_names_are_refused_by_the_form(rest: str) -> None:
    with pytest.raises(DataError, match="of your own is THE FORM"):
        read_names(rest, "table", "THE FORM")


def test_a_version_without_a_name_has_an_equals_sign() -> None:
    with pytest.raises(DataError, match="THE FORM"):
        read_names("table=t&v0", "table", "THE FORM", unnamed=True)


def test_two_versions_are_in_two_columns() -> None:
    with pytest.raises(DataError, match="one column"):
        read_names("table=d&v0=e&v1=e", "table", "F")


def test_only_uuids_as_they_are_usually_written_are_ids() -> None:
    one = str(uuid.uuid4())
    assert canonical_uuids(["a", one, one.upper(), f"{{{one}}}"]) == [one]
