"""From an address to a store, and what addresses are refused: without repeating a password."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.postgres_server import postgres
from tests.support.store_kinds import STORES

from evergram.errors import DataError, StoreError
from evergram.stores.open_store import open_store
from evergram.stores.pgvector_store import read_address, show_address
from evergram.stores.store import Space

ADDRESSES: dict[str, Callable[[Path], str]] = {
    "snapshot": lambda folder: f"snapshot:{folder}/a:b",
    "folder": str,
    "lance": lambda folder: f"lance:{folder}#emb",
    "qdrant": lambda folder: f"qdrant:{folder}#emb",
    "sqlite": lambda folder: f"sqlite:{folder}/s.db#emb",
    "pgvector": lambda folder: postgres().address(),
}


@pytest.mark.parametrize("kind", ADDRESSES)
def test_a_store_is_made_when_it_is_asked_for_and_opened_by_its_address(
    kind: str, tmp_path: Path
) -> None:
    address = ADDRESSES[kind](tmp_path / "new")
    with pytest.raises(DataError, match="no store"):
        open_store(address)
    assert not (tmp_path / "new").exists()
    with pytest.raises(DataError, match="uuid"):
        open_store(address, create="uuid")
    with open_store(address, create="string") as store:
        assert store.kind == ("snapshot" if kind == "folder" else kind)
        address = store.address
    with open_store(address) as again:
        assert (again.id_type, again.spaces()) == (pa.string(), {})
    with pytest.raises(DataError, match="ids of type string"):
        open_store(address, create="int64")


# By address: a place or a name is wrong, or the part of a table's address that is named.
WRONG = dict.fromkeys(
    [
        *("redis://host/0", "postgres://ann:secret@host/db#t", "snapshots:here"),
        *("lance:emb", "lance:here#../x", "lance:s3://bucket/here?key=secret#mine"),
        *("qdrant:emb", "qdrant:http://me:secret@h:6333#emb", "qdrant:http://h?k=secret#e"),
        *(f"lance:here#{name}" for name in ("", "-a", "a b", 'a"b', "é", "a\n", "x" * 41)),
        *("qdrant:here#a/b", "sqlite:s.db", "sqlite:here/s.db#../x"),
        *("postgresql://ann:secret@db/v", "postgresql://ann:sec%ret@db/v#emb", "postgresql:#emb"),
        *("postgresql://ann:secret/x@db/v#emb", "postgresql://ann:12#secret@db/v#"),
        *('postgresql://ann:secret@db/v#a"b', "lance-table:#table=mine&v0=e0"),
        "lance-table:s3://b?key=secret#table=t&v0=e",
        *(
            f"pgvector-table:postgresql://me:secret@db{rest}"
            for rest in ("", "#secret", "#table=d&v00=e", "#table=d%00&v0=e", ":x#table=d&v0=e")
        ),
        *(
            f"qdrant-collection:{rest}"
            for rest in (
                *("", "#v0=", "#collection=c&v0", "ftp://h#collection=c&v0="),
                *("http://me:secret@h#collection=c&v0=", "http://h?key=secret#collection=c&v0="),
                *("d#collection=c&table=t&v0=", "d#collection=c&v0=&v1=b"),
                *("d#collection=c&v0=b&v1=b", "d#collection=c&v0=&id=a.b"),
            )
        ),
    ],
    ".",
) | {
    f"lance-table:here#{rest}": f"{named}.*lance-table:PLACE#table=NAME"
    for rest, named in (
        *(("", "part 1"), ("secret", "part 1"), ("table=t", "v0="), ("v0=e", "table=")),
        *(("table=&v0=e", "table="), ("table=secret&v0=e&v0=f", "v0="), ("table=t&v0=", "v0=")),
        *(("table=t&v0", "part 2"), ("table=t&v0=e&tabel=s", "'table'")),
        *(("table=secret%zz&v0=e", "table="), ("table=t&v0=e&filter=a,%2", "filter=")),
    )
}


def test_a_wrong_address_is_not_repeated_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for address, named in WRONG.items():
        with pytest.raises(DataError, match=named) as refused:
            open_store(address, create="int64" if "-" not in address.partition(":")[0] else None)
        assert "secret" not in str(refused.value)
        assert not list(tmp_path.iterdir())


def test_a_folder_with_segments_of_its_own_is_not_made_a_store(tmp_path: Path) -> None:
    """A store would clear them away."""
    film = tmp_path / "segments" / "holiday.mp4"
    film.parent.mkdir()
    film.write_text("film")
    with pytest.raises(StoreError, match="segments"):
        open_store(str(tmp_path), create="int64")
    assert film.read_text() == "film"
    film.unlink()
    open_store(str(tmp_path), create="int64").close()


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("://ann:s%40cret@db:5433/v?sslmode=require#emb", "://ann@db:5433/v?sslmode=require#emb"),
        (
            "://ann:s%40cret@/v?host=/run/pg&port=5433&password=secret#emb",
            "://ann@/v?host=%2Frun%2Fpg&port=5433#emb",
        ),
        ("://db/v?options=-c%20work_mem%3D1GB#emb", "://db/v?options=-c%20work_mem%3D1GB#emb"),
        ("://a:1,b:2/v#emb", ":///v?host=a%2Cb&port=1%2C2#emb"),
    ],
)
def test_an_address_of_postgresql_is_shown_without_its_password(address: str, shown: str) -> None:
    params, name = read_address(f"postgresql{address}")
    assert show_address(params, name) == f"postgresql{shown}"
    without = {k: v for k, v in params.items() if k != "password"}
    assert read_address(f"postgresql{shown}") == (without, name)


EXTRAS = [
    ("lancedb", "lance", "lance:{}#emb"),
    ("qdrant_client", "qdrant", "qdrant:{}#emb"),
    ("apsw", "sqlite", "sqlite:{}/s.db#emb"),
    ("psycopg", "pgvector", "postgresql://ann@db/vectors#emb"),
]
CLIENTS = ["lance_store", "qdrant_store", "sqlite_store", "pgvector_store"]


@pytest.mark.parametrize(("module", "extra", "address"), EXTRAS)
def test_without_its_client_the_error_says_what_to_install(
    module: str, extra: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CLIENTS:
        monkeypatch.delitem(sys.modules, f"evergram.stores.{name}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataError, match=rf"pip install 'evergram\[{extra}\]'"):
        open_store(address.format(tmp_path / "s"), create="int64")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("create", [None, "int64"])
def test_a_folder_that_cannot_be_looked_into_is_named(create: str | None) -> None:
    with pytest.raises(StoreError, match=r"xx cannot be .*: File name too long"):
        open_store("x" * 300, create=create)


@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "dictionary"])
def test_a_closed_store_says_so(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path, "int64")
    store.add_space(Space(0, 2, "sha256:zero"))
    for _ in range(2):
        store.close()
    if kind == "snapshot":  # it has nothing open
        return
    with pytest.raises(StoreError, match="was closed"):
        store.fetch([1])
