"""A store holds one side, every named store is filled, and a search sees one state of a store.

These are the promises 3, 8 and 17.
"""

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

KINDS = ["snapshot", "pgvector"]  # the conformance suite of stores asks all kinds


def place(folder: Path, kind: str, name: str) -> str:
    """Return the address of a store that is not there yet."""
    if kind == "pgvector":  # whose server starts when it is first asked for
        return postgres().address(f"s{crc32(str(folder).encode())}_{name}")
    return {
        "snapshot": f"{folder}/{name}",
        "lance": f"lance:{folder}/lance#{name}",
        "qdrant": f"qdrant:{folder}/qdrant#{name}",
        "sqlite": f"sqlite:{folder}/stores.db#{name}",
    }[kind]


def rows_of(address: str) -> dict[int, bytes]:
    with open_store(address) as store:
        return {
            key: vector.tobytes()
            for rows in store.scan()
            for key, vector in zip(rows.ids.to_pylist(), rows.vectors, strict=True)
        }


@pytest.mark.parametrize("kind", KINDS)
def test_3_the_other_side_of_a_store_is_refused(
    trained_lineage: Path, tmp_path: Path, evergram: Command, kind: str
) -> None:
    store = place(tmp_path, kind, "films")
    assert evergram("store", "fill", trained_lineage, "--store", f"candidate={store}").code == 0
    before = rows_of(store)
    assert len(before) == 27
    words = "is the store of side 'candidate' and cannot hold side 'query'"
    assert words in evergram.refused("store", "fill", trained_lineage, "--store", f"query={store}")
    assert words in evergram.refused(
        "store", "backfill", "plan", trained_lineage, "--store", f"query={store}"
    )
    assert rows_of(store) == before
    # Its own side may come again, and the other has a store of its own.
    assert evergram("store", "fill", trained_lineage, "--store", f"candidate={store}").code == 0
    other = place(tmp_path, kind, "people")
    assert evergram("store", "fill", trained_lineage, "--store", f"query={other}").code == 0
    assert rows_of(store) == before
    assert len(rows_of(other)) == 32


def test_3_a_service_does_not_begin_with_the_other_side(
    trained_lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    films, people = tmp_path / "films", tmp_path / "people"
    stores = ("--store", f"candidate={films}", "--store", f"query={people}")
    assert evergram("store", "fill", trained_lineage, *stores).code == 0
    swapped = ("--store", f"candidate={people}", "--store", f"query={films}")
    with no_address_listened_on():
        assert "cannot hold side 'candidate'" in evergram.refused(
            "serve", trained_lineage, *swapped
        )
        assert "is given for side 'candidate' and for side 'query'" in evergram.refused(
            "serve", trained_lineage, "--store", f"candidate={films}", "--store", f"query={films}"
        )


def test_8_every_store_that_is_given_is_filled(
    trained_lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    films, people = str(tmp_path / "films"), f"lance:{tmp_path}#people"
    stores = ("--store", f"candidate={films}", "--store", f"query={people}")
    assert evergram.json("store", "fill", trained_lineage, *stores) == {
        "version": 2,
        "stores": [
            {"store": f"snapshot:{films}", "side": "candidate", "rows": 27, "held": {"2": 27}},
            {"store": people, "side": "query", "rows": 32, "held": {"2": 32}},
        ],
    }
    assert (len(rows_of(films)), len(rows_of(people))) == (27, 32)


def test_8_a_store_that_would_be_ignored_is_refused(
    trained_lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    twice = ("--store", f"query={one}", "--store", f"query={two}")
    assert "given twice for side 'query'" in evergram.refused(
        "store", "fill", trained_lineage, *twice
    )
    shared = ("--store", f"query={one}", "--store", f"candidate={one}")
    assert "given for side 'query' and for side 'candidate'" in evergram.refused(
        "store", "fill", trained_lineage, *shared
    )
    both = ("--store", f"query={one}", "--store", f"candidate={two}")
    assert evergram("store", "fill", trained_lineage, *both).code == 0
    for command in ("plan", "apply", "status", "rollback"):
        sentence = evergram.refused("store", "backfill", command, trained_lineage, *both)
        assert "A backfill is of one store; 2 were given" in sentence
    assert not (trained_lineage / "backfills").exists()


@pytest.mark.parametrize(
    "kind",
    ["snapshot", "pgvector", "lance", pytest.param("qdrant", marks=pytest.mark.long)],
)
def test_17_a_search_has_hits_while_rows_move_to_another_version(
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
        open_store(address) as other,
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
