"""Searches compared with all rows: misses are counted, and what is unmeasured never passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import lineage_of, publish, read_as, vectors_of
from tests.support.store_kinds import STORES

from evergram.errors import DataError, LineageError, ShapeError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill
from evergram.retrieval.search_check import (
    SearchCheck,
    canary_queries,
    check_searches,
    checked_versions,
    file_queries,
)
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.store import Floats, Rows, Space
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.parquet import write_embeddings
from evergram.vector_files.provenance import FINGERPRINT

METRICS = ["ip", "l2", "cosine"]


class Forgetful(DictionaryStore):
    """A store whose index knows the rows with an even id alone."""

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        known = [key for key in self._rows if isinstance(key, int) and key % 2 == 0]
        return super()._nearest(version, queries, k, pa.array(known, self.id_type))


@pytest.fixture
def line(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line", canaries=5)


def test_versions_are_those_to_production_or_to_the_latest_row(tmp_path: Path) -> None:
    line = lineage_of(tmp_path / "line", versions=2)
    publish(line, 2, promote=False)
    store = DictionaryStore()
    fill(line, store, "object", 1)
    assert checked_versions(line, store) == [0, 1]
    fill(line, store, "object", 2)
    assert checked_versions(line, store) == [0, 1, 2]
    line.retire(0)
    assert checked_versions(line, store) == [1, 2]


def test_queries_are_canaries_as_each_version_published_them(line: Lineage) -> None:
    drawn = canary_queries(line, [0, 2], "object", sample=20)
    for version, vectors in drawn.items():
        published = vectors_of(version)[::5].numpy()
        assert vectors.shape == (20, published.shape[1])
        assert all((published == row).all(axis=1).any() for row in vectors)
        assert len(np.unique(vectors, axis=0)) == 20
    assert len(canary_queries(line, [0], "object", sample=1000)[0]) == 60
    other = canary_queries(line, [0], "object", sample=20, seed=1)[0]
    assert (other != drawn[0]).any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", sorted(STORES))
def test_exact_searches_miss_nothing_at_any_version(
    tmp_path: Path, line: Lineage, kind: str
) -> None:
    with STORES[kind](tmp_path, "int64") as store:
        fill(line, store, "object")
        queries = canary_queries(line, checked_versions(line, store), "object", sample=20)
        steps: list[tuple[int, int]] = []
        checks = check_searches(
            *(line, store, "object", queries, 7),
            progress=lambda done, total: steps.append((done, total)),
        )
    assert [(c.version, c.metric, c.queries, c.recall, c.worst) for c in checks] == [
        (version, metric, 20, 1.0, 1.0) for version in range(3) for metric in METRICS
    ]
    assert steps[-1] == (300, 300)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_row_that_a_search_does_not_return_is_counted(
    line: Lineage, version: int, metric: str
) -> None:
    store = Forgetful()
    fill(line, store, "object")
    queries = canary_queries(line, [version], "object", sample=25)
    (check,) = check_searches(line, store, "object", queries, 8, [metric])  # type: ignore[list-item]
    rows = read_as(2, version).double()
    asked = torch.from_numpy(queries[version]).double()
    if metric == "cosine":
        rows, asked = (torch.nn.functional.normalize(part) for part in (rows, asked))
    scores = -torch.cdist(asked, rows) if metric == "l2" else asked @ rows.T
    # By counting, for another algorithm: a row is among the best 8 if fewer than 8 score more.
    best = [[i for i in range(300) if (row > row[i]).sum() < 8] for row in scores]
    shares = [sum(i % 2 == 0 for i in of_query) / 8 for of_query in best]
    assert check.recall == pytest.approx(np.mean(shares))
    assert check.worst == min(shares)
    assert check.recall is not None
    assert check.recall < 0.9
    assert check.low is not None
    assert check.high is not None
    # The mean's standard error, by a formula in place of draws.
    error = float(np.std(shares)) / 5
    assert check.recall - 4.5 * error < check.low < check.recall - 1.7 * error
    assert check.high == pytest.approx(check.recall + 1.96 * error, abs=0.3 * error)
    assert check.reaches(check.low)
    assert not check.reaches(check.recall)


def test_of_equal_rows_a_search_may_return_any(tmp_path: Path) -> None:
    line = lineage_of(tmp_path / "line", versions=1)
    store = Forgetful()
    space = Space(0, 6, line.manifest(0).fingerprint)
    once = vectors_of(0, 50).numpy()
    ids = pa.array(range(100))
    store.load(space, [Rows(0, ids, np.repeat(once, 2, axis=0))])
    (check,) = check_searches(line, store, "object", {0: once[:20]}, 1, ["l2"])
    assert (check.recall, check.worst) == (1.0, 1.0)
    (check,) = check_searches(line, store, "object", {0: once[:20]}, 2, ["l2"])
    # Both of a pair are the best two, and one of them is not known to the index.
    assert check.recall == 0.5


def test_a_search_that_returns_all_rows_shows_nothing(tmp_path: Path) -> None:
    line = lineage_of(tmp_path / "line", versions=1)
    store = Forgetful()
    some = Rows(0, pa.array([0, 1, 2]), vectors_of(0, 3).numpy())
    store.load(Space(0, 6, line.manifest(0).fingerprint), [some])
    queries = {0: vectors_of(0, 20).numpy()}
    for k in (3, 10):
        with pytest.raises(DataError, match=f"has 3 rows, and searches for {k} would return"):
            check_searches(line, store, "object", queries, k)
    assert [
        check.recall is None for check in check_searches(line, store, "object", queries, 2)
    ] == [
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(("sample", "exact"), [(20, 0.8316), (60, 0.9404)])
def test_few_queries_that_all_agree_are_not_certain(
    line: Lineage, sample: int, exact: float
) -> None:
    store = DictionaryStore()
    fill(line, store, "object")
    queries = canary_queries(line, [2], "object", sample=sample)
    for check in check_searches(line, store, "object", queries):
        assert (check.queries, check.recall, check.high, check.worst) == (sample, 1.0, 1.0, 1.0)
        assert check.low is not None
        # Clopper and Pearson's lower end, of so many hits of as many: .025 ** (1 / n).
        assert check.low == pytest.approx(exact, abs=0.03)
        assert not check.reaches(0.96)


def test_a_share_that_is_the_limit_reaches_it() -> None:
    for share in (0.7, 0.8, 0.9, 0.95):
        mean = float(torch.full((200,), share, dtype=torch.float64).mean())
        assert SearchCheck(0, "ip", 200, mean, mean, mean, mean).reaches(share)
        assert not SearchCheck(0, "ip", 200, mean, mean, mean, mean).reaches(share + 1e-6)


def test_long_queries_do_not_hide_what_a_search_by_distance_misses(line: Lineage) -> None:
    store = Forgetful()
    fill(line, store, "object")
    queries = {2: 1e4 * canary_queries(line, [2], "object")[2]}
    (check,) = check_searches(line, store, "object", queries, 8, ["l2"])
    assert check.recall is not None
    assert check.recall < 0.9


def test_a_query_that_is_there_twice_counts_once(line: Lineage, tmp_path: Path) -> None:
    vectors = vectors_of(1, 4)
    path = tmp_path / "queries.parquet"
    write_embeddings(path, [(pa.array(range(12)), vectors.repeat(3, 1))])
    assert (file_queries(line, 1, open_embeddings(path)) == vectors.numpy()).all()


def test_rows_that_are_older_than_the_version_are_missed_by_distance_and_cosine(
    tmp_path: Path,
) -> None:
    line = lineage_of(tmp_path / "line", versions=1, rows=3000, canaries=30)
    store = DictionaryStore()
    fill(line, store, "object")
    publish(line, 1, rows=3000, canaries=30)
    queries = canary_queries(line, [1], "object")
    recalls = {c.metric: c.recall for c in check_searches(line, store, "object", queries)}
    # Norms of later versions are not stored, so that candidates of an inner product are re-ranked.
    assert recalls["ip"] == 1.0
    assert recalls["cosine"] is not None
    assert recalls["cosine"] < 1.0


def test_a_version_without_canaries_is_not_measured_and_reaches_nothing(tmp_path: Path) -> None:
    line = lineage_of(tmp_path / "line", versions=1)
    store = DictionaryStore()
    fill(line, store, "object")
    checks = check_searches(line, store, "object", canary_queries(line, [0], "object"))
    assert len(checks) == 3
    for check in checks:
        assert (check.queries, check.recall, check.worst) == (0, None, None)
        assert check.problem == "there is no query whose length is above 0"
        assert not check.reaches(0.0)


def test_a_version_that_rows_cannot_be_read_as_is_not_measured(
    line: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DictionaryStore()
    fill(line, store, "object")
    publish(line, 3, canaries=5)
    monkeypatch.setattr(Lineage, "forward", lambda *_: None)
    versions = checked_versions(line, store)
    assert versions == [0, 1, 2, 3]
    queries = canary_queries(line, versions, "object")
    *before, last = check_searches(line, store, "object", queries, metrics=["ip"])
    assert [check.recall for check in before] == [1.0, 1.0, 1.0]
    assert last.recall is None
    assert last.problem is not None
    assert "backfill" in last.problem
    assert not last.problem.endswith(".")


def test_what_cannot_be_checked_is_refused(line: Lineage) -> None:
    store = DictionaryStore()
    queries = canary_queries(line, [2], "object")
    with pytest.raises(DataError, match="0 rows"):
        check_searches(line, store, "object", queries)
    fill(line, store, "object")
    with pytest.raises(DataError, match="k is 0"):
        check_searches(line, store, "object", queries, 0)


def test_queries_of_a_file_are_rows_of_it_and_of_the_version(line: Lineage, tmp_path: Path) -> None:
    vectors = vectors_of(1, 40)
    path = tmp_path / "queries.parquet"
    write_embeddings(path, [(pa.array(range(40)), vectors)])
    file = open_embeddings(path)
    drawn = file_queries(line, 1, file, sample=15)
    assert drawn.shape == (15, 8)
    assert all((vectors.numpy() == row).all(axis=1).any() for row in drawn)
    assert (file_queries(line, 1, file, sample=99) == vectors.numpy()).all()
    with pytest.raises(ShapeError, match=r"queries.parquet has vectors of dim 8.*version 0 have 6"):
        file_queries(line, 0, file)
    zeros = torch.cat([torch.zeros(3, 8), vectors_of(1, 2)])
    write_embeddings(tmp_path / "zeros.parquet", [(pa.array(range(5)), zeros)])
    drawn = file_queries(line, 1, open_embeddings(tmp_path / "zeros.parquet"))
    assert (drawn == zeros[3:].numpy()).all()
    marked = {FINGERPRINT: line.manifest(2).fingerprint}
    write_embeddings(path, [(pa.array(range(40)), vectors_of(2, 40))], marked)
    with pytest.raises(LineageError, match="version 2"):
        file_queries(line, 1, open_embeddings(path))


def test_rows_past_float32_are_not_measured(line: Lineage, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DictionaryStore()
    fill(line, store, "object")
    queries = canary_queries(line, [0], "object")
    whole = VersionMaps.rows
    wrong = {"rows": 0}

    def overflowing(self: VersionMaps, vectors: Floats, source: int, target: int) -> Floats:
        read = whole(self, vectors, source, target).copy()
        if len(read) == 300:  # all of them, and not those that were returned
            read[0], wrong["rows"] = np.inf, wrong["rows"] + 1
        return read

    monkeypatch.setattr(VersionMaps, "rows", overflowing)
    with np.errstate(invalid="ignore"):
        (check,) = check_searches(line, store, "object", queries, metrics=["ip"])
    assert wrong["rows"]
    assert (check.recall, check.problem) == (None, "a row is past float32 as that version reads it")
    assert not check.reaches(0.0)
