"""Issue 12, lines of stores and exports, each by its number and through the command."""

from __future__ import annotations

import csv
import gc
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn
from safetensors.numpy import load_file
from tests.support.command import Command, CommandResult
from tests.support.lineages import lineage_of, publish, vectors_of
from tests.support.postgres_server import postgres

from evergram.cli import main
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill
from evergram.stores.open_store import open_store

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = ["snapshot", "pgvector", "lance", "qdrant"]


def place(folder: Path, kind: str, name: str) -> str:
    """The address of a store that is not there yet."""
    return {
        "snapshot": f"{folder}/{name}",
        "pgvector": postgres().address(f"s{crc32(str(folder).encode())}_{name}"),
        "lance": f"lance:{folder}/lance#{name}",
        "qdrant": f"qdrant:{folder}/qdrant#{name}",
    }[kind]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A lineage of queries and candidates, whose ids are numbers from 0 on, both of them."""
    shutil.copytree(GOLDEN / "format-3" / "trained", tmp_path / "shop")
    return tmp_path / "shop"


def rows_of(address: str) -> dict[int, bytes]:
    with open_store(address) as store:
        return {
            key: vector.tobytes()
            for rows in store.scan()
            for key, vector in zip(rows.ids.to_pylist(), rows.vectors, strict=True)
        }


def one_sentence(result: CommandResult, words: str) -> None:
    code, out, err = result
    last = err.splitlines()[-1]
    assert (code, out) == (2, ""), err
    assert last.startswith("error: ")
    assert words in last, err


@pytest.mark.parametrize("kind", KINDS)
def test_3_the_other_side_of_a_store_is_refused(
    shop: Path, tmp_path: Path, evergram: Command, kind: str
) -> None:
    store = place(tmp_path, kind, "films")
    assert evergram("fill", shop, "--store", f"candidate={store}")[0] == 0
    before = rows_of(store)
    assert len(before) == 18
    words = "is the store of side 'candidate' and cannot hold side 'query'"
    one_sentence(evergram("fill", shop, "--store", f"query={store}"), words)
    one_sentence(evergram("backfill", "plan", shop, "--store", f"query={store}"), words)
    assert rows_of(store) == before
    # Its own side may come again, and the other has a store of its own.
    assert evergram("fill", shop, "--store", f"candidate={store}")[0] == 0
    other = place(tmp_path, kind, "people")
    assert evergram("fill", shop, "--store", f"query={other}")[0] == 0
    assert rows_of(store) == before
    assert len(rows_of(other)) == 26


def test_3_a_service_does_not_begin_with_the_other_side(
    shop: Path, tmp_path: Path, evergram: Command
) -> None:
    films, people = tmp_path / "films", tmp_path / "people"
    stores = ("--store", f"candidate={films}", "--store", f"query={people}")
    assert evergram("fill", shop, *stores)[0] == 0
    swapped = ("--store", f"candidate={people}", "--store", f"query={films}")
    with no_address_listened_on():
        one_sentence(evergram("serve", shop, *swapped), "cannot hold side 'candidate'")
        one_sentence(
            evergram("serve", shop, "--store", f"candidate={films}", "--store", f"query={films}"),
            "is given for side 'candidate' and for side 'query'",
        )


@pytest.mark.parametrize("store", ["{}/snapshot", "lance:{}/lance#films"])
def test_3_a_store_of_before_is_what_its_rows_prove(
    shop: Path, tmp_path: Path, evergram: Command, store: str
) -> None:
    """Filled with candidates by an Evergram whose stores had no side."""
    shutil.copytree(GOLDEN / "stores-1", tmp_path / "old")
    address = store.format(tmp_path / "old")
    before = rows_of(address)
    one_sentence(
        evergram("fill", shop, "--store", f"query={address}"),
        "cannot be used for side 'query': its rows are of 'candidate'",
    )
    assert rows_of(address) == before
    assert evergram("fill", shop, "--store", f"candidate={address}")[0] == 0
    one_sentence(
        evergram("fill", shop, "--store", f"query={address}"),
        "is the store of side 'candidate'",
    )


def read_parquet(path: Path) -> tuple[list[Any], np.ndarray]:
    table = pq.read_table(path)
    return table["id"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)


def read_arrow(path: Path) -> tuple[list[Any], np.ndarray]:
    with pa.OSFile(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    return table["id"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)


def read_npy(path: Path) -> tuple[list[Any], np.ndarray]:
    lines = path.with_suffix(".ids.txt").read_text().splitlines()
    return [int(line) for line in lines], np.load(path, allow_pickle=False)


def read_safetensors(path: Path) -> tuple[list[Any], np.ndarray]:
    tensors = load_file(path)
    return tensors["id"].tolist(), tensors["vector"]


def read_csv(path: Path) -> tuple[list[Any], np.ndarray]:
    with path.open(newline="") as file:
        _, *lines = csv.reader(file)
    return [int(line[0]) for line in lines], np.array([line[1:] for line in lines], np.float32)


READ = {
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".npy": read_npy,
    ".safetensors": read_safetensors,
    ".csv": read_csv,
}


@pytest.mark.parametrize("suffix", READ)
@pytest.mark.parametrize("command", ["export", "transform"])
def test_6_what_is_exported_is_what_the_suffix_says(
    shop: Path, tmp_path: Path, evergram: Command, suffix: str, command: str
) -> None:
    """By readers that are not ours; and nothing is written over without --force."""
    ids, vectors = Lineage.open(shop).view(1).embeddings("candidate")
    out = tmp_path / f"out{suffix}"
    ask: tuple[object, ...] = ("export", shop, out, "--side", "candidate", "--as", 1)
    if command == "transform":
        file = Lineage.open(shop).stored("candidate")
        ask = ("transform", file, "--lineage", shop, "--as", 1, "--out", out)
    assert evergram(*ask)[0] == 0

    def check() -> None:
        found_ids, found = READ[suffix](out)
        assert found_ids == ids.to_pylist()
        np.testing.assert_array_equal(found, vectors.numpy())

    check()
    written = {p.name: p.read_bytes() for p in tmp_path.glob("out*")}
    one_sentence(evergram(*ask), "is there already and is not written over; give another name")
    assert {p.name: p.read_bytes() for p in tmp_path.glob("out*")} == written
    out.write_text("mine")
    one_sentence(evergram(*ask), f"{out} is there already")
    assert out.read_text() == "mine"
    assert evergram(*ask, "--force")[0] == 0
    check()


def test_6_a_suffix_that_is_not_known_is_refused(
    shop: Path, tmp_path: Path, evergram: Command
) -> None:
    for name in ("out.txt", "out", "out.pkl"):
        found = evergram("export", shop, tmp_path / name, "--side", "candidate")
        one_sentence(found, "the known ones end in .parquet")
    assert not list(tmp_path.glob("out*"))


def test_8_every_store_that_is_given_is_filled(
    shop: Path, tmp_path: Path, evergram: Command
) -> None:
    films, people = str(tmp_path / "films"), f"lance:{tmp_path}#people"
    stores = ("--store", f"candidate={films}", "--store", f"query={people}")
    code, out, err = evergram("fill", shop, *stores, "--json")
    assert code == 0, err
    assert json.loads(out) == {
        "version": 2,
        "stores": [
            {"store": f"snapshot:{films}", "side": "candidate", "rows": 18, "held": {"2": 18}},
            {"store": people, "side": "query", "rows": 26, "held": {"2": 26}},
        ],
    }
    assert (len(rows_of(films)), len(rows_of(people))) == (18, 26)


def test_8_a_store_that_would_be_ignored_is_refused(
    shop: Path, tmp_path: Path, evergram: Command
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    twice = ("--store", f"query={one}", "--store", f"query={two}")
    one_sentence(evergram("fill", shop, *twice), "given twice for side 'query'")
    shared = ("--store", f"query={one}", "--store", f"candidate={one}")
    one_sentence(evergram("fill", shop, *shared), "given for side 'query' and for side 'candidate'")
    both = ("--store", f"query={one}", "--store", f"candidate={two}")
    assert evergram("fill", shop, *both)[0] == 0
    for command in ("plan", "apply", "status", "rollback"):
        found = evergram("backfill", command, shop, *both)
        one_sentence(found, "A backfill is of one store; 2 were given")
    assert not (shop / "backfills").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_17_a_search_has_hits_while_rows_move_to_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Between the look for which versions have rows and the search among them, all move on."""
    lineage = lineage_of(tmp_path / "line", versions=2)
    address = place(tmp_path, kind, "rows")
    with open_store(address, create="int64") as store:
        fill(lineage, store, "object")
    publish(lineage, 2)
    moved: list[int] = []
    with (
        served(monkeypatch, tmp_path / "line", "--store", f"object={address}") as url,
        open_store(address) as other,
    ):
        filled = type(other).filled

        def filled_and_moved(self: Any) -> Any:
            found = filled(self)
            if not moved:
                moved.append(1)
                moved.append(fill(lineage, other, "object"))
            return found

        monkeypatch.setattr(type(other), "filled", filled_and_moved)
        for version in (1, 0):
            asked = {"vector": vectors_of(version)[7].tolist(), "version": version, "k": 10}
            answer = httpx.post(f"{url}/v1/search", json=asked, timeout=60)
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["data"][0]["hits"]) == 10
        assert moved == [1, 300]
        assert other.count() == {2: 300}


