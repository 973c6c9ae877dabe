"""Every kind of store does what the slow oracle does; `tests/support/store_kinds.py` lists them."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from numpy.testing import assert_allclose
from tests.support.agreement import Id, as_dict, same_hits, same_rows, scores_of
from tests.support.lineages import lineage_of, read_as, vectors_of
from tests.support.store_kinds import STORES
from tests.support.store_pairs import DIMS, NEW, OLD, Pair

from evergram.errors import DataError, IntegrityError, ShapeError, StoreError
from evergram.retrieval import metric_search
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Metric, Reader
from evergram.retrieval.version_maps import VersionMaps, stored_rows
from evergram.stores.open_store import KINDS, open_store
from evergram.stores.store import Hits, ReadableStore, Rows, Space, Store

# Ids that have gone wrong in one database or another.
TEXTS = ["", " ", "a", "A", "'", '"; DROP TABLE x; --', "naïve ü 中文 🙂", "e\u0301", "\u00e9"]
HARD: dict[str, list[Id]] = {
    "int64": [0, -1, 7, 2**31, 2**63 - 1, -(2**63), 2**53 + 1, 2**53],
    "string": [*TEXTS, "back\\slash", "%_", "line\nbreak", "7", "x" * 500],
}


@pytest.fixture(scope="module", params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["int64", "string"])
def id_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(kind: str, id_type: str, tmp_path: Path) -> Iterator[Pair]:
    both = Pair(lambda: STORES[kind](tmp_path, id_type), id_type)
    yield both
    both.store.close()


@pytest.fixture(scope="module")
def shared(kind: str, id_type: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp(kind)
    both = Pair(lambda: STORES[kind](folder, id_type), id_type).fill()
    yield both
    both.store.close()


@pytest.fixture
def filled(shared: Pair) -> Iterator[Pair]:
    """A filled store that a test leaves as it was."""
    yield shared
    same_rows(shared.store, shared.oracle)


def test_a_new_store_is_empty(pair: Pair) -> None:
    assert pair.store.spaces() == {}
    assert pair.store.count() == {}
    assert pair.store.fetch([pair.name(1)]) == []
    assert list(pair.store.scan()) == []
    assert str(pair.store.id_type) == pair.id_type
    assert "secret" not in pair.store.address


def test_spaces_without_rows_are_kept_and_searched(pair: Pair) -> None:
    pair.spaces()
    same_rows(pair.store, pair.oracle)
    assert [len(hits) for hits in pair.store.search(pair.queries(), 5)] == [0, 0, 0]
    assert pair.store.search({}, 5) == []
    pair.store.build_index()
    pair.reopen()
    assert pair.store.spaces() == {OLD.version: OLD, NEW.version: NEW}


def test_a_space_is_added_once(filled: Pair) -> None:
    filled.store.add_space(OLD)
    for other in (Space(0, 6, "sha256:other"), Space(0, 7, "sha256:old")):
        with pytest.raises(IntegrityError, match="another lineage"):
            filled.store.add_space(other)


def test_a_store_is_of_one_side_for_good(pair: Pair) -> None:
    assert pair.store.side is None
    pair.fill()
    assert pair.store.side is None, "rows alone do not say it"
    for _ in range(2):
        pair.store.take_side("candidate")
        assert pair.store.side == "candidate"
    with pytest.raises(
        IntegrityError, match="store of side 'candidate' and cannot hold side 'query'"
    ):
        pair.store.take_side("query")
    same_rows(pair.store, pair.oracle)
    pair.upsert(pair.rows(OLD.version, pair.names(range(50, 60))))
    for store in pair.both:
        store.add_space(Space(7, 3, "sha256:seven"))
        store.delete(pair.names([1]))
    pair.reopen()
    assert pair.store.side == "candidate"
    with pytest.raises(IntegrityError, match="use another store"):
        pair.store.take_side("query")
    same_rows(pair.store, pair.oracle)


def test_one_of_two_openers_takes_a_store_for_its_side(pair: Pair) -> None:
    def take(side: str) -> str | None:
        try:
            with closing(pair.opened_again()) as store:
                store.take_side(side)
        except IntegrityError:
            return None
        return side

    with ThreadPoolExecutor(4) as pool:
        had = {side for side in pool.map(take, ["query", "candidate"] * 4) if side is not None}
    assert had == {pair.store.side}


ELSEWHERE = """
import pickle, sys
with pickle.load(sys.stdin.buffer) as store:
    [rows] = store.fetch([3, 1])
    print(store.count(), sorted(zip(rows.ids.to_pylist(), rows.vectors.tolist())))
