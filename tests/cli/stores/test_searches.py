"""`evergram store check`: a verdict on the searches of a store, at each version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of, vectors_of

from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Floats
from evergram.vector_files.parquet import write_embeddings

STORE = ("--store", "object=rows")


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evergram: Command) -> None:
    """A lineage of three versions in `line`, and the store `rows` of the last."""
    monkeypatch.chdir(tmp_path)
    lineage_of(tmp_path / "line", canaries=5)
    assert evergram("store", "fill", "line", *STORE).code == 0


@pytest.fixture
def half_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of version 0 return no row whose first coordinate is above 0."""
    whole = SnapshotStore._nearest

    def some(
        self: SnapshotStore, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        known = pa.array(np.flatnonzero(vectors_of(2)[:, 0] <= 0))
        # A query of the newest version has a factor of 1, of version 0 one of 1/3.
        shrunk = np.linalg.norm(queries[:, :6]) < np.linalg.norm(vectors_of(0)[::5]) * 0.9
        return whole(self, version, queries, k, known if shrunk else ids)

    monkeypatch.setattr(SnapshotStore, "_nearest", some)


@pytest.mark.usefixtures("filled")
def test_exact_searches_pass_at_every_version(evergram: Command) -> None:
    done = evergram("store", "check", "line", *STORE)
    assert done.code == 0
    assert "Searches by ip in snapshot:rows" in done.out
    assert done.out.count("1.0000") == 6
    assert done.err.splitlines()[-1] == "300 of 300 rows compared"
    checked = evergram.json("store", "check", "line", *STORE, "-k", 3, "--metric", "l2")
    assert checked == {
        "store": "snapshot:rows",
        "side": "object",
        "k": 3,
        "metric": "l2",
        "least": 0.95,
        "passes": True,
        "versions": [
            {"version": v, "queries": 60, "recall": 1.0, "worst": 1.0, "problem": None}
            for v in range(3)
        ],
    }


@pytest.mark.usefixtures("filled", "half_lost")
def test_a_version_whose_rows_are_missed_fails_and_is_named(evergram: Command) -> None:
    done = evergram("store", "check", "line", *STORE)
    assert done.code == 1
    assert "Version 0 is below 0.95" in done.out
    assert "Version 2" not in done.out
    assert evergram("store", "check", "line", *STORE, "--as", "v0").code == 1
    assert evergram("store", "check", "line", *STORE, "--as", "v2").code == 0
    measured = evergram("store", "check", "line", *STORE, "--as", 0, "--least", 0.1, "--json").json
    assert 0.1 < measured["versions"][0]["recall"] < 0.9


def test_a_version_that_was_not_measured_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evergram: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    lineage_of(tmp_path / "line", versions=1)  # keeps no canaries
    assert evergram("store", "fill", "line", *STORE).code == 0
    done = evergram("store", "check", "line", *STORE, "--least", 0)
    assert done.code == 1
    assert "Version 0 was not measured" in done.out
    assert evergram("store", "check", "line", *STORE, "--json").code == 1
    write_embeddings(Path("queries.parquet"), [(pa.array(range(9)), vectors_of(0, 9))])
    asked = ("store", "check", "line", *STORE, "--queries", "queries.parquet")
    assert evergram.json(*asked, "--as", 0)["versions"][0]["queries"] == 9
    assert evergram.json(*asked, "--as", 0, "--sample", 4)["versions"][0]["queries"] == 4


@pytest.mark.usefixtures("filled")
def test_what_cannot_be_checked_is_one_sentence(evergram: Command) -> None:
    check = ("store", "check", "line")
    assert "once for each" in evergram.refused(*check, *STORE, "--store", "object=other")
    assert "'user'" in evergram.refused(*check, "--store", "user=rows")
    assert "rows2" in evergram.refused(*check, "--store", "object=rows2")
    assert "no version 7" in evergram.refused(*check, *STORE, "--as", "v7").lower()
    assert "one --as" in evergram.refused(*check, *STORE, "--queries", "q.parquet")
    both = ("--as", "v0", "--as", "v1", "--queries", "q.parquet")
    assert "one --as" in evergram.refused(*check, *STORE, *both)
    assert "not given" in evergram.refused(*check, *STORE, "--id-column", "name")
    gone = evergram.refused(*check, *STORE, "--as", "v0", "--queries", "q.parquet")
    assert "q.parquet is not there" in gone
