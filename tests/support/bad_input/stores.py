"""Stores: wrong addresses, databases that are off or another's, damaged files, bad backfills."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.bad_input.case import Case, nothing, put
from tests.support.bad_input.conditions import (
    PAGE,
    PORT,
    all_of,
    answering,
    deadline,
    edited,
    locked,
    patched,
)
from tests.support.command import exit_code

from evergram.stores.snapshot.snapshot_folder import SnapshotFolder


def asked(
    name: str,
    command: str,
    names: str,
    make: Callable[[Path], object] = nothing,
    during: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Case:
    return Case(name, command, names, make, all_of(deadline, during))


def fill(name: str, address: str, names: str = "", *rest: Any) -> Case:
    """Return the case of filling a store at this address."""
    return asked(name, f"store fill l --store 'object={address}'", names or address, *rest)


def planned(folder: Path) -> None:
    """Plan a backfill of the store `older`, whose rows are of version 0, and do half of it."""
    for words in ("plan l --batch 100", "apply l --rows 100"):
        command = f"store backfill {words} --store object=older"
        assert exit_code(*command.split()) == 0


def backfill(folder: Path) -> Path:
    return next(path for path in (folder / "l/backfills").iterdir() if path.is_dir())


def spoilt(name: str, file: str, content: bytes | None, command: str) -> Case:
    """Return the case of a file of a backfill that has other bytes, or is gone."""

    def make(folder: Path) -> None:
        planned(folder)
        path = backfill(folder) / file
        path.unlink()
        if content is not None:
            path.write_bytes(content)

    return asked(name, f"store backfill {command} l --store object=older", file, make)


def changed(name: str, file: str, command: str, **values: object) -> Case:
    """Return the case of a JSON file of a backfill that somebody edits; the error names a value."""

    def make(folder: Path) -> None:
        planned(folder)
        edited(str((backfill(folder) / file).relative_to(folder)), **values)(folder)

    value = str(next(iter(values.values())))
    names = file if value.startswith("sha256") else value
    return asked(name, f"store backfill {command} l --store object=older", names, make)


def lance(name: str, make: Callable[[Path], object], names: str, address: str = "e#t") -> Case:
    """Return the case of filling a store in LanceDB."""
    return fill(name, f"lance:{address}", names, make)


def filled(address: str) -> Callable[[Path], None]:
    """Return a function that fills a store."""

    def make(folder: Path) -> None:
        assert exit_code("store", "fill", "l", "--store", f"object={address}") == 0

    return make


def without_rows(folder: Path) -> None:
    """Remove the rows of a LanceDB store and leave its record."""
    filled("lance:e#t")(folder)
    for path in (folder / "e").glob("*.lance"):
        shutil.rmtree(path)


def foreign_lance(folder: Path) -> None:
    """Make a table of somebody's own, by the name that a store would take."""
    import lancedb

    table = pa.table({"name": ["a"], "price": [1.0]})
    lancedb.connect(folder / "e").create_table("t-v1", table)


def foreign_qdrant(folder: Path) -> None:
    """Make a collection of somebody's own, by the name that a store would take."""
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder / "q"))
    size = models.VectorParams(size=3, distance=models.Distance.DOT)
    client.create_collection("t", vectors_config=size)
    client.upsert("t", [models.PointStruct(id=1, vector=[1.0, 2.0, 3.0], payload={"a": 1})])
    client.close()


def foreign_sqlite(folder: Path) -> None:
    """Make a table of somebody's own, by the name that a store would take."""
    with closing(sqlite3.connect(folder / "e.db")) as connection, connection:
        connection.execute("create table t_v1 (name text, price real)")


def filled_candidates(folder: Path) -> None:
    """Fill the store `c` with the candidates of the lineage `t`."""
    assert exit_code("store", "fill", "t", "--store", "candidate=c") == 0


def side_of_another(folder: Path) -> None:
    """Edit the record of the store `s`, and leave its checksum."""
    record = json.loads((folder / "s/store.json").read_text())
    edited("s/store.json", store={**record["store"], "side": "user"})(folder)


def impatient(path: Path, _: float) -> SnapshotFolder:
    """Return a snapshot's folder whose writers wait for nobody."""
    return SnapshotFolder(path, 0.1)


@contextmanager
def refreshing() -> Iterator[None]:
    """Hold the lock of the backfill that is planned."""
    with locked(str(next(Path("l/backfills").glob(".*.lock"))))():
        yield