"""
# What one process alone may open: the oracle is in memory, and the client's local mode locks its
# folder, which docs/stores.md says.
OF_ONE_PROCESS = ("dictionary", "qdrant")


@pytest.mark.parametrize("kind", sorted(STORES.keys() - OF_ONE_PROCESS))
def test_another_process_reads_a_store_that_is_open_and_sees_what_was_written(
    kind: str, tmp_path: Path
) -> None:
    with STORES[kind](tmp_path, "int64") as store:
        store.add_space(Space(0, 2, "sha256:zero"))
        vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
        store.upsert(Rows(0, pa.array(range(4)), vectors))
        read = subprocess.run(
            [sys.executable, "-c", ELSEWHERE], input=pickle.dumps(store), capture_output=True
        )
        assert read.returncode == 0, read.stderr.decode()
        expected = [(i, vectors[i].tolist()) for i in (1, 3)]
        assert read.stdout.decode() == f"{store.count()} {expected}\n"


# Which of a view's calls the rows move before or after; and where they all are then.
MOMENTS = [("filled", OLD), ("filled", NEW), ("_nearest", OLD), ("_nearest", NEW)]


@pytest.mark.parametrize(("moment", "space"), MOMENTS)
def test_a_search_is_of_one_moment(
    pair: Pair, moment: str, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows move to one version by another's hand, between two readings of the same search."""
    pair.fill()
    queries, everything = pair.queries(), pair.names(range(40))
    if moment == "filled":
        start = NEW if space is OLD else OLD
        pair.upsert(pair.rows(start.version, everything))
    # A snapshot searches all versions at once.
    name = "_search" if (moment, pair.store.kind) == ("_nearest", "snapshot") else moment
    read = getattr(type(pair.store), name)
    moved: list[str] = []

    def look(view: ReadableStore) -> tuple[Hits, dict[Id, tuple[int, bytes]]]:
        hits = view.search({version: queries[version] for version in view.filled()}, 100)[0]
        return hits, as_dict(view.fetch(hits.ids))

    with closing(pair.opened_again()) as other, monkeypatch.context() as during:

        def read_and_move(self: Any, *args: Any) -> Any:
            result = read(self, *args)
            if not moved:
                moved.append(moment)
                other.upsert(pair.rows(space.version, everything))
            return result

        during.setattr(type(pair.store), name, read_and_move)
        hits, rows = pair.store.read_consistently(look)
    assert moved
    assert sorted(hits.ids.to_pylist()) == sorted(everything)
    assert {key: version for key, (version, _) in rows.items()} == dict(
        zip(hits.ids.to_pylist(), hits.versions.tolist(), strict=True)
    )
    # The next one sees what was moved.
    after, _ = pair.store.read_consistently(look)
    assert after.versions.tolist() == [space.version] * 40


def test_searches_find_every_row_while_some_move_to_and_fro(pair: Pair) -> None:
    pair.fill()
    queries, everything = pair.queries(), sorted(pair.names(range(40)))
    blocks = [pair.rows(space.version, pair.names(range(17, 23))) for space in (OLD, NEW)]
    done = threading.Event()
    moves: list[int] = []

    def move() -> None:
        with closing(pair.opened_again()) as other:
            while not done.is_set():
                other.upsert(blocks[len(moves) % 2])
                moves.append(1)

    def look(view: ReadableStore) -> list[Id]:
        hits = view.search({version: queries[version] for version in view.filled()}, 100)[0]
        return sorted(hits.ids.to_pylist())

    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(move)
        try:
            while len(moves) < 10 and not moving.done():
                assert pair.store.read_consistently(look) == everything
        finally:
            done.set()
        moving.result()


