"""Addresses of collections of somebody's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergram.errors import DataError
from evergram.stores.qdrant.collection_facts import read_collection_address


def test_an_address_says_the_collection_and_its_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "qdrant-collection:https://host:6333#collection=My%20docs&id=key&v0=old&v12=n%2Cew&filter=a"
    )
    address = read_collection_address(text)
    assert (address.place, address.collection, address.field) == (
        "https://host:6333",
        "My docs",
        "key",
    )
    assert address.vectors == {0: "old", 12: "n,ew"}
    assert address.filters == ("a",)
    assert address.shown == text
    assert read_collection_address(text.replace("%20", " ")) == address
    assert address.resolved == text
    monkeypatch.chdir("/")
    folder = read_collection_address("qdrant-collection:here#collection=c&id=point&v0=")
    assert folder.field is None
    assert folder.vectors == {0: ""}
    assert folder.resolved == f"qdrant-collection:{Path('/here')}#collection=c&id=point&v0="


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "#collection=c",
        "#v0=",
        "#collection=c&v0",
        "ftp://h#collection=c&v0=",
        "http://me:secret@h#collection=c&v0=",
        "http://h?key=secret#collection=c&v0=",
        "d#collection=c&table=t&v0=",
    ],
)
def test_other_addresses_are_refused_and_not_repeated(rest: str) -> None:
    with pytest.raises(DataError, match="QDRANT_API_KEY") as refused:
        read_collection_address(f"qdrant-collection:{rest}")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("&v0=&v1=b", "has no other vector"),
        ("&v0=&id=a.b", "name a field of the payload itself"),
        ("&v0=b&v1=b", "one column"),
    ],
)
def test_names_that_do_not_go_together(rest: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_collection_address(f"qdrant-collection:d#collection=c{rest}")