OFF = "qdrant:http://127.0.0.1:9#t"
PLAN = "store backfill plan l --store"
CASES = [
    asked("no store to fill", "store fill l", "--store"),
    asked("a store to fill without a side", "store fill l --store new", "--store"),
    asked("a side to fill that is not there", "store fill l --store user=new", "user"),
    asked("a side filled twice", "store fill l --store object=a --store object=b", "object"),
    asked(
        "one store for two sides", "store fill t --store query=b --store candidate=b", "'candidate'"
    ),
    asked(
        "one of two stores that is off",
        f"store fill t --store query=new --store candidate={OFF}",
        ":9",
    ),
    asked("a fill from no lineage", "store fill gone --store object=new", "gone"),
    fill("an unknown kind of store", "redis:host#t", "redis"),
    fill("a store that is a file", "shop.toml"),
    fill("a store in a folder of other files", "o", "", put("x", "o/segments/readme.txt")),
    asked("a store of another lineage", "store fill t --store candidate=s", "s has ids"),
    asked("a store of another side", "store fill t --store query=c", "c", filled_candidates),
    fill("a store's record that is no JSON", "s", "s/store.json", put("{", "s/store.json")),
    fill("rows of a store that are damaged", "s", "0.arrow", put("x", "s/segments/0.arrow")),
    fill(
        "a store that another process writes",
        "s",
        "Another process",
        nothing,
        all_of(
            locked("s/.lock"),
            patched("evergram.stores.snapshot.snapshot_store.SnapshotFolder", impatient),
        ),
    ),
    fill("a database that is off", "postgresql://me@127.0.0.1:9/d#t", "127.0.0.1:9"),
    fill("a database without a table", "postgresql://me@127.0.0.1:9/d", "#NAME"),
    fill("a table with a quotation mark", 'postgresql://me@127.0.0.1:9/d#a"b', "a"),
    fill("a LanceDB without a table", "lance:e"),
    lance("a LanceDB that is a file", nothing, "shop.toml", "shop.toml#t"),
    lance("a LanceDB below a file", nothing, "old.npy", "old.npy/e#t"),
    lance("a LanceDB record that is no JSON", put("{", "e/t.json"), "e/t.json"),
    lance("a LanceDB record that is a list", put("[]", "e/t.json"), "e/t.json"),
    lance(
        "a LanceDB record of a later format",
        put(json.dumps({"format_version": 99}), "e/t.json"),
        "99",
    ),
    lance("a LanceDB table of another's", foreign_lance, "lance:e#t"),
    lance("a LanceDB without its rows", without_rows, "lance:e#t"),
    fill("a Qdrant without a collection", "qdrant:http://127.0.0.1:9", "#NAME"),
    fill("a Qdrant without a port", "qdrant:http://127.0.0.1:port#t", "port"),
    fill(
        "a Qdrant that is a web page",
        f"qdrant:http://127.0.0.1:{PORT}#t",
        "",
        nothing,
        answering(PAGE),
    ),
    fill("a Qdrant that is a file", "qdrant:shop.toml#t", "shop.toml"),
    fill("a Qdrant below a file", "qdrant:old.npy/q#t", "old.npy"),
    fill("a Qdrant collection of another's", "qdrant:q#t", "", foreign_qdrant),
    fill("an SQLite file without a store", "sqlite:e.db"),
    fill("an SQLite file that is another's", "sqlite:shop.toml#t", "shop.toml"),
    fill("an SQLite file that is a folder", "sqlite:o#t", "o", put("x", "o/readme.txt")),
    fill("an SQLite file below a file", "sqlite:old.npy/e#t", "old.npy"),
    fill("an SQLite table of another's", "sqlite:e.db#t", "sqlite:e.db#t", foreign_sqlite),
    asked("a backfill of no store", "store backfill plan l", "--store"),
    asked("a backfill of two stores", f"{PLAN} object=s --store object=older", "one store"),
    asked("a backfill of an unknown side", f"{PLAN} user=s", "user"),
    asked("a backfill of a store that is not there", f"{PLAN} object=gone", "gone"),
    asked(
        "a backfill of a store of another lineage", "store backfill plan t --store candidate=s", "s"
    ),
    asked("batches of a backfill of no rows", f"{PLAN} object=s --batch 0", "--batch"),
    asked(
        "a backfill of half a row", "store backfill apply l --store object=s --rows 0.5", "--rows"
    ),
    asked("a backfill that nobody planned", "store backfill apply l --store object=s", "plan"),
    asked("an unknown word of a backfill", "store backfill start l --store object=s", "start"),
    asked(
        "a backfill planned while one is under way", f"{PLAN} object=older", "under way", planned
    ),
    spoilt("a plan that is no JSON", "plan.json", b"{", "apply"),
    changed("a plan of negative batches", "plan.json", "apply", batch=-1),
    changed("a plan of no batches", "plan.json", "apply", batch=0),
    changed("a plan of another version", "plan.json", "apply", fingerprint="sha256:0"),
    changed("a plan of a version that is not there", "plan.json", "status", target=7),
    spoilt("a progress that is gone", "progress.json", None, "status"),
    changed("a progress past the end", "progress.json", "apply", done=10**6),
    changed("a progress of an unknown state", "progress.json", "apply", state="half"),
    spoilt("an order that is damaged", "order.sealed", b"x" * 100, "apply"),
    spoilt("an order that is gone", "order.sealed", None, "apply"),
    spoilt("new rows of a backfill whose record is damaged", "source/store.json", b"", "apply"),
    asked(
        "two backfills of a store at once",
        "store backfill apply l --store object=older",
        "Another process",
        planned,
        refreshing,
    ),
]
