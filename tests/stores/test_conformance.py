"""Every kind of store does what the slow oracle does; `tests/support/store_kinds.py` lists them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import Id, as_dict, same_hits, same_rows
from tests.support.store_kinds import STORES
from tests.support.store_pairs import DIMS, NEW, OLD, Pair

from evergram.errors import DataError, IntegrityError, ShapeError
from evergram.stores.index_codes import CODES, FLOAT32, IndexCodes
from evergram.stores.store import Hits, Rows, Space, StoreView

# Ids that have gone wrong in one database or another.
HARD: dict[str, list[Id]] = {
    "int64": [0, -1, 7, 2**31, 2**63 - 1, -(2**63), 2**53 + 1, 2**53],
    "string": [
        "",
        " ",
        "a",
        "A",
        "'",
        '"; DROP TABLE x; --',
        "naïve ü 中文 🙂",
        "e\u0301",
        "\u00e9",
        "back\\slash",
        "%_",
        "line\nbreak",
        "7",
        "x" * 500,
    ],
}


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["int64", "string"])
def pair(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    id_type = str(request.param)
    both = Pair(lambda: STORES[kind](tmp_path, id_type), id_type)
    yield both
    both.store.close()


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
    none = {version: np.zeros((0, dim), np.float32) for version, dim in DIMS.items()}
    assert pair.store.search(none, 5) == []
    pair.store.build_index()
    pair.reopen()
    assert pair.store.spaces() == {OLD.version: OLD, NEW.version: NEW}


# Codes that indexes may have; whole vectors alone where nothing is said.
OFFERED = {
    "dictionary": CODES,
    "snapshot": CODES,
    "pgvector": ("float32", "float16"),
    "lance": ("float32", "int8", "binary"),
}


@pytest.mark.parametrize("codes", CODES)
def test_an_index_of_codes_is_built_or_refused(pair: Pair, codes: str) -> None:
    """Of so few rows there is no index, so that an answer is the oracle's in either case."""
    pair.fill()
    chosen = FLOAT32 if codes == FLOAT32.kind else IndexCodes(codes, 4)
    refused = pytest.raises(
        DataError, match=f"cannot build an index of {codes}[;:] .*(float32|whole vectors)"
    )
    with nullcontext() if codes in OFFERED.get(pair.store.kind, (FLOAT32.kind,)) else refused:
        assert set(pair.store.build_index(chosen)) <= set(pair.store.spaces())
    same_rows(pair.store, pair.oracle)
    same_hits(pair.store, pair.oracle, pair.queries(), 7)


def test_a_space_is_added_once(pair: Pair) -> None:
    pair.fill()
    pair.store.add_space(OLD)
    same_rows(pair.store, pair.oracle)
    for other in (Space(0, 6, "sha256:other"), Space(0, 7, "sha256:old")):
        with pytest.raises(IntegrityError, match="another lineage"):
            pair.store.add_space(other)
    same_rows(pair.store, pair.oracle)


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


def test_one_of_two_processes_takes_a_store_for_its_side(pair: Pair) -> None:
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
    read = getattr(type(pair.store), moment)
    moved: list[str] = []

    def look(view: StoreView) -> tuple[Hits, dict[Id, tuple[int, bytes]]]:
        hits = view.search({version: queries[version] for version in view.filled()}, 100)[0]
        return hits, as_dict(view.fetch(hits.ids))

    with closing(pair.opened_again()) as other, monkeypatch.context() as during:

        def read_and_move(self: Any, *args: Any) -> Any:
            result = read(self, *args)
            if not moved:
                moved.append(moment)
                other.upsert(pair.rows(space.version, everything))
            return result

        during.setattr(type(pair.store), moment, read_and_move)
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

    def look(view: StoreView) -> list[Id]:
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


def test_many_small_writes_are_all_there(pair: Pair) -> None:
    pair.spaces()
    for i in range(40):
        version = (OLD, NEW)[i % 3 == 0].version
        pair.upsert(pair.rows(version, pair.names(sorted({i, i + 1, (7 * i) % 40}))))
    same_rows(pair.store, pair.oracle)
    same_hits(pair.store, pair.oracle, pair.queries(), 7)
    pair.reopen()
    same_rows(pair.store, pair.oracle)


def test_writing_the_same_again_changes_nothing(pair: Pair) -> None:
    pair.spaces()
    rows = pair.rows(OLD.version, pair.names(range(9)))
    for _ in range(3):
        pair.upsert(rows)
    same_rows(pair.store, pair.oracle)
    same_hits(pair.store, pair.oracle, {OLD.version: pair.floats(2, OLD.dim)}, 20)


def test_an_empty_write_changes_nothing(pair: Pair) -> None:
    pair.fill()
    pair.upsert(pair.rows(OLD.version, []))
    for store in pair.both:
        store.delete([])
        assert store.fetch([]) == []
    same_rows(pair.store, pair.oracle)