@pytest.mark.long
def test_also_all_of_two_hundred_wait_for_their_turn_on_a_slow_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten connections, each question a tenth of a second: the last has waited two seconds, which is
    more patience than there is with a server that answers nobody."""
    from evergram.stores.postgres import connection
    from evergram.stores.postgres.pgvector_store import PgvectorStore

    lineage = lineage_of(tmp_path / "line")
    address = place(tmp_path, "pgvector", "rows")
    with open_store(address, create="int64") as store:
        fill(lineage, store, "object")
    monkeypatch.setattr(connection, "WAIT", 1.0)
    read = PgvectorStore._read

    def slowly(self: PgvectorStore, ids: pa.Array) -> Any:
        self._ask("select pg_sleep(0.1)::text")
        return read(self, ids)

    with served(
        monkeypatch, tmp_path / "line", "--store", f"object={address}", "--workers", 200
    ) as url:
        monkeypatch.setattr(PgvectorStore, "_read", slowly)
        limits = httpx.Limits(max_connections=200)
        with httpx.Client(base_url=url, timeout=60, limits=limits) as http:

            def ask(number: int) -> tuple[int, str]:
                answer = http.post("/v1/embeddings", json={"input": [number]})
                return answer.status_code, answer.text

            with ThreadPoolExecutor(200) as clients:
                answers = list(clients.map(ask, range(200)))
    assert {code for code, _ in answers} == {200}, next(t for code, t in answers if code != 200)


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Iterator[str]:
    """`evergram serve` in a thread of this process. Yields: where it listens."""
    begun: list[tuple[uvicorn.Server, int]] = []
    run = uvicorn.Server.run

    def remembered(self: uvicorn.Server, sockets: Any = None) -> None:
        begun.append((self, sockets[0].getsockname()[1]))
        run(self, sockets)

    monkeypatch.setattr(uvicorn.Server, "run", remembered)
    monkeypatch.setattr("sys.argv", ["evergram", "serve", *map(str, arguments), "--port", "0"])

    def command() -> None:
        with suppress(SystemExit):
            main()

    thread = threading.Thread(target=command)
    thread.start()
    try:
        while not begun or not begun[0][0].started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{begun[0][1]}"
    finally:
        for server, _ in begun:
            server.should_exit = True
        thread.join()
        gc.unfreeze()


@contextmanager
def no_address_listened_on() -> Iterator[None]:
    """Bind to nothing: what is refused is refused before anybody is answered."""
    with pytest.MonkeyPatch.context() as during:
        during.setattr("evergram.serving.server.bound_socket", lambda host, port: socket.socket())
        yield


SECRET = "s3cret-w0rd"


@pytest.fixture(scope="module")
def guarded() -> str:
    """A database that asks for a password: an address without a table, and without it."""
    return postgres().address_with_password("", "keeper", SECRET)


@pytest.mark.parametrize("given", ["PGPASSWORD", "pgpass", "address"])
def test_20_a_password_is_given_without_the_command_line_and_shown_nowhere(
    shop: Path,
    tmp_path: Path,
    evergram: Command,
    guarded: str,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
) -> None:
    address = f"{guarded}films_{given.lower()}"
    monkeypatch.delenv("PGPASSWORD", raising=False)
    # What the user of the machine has there himself is not looked at.
    passwords = tmp_path / "pgpass"
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    for wrong in (None, "wrong-w0rd"):
        if wrong is not None:
            monkeypatch.setenv("PGPASSWORD", wrong)
        found = evergram("fill", shop, "--store", f"candidate={address}")
        one_sentence(found, "in the environment as PGPASSWORD, or in ~/.pgpass")
        assert str(wrong) not in found[2]
    monkeypatch.delenv("PGPASSWORD")
    if given == "PGPASSWORD":
        monkeypatch.setenv("PGPASSWORD", SECRET)
    elif given == "pgpass":
        passwords.write_text(f"*:*:*:keeper:{SECRET}\n")
        passwords.chmod(0o600)
    else:
        address = address.replace("keeper@", f"keeper:{SECRET}@")
    store = ("--store", f"candidate={address}")
    for ask in (
        ("fill", shop, *store, "--json"),
        ("fill", shop, *store),
        ("backfill", "plan", shop, *store, "--json"),
        ("backfill", "status", shop, *store),
        ("fill", shop, "--store", store[1].replace("candidate", "query")),
    ):
        code, out, err = evergram(*ask)
        assert code == (2 if "query=" in str(ask[-1]) else 0), err
        assert SECRET not in out + err
    for path in (p for p in shop.rglob("*") if p.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "store",
    [
        f"postgresql://ann:{SECRET}@db/films#t",
        f"postgresql://ann:{SECRET}@db/films?sslmode=require#t",
        f"candidate=postgresql://ann:{SECRET}@db/films",
        f"candidate=postgresql//ann:{SECRET}@db/films#t",
        f"candidate=postgres://ann:{SECRET}@db/films#t",
        f"candidate=qdrant:http://ann:{SECRET}@db#t",
        f"candidate=postgresql://ann:{SECRET}@127.0.0.1:9/films#t",
    ],
)
def test_20_an_address_that_is_wrong_is_not_repeated_with_its_password(
    shop: Path, tmp_path: Path, evergram: Command, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with no_address_listened_on():
        for command in (["fill"], ["backfill", "plan"], ["serve"]):
            code, out, err = evergram(*command, shop, "--store", store)
            assert (code, out) == (2, "")
            assert err.startswith("error: ")
            assert SECRET not in err
    assert [p.name for p in tmp_path.iterdir()] == ["shop"]
