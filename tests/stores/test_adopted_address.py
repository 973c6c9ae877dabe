"""The names in an address of a table or a collection of somebody's own."""

from __future__ import annotations

import uuid

import pytest

from evergram.errors import DataError
from evergram.stores.adopted_address import canonical_uuids, read_names, split_address


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
    ("rest", "words"),
    [
        ("", "part 1 after the # is empty"),
        ("t", "part 1 after the # begins with no key and =; a key is table, id, schema, filter or"),
        ("table=t", "v0=, or of another version, is missing after the #"),
        ("v0=e", "table= is missing after the #"),
        ("table=&v0=e", "no name stands after table="),
        ("table=t&v0=e&v0=f", "v0= is in it twice"),
        ("table=t&v00=e", "part 2 after the # begins with no key"),
        ("table=t&v0=", "no name stands after v0="),
        ("table=t&v0", "'v0', part 2 after the #, has no ="),
        ("table=t&v0=e&tabel=s", r"part 3 after the # .* \(did you mean 'table'\?\)"),
        ("table=t&v0=e&&", "part 3 after the # is empty"),
        ("table=t%00&v0=e", r"after table= there is a NUL"),
        ("table=t&id=&v0=e", "no name stands after id="),
        ("table=t&v0=%zz", "after v0= there is a % without two hexadecimal digits"),
        ("table=50%&v0=e", "after table= there is a % without two hexadecimal digits"),
        ("table=t&v0=e&filter=a,%2", "after filter= there is a % without two hexadecimal digits"),
        ("table=t&v0=%ff", "the escapes with % in the name after v0= are no UTF-8"),
    ],
)
def test_the_part_that_is_wrong_is_named_with_the_form(rest: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as refused:
        read_names(rest, "table", "THE FORM", ["schema"])
    assert str(refused.value).endswith(" A table of your own is THE FORM.")


def test_an_address_has_a_place_and_names() -> None:
    assert split_address("a#b#v0=e", "F") == ("a#b", "v0=e")
    with pytest.raises(DataError, match="there is no # in it"):
        split_address("secret", "F")
    with pytest.raises(DataError, match="nothing stands before the #"):
        split_address("#v0=e", "F")


def test_a_name_that_is_wrong_is_not_repeated() -> None:
    for rest in ("secret", "table=secret%zz&v0=e", "secret=secret", "table=secret&table=secret"):
        with pytest.raises(DataError) as refused:
            read_names(rest, "table", "F")
        assert "secret" not in str(refused.value)


def test_a_version_without_a_name_has_an_equals_sign() -> None:
    with pytest.raises(DataError, match="'v0', part 2 after the #, has no ="):
        read_names("table=t&v0", "table", "THE FORM", unnamed=True)


def test_two_versions_are_in_two_columns() -> None:
    with pytest.raises(DataError, match="one column"):
        read_names("table=d&v0=e&v1=e", "table", "F")


def test_only_uuids_as_they_are_usually_written_are_ids() -> None:
    one = str(uuid.uuid4())
    assert canonical_uuids(["a", one, one.upper(), f"{{{one}}}"]) == [one]