def test_a_fetch_returns_each_asked_id_that_is_stored_once(pair: Pair) -> None:
    pair.fill()
    asked = pair.names([39, 0, 99, 0, 25, -5, 39])
    fetched = as_dict(pair.store.fetch(asked))
    assert fetched == as_dict(pair.oracle.fetch(asked))
    assert set(fetched) == set(pair.names([0, 25, 39]))


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


@pytest.mark.parametrize("k", [1, 5, 1000])
def test_search_in_one_space_and_in_two(pair: Pair, k: int) -> None:
    pair.fill()
    queries = pair.queries()
    same_hits(pair.store, pair.oracle, queries, k)
    for version in DIMS:
        results = same_hits(pair.store, pair.oracle, {version: queries[version]}, k)
        assert all((hits.versions == version).all() for hits in results)
        assert len(results[0]) == min(k, 20)


@pytest.mark.parametrize("among", [None, [1, 2, 99]])
def test_no_queries_have_no_results(pair: Pair, among: list[int] | None) -> None:
    pair.fill()
    none = {version: np.zeros((0, dim), np.float32) for version, dim in DIMS.items()}
    ids = None if among is None else pair.names(among)
    for queries in (none, {OLD.version: none[OLD.version]}):
        assert same_hits(pair.store, pair.oracle, queries, 5, ids=ids) == []
        assert pair.store.search(queries, 5, exact=True) == []


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


def test_offsets_move_the_scores_of_a_version(pair: Pair) -> None:
    pair.fill()
    queries = pair.queries()
    offsets = {NEW.version: np.array([100, 0, -100], dtype=np.float32)}
    shifted = same_hits(pair.store, pair.oracle, queries, 10, offsets=offsets)
    assert (shifted[0].versions == NEW.version).all()
    assert (shifted[2].versions == OLD.version).all()
    plain = pair.store.search(queries, 10)
    np.testing.assert_array_equal(shifted[1].scores, plain[1].scores)


def test_search_among_ids(pair: Pair) -> None:
    pair.fill()
    queries = pair.queries()
    for numbers in ([3], [3, 3, 25, 99], list(range(15, 33)), [99]):
        among = pair.names(numbers)
        for hits in same_hits(pair.store, pair.oracle, queries, 10, ids=among):
            assert set(hits.ids.to_pylist()) <= set(among)
    assert [len(hits) for hits in pair.store.search(queries, 10, ids=[])] == [0, 0, 0]


def test_deleted_rows_are_gone_until_they_are_written_again(pair: Pair) -> None:
    pair.fill()
    for start in range(12):
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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused(pair: Pair, value: float) -> None:
    pair.fill()
    rows = pair.rows(OLD.version, pair.names([1, 2, 3]))
    rows.vectors[1, 2] = value
    with pytest.raises(DataError, match="not finite"):
        pair.store.upsert(rows)
    same_rows(pair.store, pair.oracle)


def test_rows_and_queries_that_do_not_fit_are_refused(pair: Pair) -> None:
    pair.fill()
    ids = pair.names([1, 2])
    wrong_dim = Rows(OLD.version, pair.array(ids), pair.floats(2, 5))
    with pytest.raises(ShapeError, match="dim 5"):
        pair.store.upsert(wrong_dim)
    with pytest.raises(DataError, match="no space for version 8"):
        pair.store.upsert(Rows(8, pair.array(ids), pair.floats(2, 6)))
    with pytest.raises(DataError, match="twice"):
        pair.store.upsert(pair.rows(OLD.version, [ids[0], ids[0]]))
    with pytest.raises(DataError, match="null"):
        pair.store.upsert(Rows(OLD.version, pair.array([ids[0], None]), pair.floats(2, 6)))
    with pytest.raises(ShapeError):
        pair.store.search({OLD.version: pair.floats(1, 5)}, 3)
    with pytest.raises(ShapeError):
        pair.store.search({8: pair.floats(1, 5)}, 3)
    with pytest.raises(DataError, match="k is 0"):
        pair.store.search(pair.queries(), 0)
    same_rows(pair.store, pair.oracle)


def test_ids_of_another_type_are_refused(pair: Pair) -> None:
    pair.fill()
    other = pa.array(["1"]) if pair.id_type == "int64" else pa.array([1])
    for ask in (pair.store.fetch, pair.store.delete):
        with pytest.raises(DataError, match="are"):
            ask(other)
    with pytest.raises(DataError, match="are"):
        pair.store.upsert(Rows(OLD.version, other, pair.floats(1, 6)))
    with pytest.raises(DataError, match="are"):
        pair.store.search(pair.queries(), 3, ids=other)
    same_rows(pair.store, pair.oracle)
