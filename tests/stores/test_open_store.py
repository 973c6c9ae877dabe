"""From an address to a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergram.errors import DataError, StoreError
from evergram.stores.open_store import open_store


@pytest.mark.parametrize("address", ["redis://host/0", "postgres://host/db#t", "snapshots:here"])
def test_a_scheme_that_is_not_known_is_no_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="postgresql://USER@HOST/DATABASE#TABLE"):
        open_store(address, create="int64")
    assert not list(tmp_path.iterdir())


def test_a_path_is_a_snapshot_and_so_is_one_with_a_colon_that_says_so(tmp_path: Path) -> None:
    for address in (str(tmp_path / "a"), f"snapshot:{tmp_path}/b:c"):
        with open_store(address, create="string") as store:
            assert store.kind == "snapshot"


def test_ids_are_of_one_of_two_types(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="int64 or string"):
        open_store(str(tmp_path), create="uuid")


def test_a_folder_with_segments_of_its_own_is_not_made_a_store(tmp_path: Path) -> None:
    """A store would clear them away."""
    film = tmp_path / "segments" / "holiday.mp4"
    film.parent.mkdir()
    film.write_text("film")
    with pytest.raises(StoreError, match=r"'segments' with other files.*another folder"):
        open_store(str(tmp_path), create="int64")
    assert film.read_text() == "film"
    film.unlink()
    open_store(str(tmp_path), create="int64").close()
