"""`evergram store fill, index, backfill, check`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of, publish, vectors_of

from evergram.stores.open_store import open_store
from evergram.stores.rows import Floats
from evergram.stores.snapshot_store import SnapshotStore
from evergram.vector_files.writers import write_embeddings

ROWS = 300


def versions_in(address: str) -> dict[int, int]:
    """Return how many rows a store has of each version."""
    with open_store(address) as store:
        return dict(store.count())


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lineage of one version in `line`, beside which the command runs."""
    monkeypatch.chdir(tmp_path)
    lineage_of(tmp_path / "line", versions=1)
    return tmp_path / "line"


@pytest.fixture
def outdated(line: Path, evergram: Command) -> Path:
    """A lineage whose store `rows` still holds the version before production."""
    from evergram.lineage.lineage import Lineage

    assert evergram("store", "fill", "line", "--store", "object=rows").code == 0
    publish(Lineage.open(line), 1)
    return line


def test_fill_says_what_it_has_written_where(evergram: Command, line: Path) -> None:
    code, out, err = evergram("store", "fill", "line", "--store", "object=rows")
    assert (code, out) == (0, f"{ROWS} rows of side object, version 0: snapshot:rows\n")
    assert err.splitlines()[-1] == f"{ROWS} of {ROWS} rows of side object"
    assert evergram.json("store", "fill", "line", "--store", "object=rows", "--index") == {
        "version": 0,
        "stores": [{"store": "snapshot:rows", "side": "object", "rows": ROWS, "held": {"0": ROWS}}],
    }