def test_a_row_is_replaced_within_a_version_and_across(pair: Pair) -> None:
    pair.fill()
    same_rows(pair.store, pair.oracle)
    assert pair.store.count() == {OLD.version: 20, NEW.version: 20}
    pair.upsert(pair.rows(OLD.version, pair.names(range(5, 25))))
    same_rows(pair.store, pair.oracle)
    # Back to the older version: the last write counts, not the largest number.
    assert pair.store.count() == {OLD.version: 25, NEW.version: 15}
    pair.reopen()
    same_rows(pair.store, pair.oracle)


def test_many_small_writes_are_all_there_and_the_same_again_changes_nothing(pair: Pair) -> None:
    pair.spaces()
    for i in range(20):
        version = (OLD, NEW)[i % 3 == 0].version
        rows = pair.rows(version, pair.names(sorted({i, i + 1, (7 * i) % 20})))
        for _ in range(1 + (i == 19)):
            pair.upsert(rows)
    same_rows(pair.store, pair.oracle)
    same_hits(pair.store, pair.oracle, pair.queries(), 7)
    pair.reopen()
    same_rows(pair.store, pair.oracle)


def test_what_is_not_there_is_not_fetched_and_nothing_changes_nothing(filled: Pair) -> None:
    filled.upsert(filled.rows(OLD.version, []))
    for store in filled.both:
        store.delete([])
        assert store.fetch([]) == []
    fetched = as_dict(filled.store.fetch(filled.names([39, 0, 99, 0, 25, -5, 39])))
    assert set(fetched) == set(filled.names([0, 25, 39]))


def test_ids_that_go_wrong_in_databases_come_back(pair: Pair) -> None:
    pair.spaces()
    ids = HARD[pair.id_type]
    pair.upsert(pair.rows(OLD.version, ids))
    same_rows(pair.store, pair.oracle)
    pair.upsert(pair.rows(NEW.version, ids[::2]))
    pair.reopen()
    same_rows(pair.store, pair.oracle)
    queries = pair.queries()
    same_hits(pair.store, pair.oracle, queries, 100)
    for key in ids:
        assert set(as_dict(pair.store.fetch([key]))) == {key}
        same_hits(pair.store, pair.oracle, queries, 2, ids=[key])
    for store in pair.both:
        store.delete(pair.array(ids[1::3]))
    same_rows(pair.store, pair.oracle)


def test_search_in_one_space_and_in_two(filled: Pair) -> None:
    for k in (1, 5, 1000):
        queries = filled.queries()
        same_hits(filled.store, filled.oracle, queries, k)
        for version in DIMS:
            results = same_hits(filled.store, filled.oracle, {version: queries[version]}, k)
            assert all((hits.versions == version).all() for hits in results)
            assert len(results[0]) == min(k, 20)


def test_no_queries_have_no_results(filled: Pair) -> None:
    none = {version: np.zeros((0, dim), np.float32) for version, dim in DIMS.items()}
    for ids in (None, filled.names([1, 2, 99])):
        assert same_hits(filled.store, filled.oracle, none, 5, ids=ids) == []


def test_search_after_the_index_is_built(pair: Pair) -> None:
    pair.fill()
    pair.store.build_index()
    same_hits(pair.store, pair.oracle, pair.queries(), 1000)
    pair.upsert(pair.rows(NEW.version, pair.names(range(10, 35))))
    same_hits(pair.store, pair.oracle, pair.queries(), 1000)
    pair.store.build_index()
    pair.reopen()
    same_hits(pair.store, pair.oracle, pair.queries(), 1000)
    same_rows(pair.store, pair.oracle)


def test_offsets_move_the_scores_of_a_version(filled: Pair) -> None:
    queries = filled.queries()
    offsets = {NEW.version: np.array([100, 0, -100], dtype=np.float32)}
    shifted = same_hits(filled.store, filled.oracle, queries, 10, offsets=offsets)
    assert (shifted[0].versions == NEW.version).all()
    assert (shifted[2].versions == OLD.version).all()
    plain = filled.store.search(queries, 10)
    np.testing.assert_array_equal(shifted[1].scores, plain[1].scores)


