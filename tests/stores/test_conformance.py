"""Every kind of store does what the slow oracle does; `tests/support/store_kinds.py` lists them."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose
from tests.support import dictionary_store, store_kinds
from tests.support.agreement import Id, as_dict, same_hits, same_rows
from tests.support.lineages import lineage_of, read_as
from tests.support.store_kinds import STORES
from tests.support.store_pairs import DIMS, NEW, OLD, Pair

from evergram.errors import DataError, IntegrityError, ShapeError
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Reader
from evergram.stores.index_codes import CODES, FLOAT32, IndexCodes
from evergram.stores.open_store import KINDS
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


def test_an_index_of_codes_is_built_or_refused(filled: Pair) -> None:
    """Of so few rows there is no index, so that an answer is the oracle's in either case."""
    for codes in CODES:
        chosen = FLOAT32 if codes == FLOAT32.kind else IndexCodes(codes, 4)
        offered = codes in OFFERED.get(filled.store.kind, (FLOAT32.kind,))
        with nullcontext() if offered else pytest.raises(DataError, match=codes):
            assert set(filled.store.build_index(chosen)) <= set(filled.store.spaces())
        same_hits(filled.store, filled.oracle, filled.queries(), 7)


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
    for i in range(20):
        version = (OLD, NEW)[i % 3 == 0].version
        pair.upsert(pair.rows(version, pair.names(sorted({i, i + 1, (7 * i) % 20}))))
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


def test_an_empty_write_changes_nothing(filled: Pair) -> None:
    filled.upsert(filled.rows(OLD.version, []))
    for store in filled.both:
        store.delete([])
        assert store.fetch([]) == []


def test_a_fetch_returns_each_asked_id_that_is_stored_once(filled: Pair) -> None:
    asked = filled.names([39, 0, 99, 0, 25, -5, 39])
    fetched = as_dict(filled.store.fetch(asked))
    assert fetched == as_dict(filled.oracle.fetch(asked))
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
        for queries in (none, {OLD.version: none[OLD.version]}):
            assert same_hits(filled.store, filled.oracle, queries, 5, ids=ids) == []
            assert filled.store.search(queries, 5, exact=True) == []


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


def test_a_vector_that_is_not_finite_is_refused(filled: Pair) -> None:
    for value in (np.nan, np.inf, -np.inf):
        rows = filled.rows(OLD.version, filled.names([1, 2, 3]))
        rows.vectors[1, 2] = value
        with pytest.raises(DataError, match="not finite"):
            filled.store.upsert(rows)


def test_rows_and_queries_that_do_not_fit_are_refused(filled: Pair) -> None:
    ids = filled.names([1, 2])
    wrong_dim = Rows(OLD.version, filled.array(ids), filled.floats(2, 5))
    with pytest.raises(ShapeError, match="dim 5"):
        filled.store.upsert(wrong_dim)
    with pytest.raises(DataError, match="no space for version 8"):
        filled.store.upsert(Rows(8, filled.array(ids), filled.floats(2, 6)))
    with pytest.raises(DataError, match="twice"):
        filled.store.upsert(filled.rows(OLD.version, [ids[0], ids[0]]))
    with pytest.raises(DataError, match="null"):
        filled.store.upsert(Rows(OLD.version, filled.array([ids[0], None]), filled.floats(2, 6)))
    with pytest.raises(ShapeError):
        filled.store.search({OLD.version: filled.floats(1, 5)}, 3)
    with pytest.raises(ShapeError):
        filled.store.search({8: filled.floats(1, 5)}, 3)
    with pytest.raises(DataError, match="k is 0"):
        filled.store.search(filled.queries(), 0)


def test_ids_of_another_type_are_refused(filled: Pair) -> None:
    other = pa.array(["1"]) if filled.id_type == "int64" else pa.array([1])
    for ask in (filled.store.fetch, filled.store.delete):
        with pytest.raises(DataError, match="are"):
            ask(other)
    with pytest.raises(DataError, match="are"):
        filled.store.upsert(Rows(OLD.version, other, filled.floats(1, 6)))
    with pytest.raises(DataError, match="are"):
        filled.store.search(filled.queries(), 3, ids=other)


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("pgvector", "postgres.pgvector_store.WRITTEN_AT_ONCE"),
        ("lance", "lance.lance_rows.LOOKED_UP"),
        ("qdrant", "qdrant.qdrant_store.POINTS"),
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
@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_every_store_searches_a_past_version_on_its_own_index(
    tmp_path: Path, kind: str, metric: str
) -> None:
    lineage = lineage_of(tmp_path / "line")
    with STORES[kind](tmp_path, "int64") as store:
        fill(lineage, store, "object")
        store.build_index()
        reader = Reader(lineage, {"object": store})
        queries = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
        read = read_as(2, 0).numpy().astype(np.float64)
        lengths = np.linalg.norm(read, axis=1)
        for query, hits in zip(
            queries,
            reader.search(queries, 5, 0, metric=metric),  # type: ignore[arg-type]
            strict=True,
        ):
            scores = {
                "ip": read @ query,
                "l2": -((read - query) ** 2).sum(axis=1),
                "cosine": read @ query / lengths / np.linalg.norm(query),
            }[metric]
            best = np.argsort(-scores)[:5]
            assert len(set(hits.ids.to_pylist()) & set(best.tolist())) >= 4, "the index's recall"
            assert_allclose(hits.scores, scores[hits.ids.to_numpy()], rtol=1e-3, atol=1e-3)


ROOT = Path(__file__).parents[2]

PAGE = (ROOT / "docs" / "extend" / "store.md").read_text()


def test_the_pages_code_is_the_oracle_of_the_tests() -> None:
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    assert block[1] == inspect.getsource(dictionary_store)
    assert "dictionary" in store_kinds.STORES


def test_every_kind_that_an_address_names_is_enrolled() -> None:
    # Those that only read tables of somebody's own hold nothing that the tests could write.
    own = [kind for kind in KINDS.values() if not kind.name.startswith("Adopted")]
    names = {kind.name.removesuffix("Store").lower() for kind in own}
    assert names <= set(store_kinds.STORES)