def test_a_store_is_indexed_and_what_is_not_is_said(
    evergram: Command, line: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evergram("store", "fill", "line", "--store", "object=rows").code == 0
    done = evergram("store", "index", "rows")
    few = "No version of snapshot:rows has an index: searches compare all rows.\n"
    assert (done.code, done.out) == (0, few)
    facts = {"store": "snapshot:rows", "versions": []}
    assert evergram.json("store", "index", "rows") == facts
    monkeypatch.setattr("evergram.stores.snapshot_store.SnapshotStore.build_index", lambda _: [0])
    done = evergram("store", "index", "rows")
    assert (done.code, done.out) == (0, "Version 0 of snapshot:rows has an index.\n")


def test_progress_on_a_terminal_is_one_line_that_is_written_over(
    evergram: Command,
    line: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    err = evergram("store", "fill", "line", "--store", "object=rows").err
    assert err.startswith("\r")
    assert err.endswith(f"\r{ROWS} of {ROWS} rows of side object\n")
    assert err.count("\n") == 1


def test_a_backfill_is_planned_applied_and_rolled_back(evergram: Command, outdated: Path) -> None:
    store = ("line", "--store", "object=rows")
    planned = evergram.json("store", "backfill", "plan", *store, "--batch", 100)
    assert (planned["target"], planned["rows"], planned["refreshed"]) == (1, ROWS, 0)
    half = evergram.json("store", "backfill", "apply", *store, "--rows", 150)
    assert half["refreshed"] == 150
    assert versions_in("rows") == {0: 150, 1: 150}
    assert evergram.json("store", "backfill", "status", *store) == half
    whole = evergram("store", "backfill", "apply", *store)
    assert whole.code == 0
    assert f"{ROWS} of {ROWS} rows refreshed to version 1; 0.0% of the predicted" in whole.out
    assert f"Rows held: {ROWS} of version 1." in whole.out
    assert whole.err.splitlines()[-1] == f"{ROWS} of {ROWS} rows"
    assert "had no row" not in whole.out
    assert evergram("store", "backfill", "rollback", *store).code == 0
    assert versions_in("rows") == {0: ROWS}
    with open_store("rows", create="int64") as rows:
        rows.delete(list(range(3)))
    assert evergram.json("store", "backfill", "plan", *store)["absent"] == 3
    planned = evergram("store", "backfill", "status", *store).out
    assert "3 objects of it had no row when this was planned, and get none: 'evergram" in planned


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
        self: SnapshotStore,
        version: int,
        queries: Floats,
        k: int,
        ids: pa.Array | None,
        exact: bool,
    ) -> list[tuple[pa.Array, Floats]]:
        known = pa.array(np.flatnonzero(vectors_of(2)[:, 0] <= 0))
        # A query of the newest version has a factor of 1, of version 0 one of 1/3.
        shrunk = np.linalg.norm(queries[:, :6]) < np.linalg.norm(vectors_of(0)[::5]) * 0.9
        return whole(self, version, queries, k, known if shrunk else ids, exact)

    monkeypatch.setattr(SnapshotStore, "_nearest", some)


@pytest.mark.usefixtures("filled")
def test_exact_searches_pass_at_every_version(evergram: Command) -> None:
    done = evergram("store", "check", "line", *STORE, "--least", 0.9)
    assert done.code == 0
    assert "Searches in snapshot:rows" in done.out
    assert "Rows: 300 of version 2." in done.out
    assert "Not searched" not in done.out
    assert len(re.findall(r"1\.0000 │ 0\.95\d\d to 1\.0000", done.out)) == 9
    assert done.err.splitlines()[-1] == "300 of 300 rows compared"
    checked = evergram.json("store", "check", "line", *STORE, "-k", 3, "--metric", "l2")
    assert (checked["k"], checked["passes"], checked["rows"]) == (3, True, {"2": 300})
    for version, search in enumerate(checked["searches"]):
        assert (search["version"], search["metric"], search["queries"]) == (version, "l2", 60)
        assert (search["recall"], search["low"]) == (1.0, pytest.approx(58 / 61))
    several = ("--metric", "ip", "--metric", "cosine", "--as", "v1")
    searches = evergram.json("store", "check", "line", *STORE, *several)["searches"]
    assert [one["metric"] for one in searches] == ["ip", "cosine"]


@pytest.mark.usefixtures("filled", "half_lost")
def test_a_version_whose_rows_are_missed_fails_and_is_named(evergram: Command) -> None:
    check = ("store", "check", "line", *STORE, "--metric", "ip")
    done = evergram(*check)
    assert done.code == 1
    assert "Searches by ip at version 0 return 0." in done.err
    assert "less than 0.95: have the index look further" in done.err
    assert "at version 2" not in done.err
    logged = evergram("--log-format", "json", *check).err.splitlines()[-1]
    assert json.loads(logged)["event"] == "past_limit"
    assert evergram(*check, "--as", "v0").code == 1
    assert evergram(*check, "--as", "v2").code == 0
    measured = evergram(*check, "--as", 0, "--least", 0.1, "--json").json
    recall, low = (measured["searches"][0][name] for name in ("recall", "low"))
    assert 0.1 < low < recall < 0.9
    noisy = evergram(*check, "--as", 0, "--least", recall)
    assert noisy.code == 1
    assert f"and other queries might have {low:.4f} of theirs" in " ".join(noisy.err.split())
    assert evergram(*check, "--as", 0, "--least", low).code == 0


def test_a_version_that_was_not_measured_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evergram: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    lineage_of(tmp_path / "line", versions=1)  # keeps no canaries
    assert evergram("store", "fill", "line", *STORE).code == 0
    done = evergram("store", "check", "line", *STORE, "--least", 0)
    assert done.code == 1
    assert "Searches by ip at version 0 were not measured: there is no query whose" in done.err
    assert evergram("store", "check", "line", *STORE, "--json").code == 1
    write_embeddings(Path("queries.parquet"), [(pa.array(range(30)), vectors_of(0, 30))])
    asked = ("store", "check", "line", *STORE, "--queries", "queries.parquet", "--as", 0)
    assert evergram.json(*asked, "--least", 0.5)["searches"][0]["queries"] == 30
    few_rows = (pa.array(range(4)), vectors_of(0, 4))
    write_embeddings(Path("few.parquet"), [few_rows])
    few = evergram(*asked[:-3], "few.parquet", "--as", 0)
    assert few.code == 1
    assert "return 1.0000 of the best rows, and other queries might have" in few.err


def test_every_store_that_is_given_is_filled(
    trained_lineage: Path, tmp_path: Path, evergram: Command
) -> None:
    films, people = f"{tmp_path}/films", f"lance:{tmp_path}#people"
    both = f"{trained_lineage} --store candidate={films} --store query={people}"
    assert evergram.json(f"store fill {both}") == {
        "version": 2,
        "stores": [
            {"store": f"snapshot:{films}", "side": "candidate", "rows": 27, "held": {"2": 27}},
            {"store": people, "side": "query", "rows": 32, "held": {"2": 32}},
        ],
    }
    assert (versions_in(films), versions_in(people)) == ({2: 27}, {2: 32})
