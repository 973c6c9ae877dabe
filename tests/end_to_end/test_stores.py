"""A store holds one side, every named store is filled, and a search sees one state of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of, publish, vectors_of
from tests.support.postgres_server import postgres
from tests.support.serving_thread import no_address_listened_on, serving_in_thread

from evergram.retrieval.fill import fill
from evergram.stores.open_store import open_store


def place(folder: Path, kind: str, name: str) -> str:
    """Return the address of a store that is not there yet."""
    if kind == "pgvector":  # whose server starts when it is first asked for
        return postgres().address(f"s{crc32(str(folder).encode())}_{name}")
    return f"{folder}/{name}" if kind == "snapshot" else f"{kind}:{folder}/{kind}#{name}"


def rows_of(address: str) -> dict[int, bytes]:
    with open_store(address) as store:
        return {
            key: vector.tobytes()
            for rows in store.scan()
            for key, vector in zip(rows.ids.to_pylist(), rows.vectors, strict=True)
        }


@pytest.mark.parametrize("kind", ["snapshot", "pgvector"])
def test_a_store_is_of_one_side(
    trained_lineage: Path, tmp_path: Path, evergram: Command, kind: str
) -> None:
    store, other = place(tmp_path, kind, "films"), place(tmp_path, kind, "people")
    fill_candidate = f"store fill {trained_lineage} --store candidate={store}"
    assert evergram(fill_candidate).code == 0
    before = rows_of(store)
    for command in ("store fill", "store backfill plan"):
        refused = evergram.refused(f"{command} {trained_lineage} --store query={store}")
        assert "'candidate' and cannot hold side 'query'" in refused
    # Its own side may come again, and the other has a store of its own.
    assert evergram(fill_candidate).code == 0
    assert evergram(f"store fill {trained_lineage} --store query={other}").code == 0
    assert rows_of(store) == before
    assert (len(before), len(rows_of(other))) == (27, 32)


def test_every_store_that_is_given_is_filled_and_none_is_ignored(
    trained_lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    line, films, people = trained_lineage, tmp_path / "films", f"lance:{tmp_path}#people"
    both = f"{line} --store candidate={films} --store query={people}"
    assert evergram.json(f"store fill {both}") == {
        "version": 2,
        "stores": [
            {"store": f"snapshot:{films}", "side": "candidate", "rows": 27, "held": {"2": 27}},
            {"store": people, "side": "query", "rows": 32, "held": {"2": 32}},
        ],
    }
    assert (len(rows_of(str(films))), len(rows_of(people))) == (27, 32)
    twice = f"{line} --store query={tmp_path}/one --store query={tmp_path}/two"
    assert "'query'" in evergram.refused(f"store fill {twice}")
    shared = f"{line} --store candidate={films} --store query={films}"
    swapped = f"{line} --store candidate={people} --store query={films}"
    with no_address_listened_on():
        for command, words in (
            (f"store fill {shared}", "given for side 'candidate' and for side 'query'"),
            (f"serve {shared}", "given for side 'candidate' and for side 'query'"),
            (f"serve {swapped}", "cannot hold side 'candidate'"),
        ):
            assert words in evergram.refused(command)


@pytest.mark.parametrize(
    "kind",
    ["snapshot", "pgvector", "lance", pytest.param("qdrant", marks=pytest.mark.long)],
)
def test_a_search_has_hits_while_rows_move_to_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """All rows move after the search looked which versions have rows, and before it searches."""
    lineage = lineage_of(tmp_path / "line", versions=2)
    address = place(tmp_path, kind, "rows")
    with open_store(address, create="int64") as store:
        fill(lineage, store, "object")
    publish(lineage, 2)
    moved: list[int] = []
    with (
        serving_in_thread(monkeypatch, tmp_path / "line", "--store", f"object={address}") as url,
        open_store(address, create="int64") as other,
    ):
        filled = type(other).filled

        def filled_and_moved(self: Any) -> Any:
            versions = filled(self)
            if not moved:
                moved.append(1)
                moved.append(fill(lineage, other, "object"))
            return versions

        monkeypatch.setattr(type(other), "filled", filled_and_moved)
        for version in (1, 0):
            asked = {"vector": vectors_of(version)[7].tolist(), "version": version, "k": 10}
            answer = httpx.post(f"{url}/v1/search", json=asked, timeout=60)
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["data"][0]["hits"]) == 10
        assert moved == [1, 300]
        assert other.count() == {2: 300}
