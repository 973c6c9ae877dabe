"""Addresses of lineages, and the folders in which they are mirrored."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.artefacts import artefact
from tests.support.buckets import PLACE
from tests.support.publishing import publish_next

from evergram.errors import LineageError
from evergram.lineage.lineage import Lineage
from evergram.lineage.remote.addresses import cache_folder, filesystem, local_folder, mirror_of


def test_a_file_address_is_a_folder(tmp_path: Path) -> None:
    lineage = Lineage.create(f"file://{tmp_path}/a%20b")
    publish_next(lineage, artefact(2))
    assert lineage.path == tmp_path / "a b"
    assert Lineage.open(tmp_path / "a b").newest == Lineage.open(f"file://{tmp_path}/a b").newest
    assert not cache_folder().exists()
    with pytest.raises(LineageError, match="names the host 'x'"):
        local_folder("file://x/y")
    # A drive letter makes no address.
    assert local_folder("C:/x") == Path("C:/x")
    assert mirror_of("s3://a") != mirror_of("s3://b")


def test_without_fsspec_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(LineageError, match=r"pip install 'evergram\[remote\]'"):
        Lineage.open(PLACE)


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("lineages/shop", "lineages/shop"),
        ("file:///data/a%20b", "/data/a b"),
        ("local://localhost/data", "/data"),
        ("FILE:///data", "/data"),
        ("s3://bucket/shop", None),
        ("filecache::s3://bucket/shop", None),
        (Path("s3://bucket"), "s3:/bucket"),
    ],
)
def test_paths_and_file_addresses_are_folders_of_this_machine(
    place: str | Path, folder: str | None
) -> None:
    assert local_folder(place) == (None if folder is None else Path(folder))


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERGRAM_CACHE", "~/caches")
    assert cache_folder() == Path.home() / "caches"
    assert mirror_of("s3://a").parent == Path.home() / "caches" / "lineages"
    monkeypatch.setenv("EVERGRAM_CACHE", "")
    assert cache_folder().name == "evergram"


@pytest.mark.parametrize("address", ["nothing://x", "gs://x/y"])
def test_an_address_that_fsspec_cannot_open_is_an_error(address: str) -> None:
    with pytest.raises(LineageError, match=f"{address} cannot be opened: .*[^.]\\.$"):
        filesystem(address)


@pytest.mark.parametrize("address", ["memory://team[eu]/shop", "s3://[/shop"])
def test_an_address_that_is_none_is_said_to_be_none(address: str) -> None:
    with pytest.raises(LineageError, match="is no address"):
        Lineage.open(address)


@pytest.mark.parametrize("address", ["memory://teams/shop*", "memory://teams/a?b", "s3://b/[ab]"])
def test_wildcards_would_name_other_lineages_too(address: str) -> None:
    with pytest.raises(LineageError, match="stand for other characters"):
        filesystem(address)
