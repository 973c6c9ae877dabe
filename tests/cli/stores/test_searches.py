"""`evergram store check`: a verdict on the searches of a store, at each version."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.command import Command
from tests.support.lineages import lineage_of, publish, vectors_of

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
    done = evergram("store", "check", "line", *STORE, "--least", 0.9)
    assert done.code == 0
    assert "Searches in snapshot:rows" in done.out
    assert "Rows: 300 of version 2." in done.out
    assert "Not searched" not in done.out
    assert len(re.findall(r"1\.0000 │ 0\.95\d\d to 1\.0000", done.out)) == 9
    assert done.err.splitlines()[-1] == "300 of 300 rows compared"
    checked = evergram.json("store", "check", "line", *STORE, "-k", 3, "--metric", "l2")
    assert checked == {
        "store": "snapshot:rows",
        "side": "object",
        "k": 3,
        "least": 0.95,
        "passes": True,
        "rows": {"2": 300},
        "not_read_from_it": [],
        "searches": [
            {
                "version": version,
                "metric": "l2",
                "queries": 60,
                "recall": 1.0,
                "low": pytest.approx(58 / 61),
                "high": 1.0,
                "worst": 1.0,
                "problem": None,
            }
            for version in range(3)
        ],
    }
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


@pytest.mark.usefixtures("filled")
def test_older_rows_are_named_where_searches_of_them_are_not_exact(
    tmp_path: Path, evergram: Command
) -> None:
    line = lineage_of(tmp_path / "other", versions=1, rows=3000, canaries=30)
    assert evergram("store", "fill", "other", "--store", "object=rows2").code == 0
    publish(line, 1, rows=3000, canaries=30)
    check = ("store", "check", "other", "--store", "object=rows2", "--least", 1)
    done = evergram(*check)
    assert done.code == 1
    assert "by cosine at version 1 return 0." in done.err
    assert "3000 rows are of versions before it" in done.err
    assert "evergram store backfill" in done.err
    publish(line, 2, rows=3000, canaries=30, promote=False)
    assert "Not searched" in evergram(*check).out
    assert evergram(*check, "--json").out.count('"version": 2') == 0
    assert '"not_read_from_it": [\n    2\n  ]' in evergram(*check, "--json").out


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
    some = evergram.json(*asked, "--least", 0.5, "--sample", 24)
    assert some["searches"][0]["queries"] == 24
    few = evergram(*asked, "--sample", 4)
    assert few.code == 1
    assert "return 1.0000 of the best rows, and other queries might have" in few.err


@pytest.mark.usefixtures("filled")
def test_what_cannot_be_checked_is_one_sentence(evergram: Command) -> None:
    check = ("store", "check", "line")
    assert "once for each" in evergram.refused(*check, *STORE, "--store", "object=other")
    assert "would return them all" in evergram.refused(*check, *STORE, "-k", 300)
    assert "'user'" in evergram.refused(*check, "--store", "user=rows")
    assert "rows2" in evergram.refused(*check, "--store", "object=rows2")
    assert "no version 7" in evergram.refused(*check, *STORE, "--as", "v7").lower()
    assert "one --as" in evergram.refused(*check, *STORE, "--queries", "q.parquet")
    both = ("--as", "v0", "--as", "v1", "--queries", "q.parquet")
    assert "one --as" in evergram.refused(*check, *STORE, *both)
    assert "not given" in evergram.refused(*check, *STORE, "--id-column", "name")
    gone = evergram.refused(*check, *STORE, "--as", "v0", "--queries", "q.parquet")
    assert "q.parquet is not there" in gone