def test_search_among_ids(filled: Pair) -> None:
    queries = filled.queries()
    for numbers in ([3], [3, 3, 25, 99], list(range(15, 33)), [99]):
        among = filled.names(numbers)
        for hits in same_hits(filled.store, filled.oracle, queries, 10, ids=among):
            assert set(hits.ids.to_pylist()) <= set(among)
    assert [len(hits) for hits in filled.store.search(queries, 10, ids=[])] == [0, 0, 0]


def test_deleted_rows_are_gone_until_they_are_written_again(pair: Pair) -> None:
    pair.fill()
    for start in range(8):
        for store in pair.both:
            store.delete(pair.names([start, start + 18, 500]))
        if start % 3 == 2:
            pair.upsert(pair.rows(NEW.version, pair.names([start, start + 1])))
        if start % 4 == 3:
            pair.reopen()
        same_rows(pair.store, pair.oracle)
    same_hits(pair.store, pair.oracle, pair.queries(), 50)


def test_load_a_whole_version_over_another(pair: Pair) -> None:
    pair.fill()
    ids = pair.names(range(10, 60))
    # An id that comes again counts as it came last.
    blocks = [pair.rows(NEW.version, part) for part in (ids[:20], ids[20:], [], ids[5:8])]
    for store in pair.both:
        assert store.load(NEW, iter(blocks)) == 53
    same_rows(pair.store, pair.oracle)
    same_hits(pair.store, pair.oracle, pair.queries(), 9)
    pair.reopen()
    same_rows(pair.store, pair.oracle)
    with pytest.raises(IntegrityError):
        pair.store.load(Space(NEW.version, NEW.dim, "sha256:other"), iter(blocks))


def test_a_load_that_breaks_off_leaves_whole_rows(pair: Pair) -> None:
    pair.fill()
    before = as_dict(pair.store.scan())
    rows = pair.rows(NEW.version, pair.names(range(100, 140)))

    def blocks() -> Iterator[Rows]:
        yield rows
        raise DataError("the file ends here")

    with pytest.raises(DataError, match="ends here"):
        pair.store.load(NEW, blocks())
    after = as_dict(pair.store.scan())
    assert after in (before, before | as_dict([rows]))
    pair.upsert(rows)
    same_rows(pair.store, pair.oracle)


def test_what_does_not_fit_is_refused(filled: Pair) -> None:
    store, ids = filled.store, filled.array(filled.names([1, 2]))
    other = pa.array(["1"]) if filled.id_type == "int64" else pa.array([1])
    null = filled.array([filled.name(1), None])

    def rows(ids: pa.Array, dim: int = 6, version: int = 0, value: float = 1.0) -> Rows:
        return Rows(version, ids, np.full((len(ids), dim), value, np.float32))

    refused: list[tuple[Callable[[], Any], str]] = [
        *((partial(store.upsert, rows(ids, value=v)), "finite") for v in (np.nan, np.inf, -np.inf)),
        (partial(store.upsert, rows(ids, 5)), "dim 5"),
        (partial(store.upsert, rows(ids, version=8)), "no space for version 8"),
        (partial(store.upsert, rows(ids.take([0, 0]))), "twice"),
        (partial(store.upsert, rows(null)), "null"),
        (partial(store.upsert, rows(other)), "are"),
        (partial(store.fetch, other), "are"),
        (partial(store.delete, other), "are"),
        (partial(store.search, filled.queries(), 3, ids=other), "are"),
        (partial(store.search, {OLD.version: filled.floats(1, 5)}, 3), "5"),
        (partial(store.search, {8: filled.floats(1, 5)}, 3), "8"),
        (partial(store.search, filled.queries(), 0), "k is 0"),
    ]
    for ask, named in refused:
        with pytest.raises((DataError, ShapeError), match=named):
            ask()


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("pgvector", "pgvector_store.WRITTEN_AT_ONCE"),
        ("lance", "lance_store.LOOKED_UP"),
        ("qdrant", "qdrant_store.POINTS"),
    ],
)
@pytest.mark.parametrize("id_type", ["int64"])
def test_more_rows_than_one_request_takes(
    pair: Pair, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"evergram.stores.{limit}", 7)
    pair.fill()
    same_rows(pair.store, pair.oracle)
    same_hits(pair.store, pair.oracle, pair.queries(), 40, ids=pair.names(range(15, 35)))
    for store in pair.both:
        store.delete(pair.names(range(35)))
    same_rows(pair.store, pair.oracle)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_store_searches_a_past_version_on_its_own_index(tmp_path: Path, kind: str) -> None:
    lineage = lineage_of(tmp_path / "line")
    queries = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    metrics: list[Metric] = ["ip", "l2", "cosine"]
    with STORES[kind](tmp_path, "int64") as store:
        fill(lineage, store, "object")
        store.build_index()
        reader = Reader(lineage, {"object": store})
        for metric in metrics:
            found = reader.search(queries, 5, 0, metric=metric)
            for row, hits in zip(scores_of(metric, queries, read_as(2, 0)), found, strict=True):
                best = np.argsort(-row)[:5].tolist()
                assert len(set(hits.ids.to_pylist()) & set(best)) >= 4, "the index's recall"
                assert_allclose(hits.scores, row[hits.ids.to_numpy()], rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_metric_is_exact_while_rows_are_stale(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a row was written whose length the rows before do not foretell."""
    lineage = lineage_of(tmp_path / "line")
    monkeypatch.setattr(metric_search, "LEAST", 2)
    ids, maps = np.arange(300), VersionMaps(lineage)
    queries = np.random.default_rng(1).standard_normal((3, 10)).astype(np.float32) * 3
    with STORES[kind](tmp_path, "int64") as store:
        for version in (0, 1, 2):
            of = lineage.manifest(version)
            space = Space(version, of.dim + version + 1, of.fingerprint)
            store.add_space(space)
            some = ids[version :: 1 if version == 0 else 4]
            store.upsert(
                stored_rows(maps, space, pa.array(some), vectors_of(version)[some].numpy())
            )
        reader = Reader(lineage, {"object": store})
        before = store.state(0)
        compare(reader, ids, queries)
        store.delete([0])
        long = np.full((1, 6), 60, np.float32)
        store.upsert(stored_rows(maps, store.spaces()[0], pa.array([999]), long))
        assert store.state(0) != before
        ids = np.append(ids[1:], 999)
        compare(reader, ids, np.vstack([queries, reader.embed([999], 2).vectors]))


@pytest.mark.parametrize("kind", ["lance", "qdrant"])
def test_rows_of_a_killed_writer_are_found_before_the_next_write(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a reader that has seen the rows before; the writer has acknowledged nothing."""
    lineage = lineage_of(tmp_path / "line")
    monkeypatch.setattr(metric_search, "LEAST", 2)
    ids, maps = np.arange(300), VersionMaps(lineage)
    queries = np.random.default_rng(1).standard_normal((3, 10)).astype(np.float32) * 3
    with STORES[kind](tmp_path, "int64") as store:
        of = lineage.manifest(0)
        space = Space(0, of.dim + 1, of.fingerprint)
        store.load(space, [stored_rows(maps, space, pa.array(ids), vectors_of(0).numpy())])
        reader = Reader(lineage, {"object": store})
        compare(reader, ids, queries)
        put = vars(type(store))["_put"]

        def killed(self: Any, *args: Any) -> None:
            put(self, *args)
            raise StoreError("killed")

        long = np.full((1, 6), 60, np.float32)
        with monkeypatch.context() as during:
            during.setattr(type(store), "_put", killed)
            with pytest.raises(StoreError, match="killed"):
                store.upsert(stored_rows(maps, space, pa.array([999]), long))
        ids = np.append(ids, 999)
        queries = np.vstack([queries, reader.embed([999], 2).vectors])
        compare(reader, ids, queries)
        store.upsert(stored_rows(maps, space, pa.array([1000]), -long))
        compare(reader, np.append(ids, 1000), queries)
        assert store.state(0) == store.state(0)


def compare(reader: Reader, ids: Any, queries: Any) -> None:
    rows = reader.embed(ids.tolist(), 2).vectors.astype(np.float64)
    metrics: list[Metric] = ["l2", "cosine"]
    for metric in metrics:
        for k in (1, 7, 400):
            found = reader.search(queries, k, 2, metric=metric)
            for scores, hits in zip(scores_of(metric, queries, rows), found, strict=True):
                assert hits.ids.to_pylist()[:7] == ids[np.argsort(-scores)[: min(k, 7)]].tolist()
                assert len(hits) == min(k, len(ids))
                assert_allclose(hits.scores, np.sort(scores)[::-1][:k], rtol=1e-3, atol=1e-4)


def test_every_kind_that_an_address_names_is_enrolled() -> None:
    # Those that only read tables of somebody's own hold nothing that the tests could write.
    own = [name for _, name in KINDS.values() if not name.startswith("Adopted")]
    names = {name.removesuffix("Store").lower() for name in own}
    assert names <= set(STORES)


# Any order of writes, reads and searches.

THREE = [Space(version, dim, f"sha256:{version}") for version, dim in enumerate((3, 5, 2))]
VERSIONS = st.sampled_from(range(3))
NUMBERS = st.lists(st.integers(0, 30), unique=True, max_size=12)


class Machine(RuleBasedStateMachine):
    kind: ClassVar[str]

    @initialize(id_type=st.sampled_from(["int64", "string"]))
    def start(self, id_type: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="evergram-stateful-"))
        self.pair = Pair(lambda: STORES[self.kind](self.folder, id_type), id_type, THREE).spaces()

    def rows(self, version: int, numbers: list[int]) -> Rows:
        return self.pair.rows(version, self.pair.names(numbers))

    @rule(version=VERSIONS, numbers=NUMBERS)
    def upsert(self, version: int, numbers: list[int]) -> None:
        self.pair.upsert(self.rows(version, numbers))

    @rule(version=VERSIONS, blocks=st.lists(NUMBERS, max_size=3))
    def load(self, version: int, blocks: list[list[int]]) -> None:
        rows = [self.rows(version, numbers) for numbers in blocks]
        for store in self.pair.both:
            store.load(THREE[version], rows)

    @rule(numbers=NUMBERS)
    def delete(self, numbers: list[int]) -> None:
        for store in self.pair.both:
            store.delete(self.pair.names(numbers))

    @rule(numbers=NUMBERS)
    def fetch(self, numbers: list[int]) -> None:
        found, truth = (as_dict(s.fetch(self.pair.names(numbers))) for s in self.pair.both)
        assert found == truth

    @rule(versions=st.sets(VERSIONS, min_size=1), k=st.integers(1, 40), among=st.none() | NUMBERS)
    def search(self, versions: set[int], k: int, among: list[int] | None) -> None:
        queries = {v: some for v, some in self.pair.queries(2).items() if v in versions}
        ids = None if among is None else self.pair.names(among)
        same_hits(self.pair.store, self.pair.oracle, queries, k, ids=ids)

    @rule()
    def reopen(self) -> None:
        self.pair.reopen()

    @rule()
    def build_index(self) -> None:
        self.pair.store.build_index()

    @invariant()
    def holds_the_same(self) -> None:
        if hasattr(self, "pair"):
            assert self.pair.store.count() == self.pair.oracle.count()
            assert as_dict(self.pair.store.scan(size=7)) == as_dict(self.pair.oracle.scan())

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.store.close()
            shutil.rmtree(self.folder)


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "dictionary"])
def test_any_order(kind: str) -> None:
    machine = type(f"Machine_{kind}", (Machine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


FILES = {"lance": "{}#emb", "qdrant": "{}#emb", "sqlite": "{}/emb.db#emb"}


def address_of(kind: str, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return f"{kind}:{FILES[kind].format(folder)}"


@pytest.mark.parametrize(
    "kind",
    ["pgvector", *(pytest.param(k, marks=pytest.mark.long) for k in ("snapshot", *FILES))],
)
def test_threads_work_together(kind: str, tmp_path: Path) -> None:
    """Each thread owns some ids and moves them between two spaces; nobody ever sees a row that
    was not written, and each thread sees its own rows as it left them."""
    dims = {10: 6, 11: 9}

    def written(ids: range, version: int) -> Rows:
        # What a row is follows from its id and version, so anybody can tell a wrong one.
        steps = np.arange(dims[version], dtype=np.float32)
        vectors = np.asarray(ids, dtype=np.float32)[:, None] + version * steps
        return Rows(version, pa.array(ids, pa.int64()), vectors)

    def work(store: Store, owner: int) -> None:
        own = range(owner * 20, owner * 20 + 20)
        query = {v: np.ones((2, d), dtype=np.float32) for v, d in dims.items()}
        for i in range(6):
            version = 10 + (i + owner) % 2
            store.upsert(written(own, version))
            assert as_dict(store.fetch(own)) == as_dict([written(own, version)])
            for rows in store.fetch(range(160)):
                expected = as_dict([written(range(160), rows.version)])
                assert as_dict([rows]).items() <= expected.items()
            for hits in store.search(query, 5):
                assert len(hits) == len(set(hits.ids.to_pylist())) == 5

    with STORES[kind](tmp_path, "int64") as store, ThreadPoolExecutor(8) as pool:
        for version, dim in dims.items():
            store.add_space(Space(version, dim, f"sha256:{version}"))
        for done in [pool.submit(work, store, owner) for owner in range(8)]:
            done.result()
        assert sum(store.count().values()) == 160


WRITER = """
import sys
import numpy as np, pyarrow as pa
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows
with open_store(sys.argv[1]) as store:
    for i in range(100_000):
        ids = np.arange(20) + 20 * (i % 50)
        store.upsert(Rows(i % 2, pa.array(ids), np.full((20, 4 - i % 2), i, dtype=np.float32)))
        print(i, flush=True)
"""


def kill_writers(address: str) -> None:
    """Assert that a new store loses no row whose write has returned."""
    with open_store(address, create="int64") as store:
        store.add_space(Space(0, 4, "sha256:zero"))
        store.add_space(Space(1, 3, "sha256:one"))
    for pause in (0.07, 0.2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, address], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        last = int((first + writer.communicate()[0]).split("\n")[-2])
        with open_store(address, create="int64") as store:
            # Every batch up to the last that was told is there as written, or as the one under way.
            for i in range(max(0, last - 49), last + 1):
                parts = store.fetch(np.arange(20) + 20 * (i % 50))
                assert sum(map(len, parts)) == 20
                for part in parts:
                    assert set(np.unique(part.vectors)) <= {i, i + 50 if i + 50 == last + 1 else i}
            store.delete(range(1000))
            assert store.count() == {}


@pytest.mark.long
@pytest.mark.parametrize("kind", FILES)
def test_no_acknowledged_row_is_lost_when_the_writer_is_killed(kind: str, tmp_path: Path) -> None:
    kill_writers(address_of(kind, tmp_path / "killed"))


@pytest.mark.long
@pytest.mark.parametrize("kind", FILES)
def test_no_wrong_vector_comes_out_of_a_damaged_folder(kind: str, tmp_path: Path) -> None:
    """A bit of a file is flipped: an error, or a row that is missed, but never a wrong vector."""
    folder = tmp_path / kind
    address = address_of(kind, folder)
    vectors = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    with open_store(address, create="int64") as store:
        store.add_space(Space(0, 8, "sha256:zero"))
        store.add_space(Space(1, 6, "sha256:one"))
        store.upsert(Rows(0, pa.array(range(200)), vectors))
        store.upsert(Rows(1, pa.array(range(100, 130)), vectors[:30, :6].copy()))
        written = as_dict(store.scan())
        store.delete(range(10))
        truth = as_dict(store.scan())
    # Lance has no checksum of which rows are removed: one may come back, as it was.
    allowed = written if kind == "lance" else truth
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
    chance = random.Random(0)
    errors = 0
    for _ in range(100):
        file = chance.choice(files)
        whole = file.read_bytes()
        place = chance.randrange(len(whole))
        flipped = whole[place] ^ 1 << chance.randrange(8)
        file.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        try:
            with open_store(address) as store:
                fetched = as_dict(store.fetch(range(200)))
            assert fetched.items() <= allowed.items()
        except (StoreError, IntegrityError):
            errors += 1
        file.write_bytes(whole)
    assert errors
    with open_store(address) as store:
        assert as_dict(store.scan()) == truth


# A writer that is killed between its two steps, or within one transaction, as SQLite's is.


@pytest.fixture(params=FILES)
def half(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    both = Pair(lambda: STORES[request.param](tmp_path, "int64"), "int64").fill()
    yield both
    both.store.close()


def killed_while_moving(half: Pair, monkeypatch: pytest.MonkeyPatch, rows: Rows) -> bool:
    """Move rows, killed before they are removed from where they were. Returns: whether they were
    written, in one of two steps."""

    def die(*_: Any) -> None:
        raise StoreError("killed")

    with monkeypatch.context() as during:
        during.setattr(type(half.store), "_remove", die)
        with pytest.raises(StoreError, match="killed"):
            half.store.upsert(rows)
    half.reopen()
    return bool(half.store.two_steps)  # type: ignore[attr-defined]


def moved_and_killed(half: Pair, monkeypatch: pytest.MonkeyPatch) -> bool:
    rows = half.rows(NEW.version, half.names(range(15)))
    if not killed_while_moving(half, monkeypatch, rows):
        return False
    half.oracle.upsert(rows)
    assert sum(half.store.count().values()) > sum(half.oracle.count().values())
    return True


def test_only_the_later_row_of_an_id_is_read(half: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    moved_and_killed(half, monkeypatch)
    there = as_dict(half.oracle.scan())
    assert as_dict(half.store.scan()) == there
    assert as_dict(half.store.scan(OLD.version, size=2)) == as_dict(half.oracle.scan(OLD.version))
    assert as_dict(half.store.fetch(half.names(range(40)))) == there
    queries = half.queries()
    # Of the old version alone, the rows that were moved are gone: they are of the new one.
    for asked in (queries, {OLD.version: queries[OLD.version]}):
        for k in (1, 3, 7, 100):
            same_hits(half.store, half.oracle, asked, k)
        same_hits(half.store, half.oracle, asked, 3, ids=half.names(range(10, 25)))
    half.upsert(half.rows(OLD.version, half.names([38])))  # by a writer that ends
    half.store.read_consistently(lambda view: same_hits(cast(Any, view), half.oracle, queries, 40))
    for store in half.both:
        store.delete(pa.array(half.names(range(12)), store.id_type))
    assert as_dict(half.store.scan()) == as_dict(half.oracle.scan())
    same_hits(half.store, half.oracle, queries, 40)


@pytest.mark.parametrize("how", ["remove_superseded", "written again"])
def test_it_is_repaired(half: Pair, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    two_steps = moved_and_killed(half, monkeypatch)
    if how == "written again":
        half.upsert(half.rows(NEW.version, half.names(range(15))))
        two_steps = False
    assert half.store.remove_superseded() == (15 if two_steps else 0)
    same_rows(half.store, half.oracle)
    assert half.store.remove_superseded() == 0
    half.reopen()
    same_rows(half.store, half.oracle)


def test_a_row_that_was_to_move_back_stays_in_the_later_version(
    half: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = as_dict(half.store.scan())
    back = half.rows(OLD.version, half.names(range(30, 35)))
    killed_while_moving(half, monkeypatch, back)
    assert as_dict(half.store.scan()) == before
    same_hits(half.store, half.oracle, half.queries(), 40)
    half.upsert(back)
    same_rows(half.store, half.oracle)


def test_a_row_that_moves_back_while_tables_are_read_is_met_the_second_time(
    half: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = half.store
    if not store.two_steps:
        return
    key = half.names([35])
    back = half.rows(OLD.version, key)
    get, met = type(store)._get, list[int]()

    def get_and_move(self: Any, version: int, ids: pa.Array) -> Any:
        found = list(get(self, version, ids))
        met.append(version)
        if met == [OLD.version]:
            half.opened_again().upsert(back)
        return iter(found)

    with monkeypatch.context() as during:
        during.setattr(type(store), "_get", get_and_move)
        assert [rows.version for rows in store.fetch(key)] == [OLD.version]
        again = len(met)
        # Ids that are found are not looked for again.
        store.fetch(key)
        assert len(met) == again + 2
