"""Tables of one's own are searched as by a loop in float64, once their rows are proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.agreement import scores_of
from tests.support.lineages import DIMS, lineage_of, vectors_of
from tests.support.own_tables import OWN, address_of, category, own_store, own_table, text_of
from tests.support.postgres_server import postgres

from evergram.errors import DataError, IntegrityError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval import reader as adopted_search
from evergram.retrieval.reader import Metric, Reader
from evergram.stores.adopted_store import AdoptedStore

ROWS = 300

# Of each version, the rows whose column is not NULL: some have both, and some have none.
HELD = {0: range(280), 1: range(100, 200), 2: range(150, 160)}


def with_zeros_in_row_3(version: int, vectors: np.ndarray) -> np.ndarray:
    vectors[3] = 0
    return vectors


@pytest.fixture(scope="module", params=sorted(OWN))
def reader(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("adopted")
    lineage = lineage_of(folder / "line", 3, ROWS, canaries=2)
    address = own_store(request.param, folder / "own", ROWS, HELD, with_zeros_in_row_3)
    with closing(Reader.open(lineage, {"object": address})) as opened:
        yield opened


def oracle(
    reader: Reader, metric: Metric, query: np.ndarray, version: int, rows: list[int]
) -> list[tuple[float, int]]:
    """Return score and id of each row, best first."""
    read = reader.embed(pa.array(rows, pa.int64()), version)
    (scores,) = scores_of(metric, query[None], read.vectors)
    scored = zip(scores.tolist(), rows, read.sources >= 0, strict=True)
    return sorted(((score, i) for score, i, there in scored if there), reverse=True)


def test_unit_vectors_are_searched_by_cosine_at_a_past_version(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapped rows have other lengths; at production, cosine would read every mapped row."""
    unit = {(version, "object"): True for version in HELD}
    monkeypatch.setattr(reader, "_unit", unit)
    assert [reader.default_metric(version) for version in HELD] == ["cosine", "cosine", "ip"]


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["ip", "l2", "cosine"]),
    st.integers(0, 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, "news", ("news", 2004), "else"]),
    st.booleans(),
    st.sampled_from([7, 100]),
)
def test_a_search_is_a_loop_over_all_rows(
    reader: Reader, metric: Metric, version: int, seed: int, kept: object, among: bool, k: int
) -> None:
    draw = np.random.default_rng(seed)
    query = draw.normal(size=DIMS[version]).astype(np.float32)
    rows = list(range(ROWS))
    ids = None
    if among:
        rows = sorted(draw.choice(ROWS, 90, replace=False).tolist())
        ids = pa.array(rows)
    conditions: dict[str, object] | None = None
    if kept is not None:
        name = kept if isinstance(kept, str) else "news"
        conditions = {"category": name}
        rows = [i for i in rows if category(i) == name]
    if isinstance(kept, tuple):
        conditions = {"category": ["news", "other"], "year": {"gte": 2004, "lt": 2010}}
        rows = [i for i in rows if 4 <= i % 20 < 10]
    expected = oracle(reader, metric, query.astype(float), version, rows)
    (hits,) = reader.search(query, k, version, metric=metric, ids=ids, filter=conditions)
    best = [i for _, i in expected[:k]]
    assert sorted(hits.ids.to_pylist()) == sorted(best)
    assert k > 7 or hits.ids.to_pylist() == best
    assert np.allclose(hits.scores, [s for s, _ in expected[:k]], rtol=1e-4, atol=1e-4)
    assert hits.versions.tolist() == [_held(i) for i in hits.ids.to_pylist()]


def _held(row: int) -> int:
    return max(version for version, rows in HELD.items() if row in rows)


def test_too_many_rows_are_not_read(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopted_search, "MOST_READ", 50)
    query = np.ones(DIMS[0], np.float32)
    with pytest.raises(DataError, match=r"would read (90|180) rows of version [01].*by a filter"):
        reader.search(query, 3, 0, metric="cosine")
    store = reader.store()
    assert isinstance(store, AdoptedStore)
    if store.computes("ip", 1):
        assert len(reader.search(query, 3, 0, metric="ip")[0]) == 3
    else:
        with pytest.raises(DataError, match=r"by ip at version 0 would read"):
            reader.search(query, 3, 0, metric="ip")
    few = {"category": "news", "year": {"lt": 2005}}
    (hits,) = reader.search(query, 3, 0, metric="cosine", filter=few)
    assert len(hits) == 3
    # A row of zeros has the cosine 0, and a query of zeros none.
    assert reader.search(query, 1, 0, metric="cosine", ids=[3])[0].scores.tolist() == [0]
    with pytest.raises(DataError, match="length 0"):
        reader.search(0 * query, 3, 0, metric="cosine")


@pytest.fixture
def proved(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line", canaries=2)


@pytest.fixture
def opened(proved: Lineage) -> Iterator[Callable[..., Reader]]:
    """Opens a reader of a table, by its name and its versions."""
    with ExitStack() as closing:

        def open_table(table: str, versions: list[int] | None = None) -> Reader:
            reader = Reader.open(proved, {"object": address_of(table, versions or [0])})
            closing.callback(reader.close)
            return reader

        yield open_table


def test_other_ids_and_no_rows_are_refused(opened: Callable[..., Reader]) -> None:
    for change, words in (
        ("update {} set id = id + 1000", "None of the rows"),
        ("update {} set e0 = null", "no row with a vector"),
        ("delete from {}", "no row with a vector"),
    ):
        table = own_table()
        postgres().sql(change.format(table))
        with pytest.raises(IntegrityError, match=words):
            opened(table)
    # Rows are proved by the published file, which is kept of production, where no canary is there.
    table = own_table(300, {2: range(300)})
    postgres().sql(f"delete from {table} where id % 2 = 0")
    assert len(opened(table, [2]).search(np.ones(DIMS[0]), 3, 0)[0]) == 3
    postgres().sql(f"update {table} set e2 = e2 * e2")
    with pytest.raises(IntegrityError, match="were compared"):
        opened(table, [2])


def test_a_column_is_checked_when_it_gets_its_first_row(
    opened: Callable[..., Reader],
) -> None:
    """Rows that move to another version while a reader is open."""
    table = own_table(300, {0: range(300), 1: range(0)})
    reader = opened(table, [0, 1])
    query = np.ones(DIMS[0], np.float32)
    moved = text_of(vectors_of(1).numpy()[8])
    postgres().sql(f"update {table} set e1 = '{moved}' where id = 8")
    assert reader.embed([8], 0).sources.tolist() == [1]
    assert len(reader.search(query, 300, 0)[0]) == 300

    other = own_table(300, {0: range(300), 1: range(0)})
    reader = opened(other, [0, 1])
    postgres().sql(f"update {other} set e1 = '[1,2,3,4,5,6,7,8]' where id = 8")
    for read in (lambda: reader.embed([8], 0), lambda: reader.search(query, 3, 0)):
        with pytest.raises(IntegrityError, match=r"1 of 1 vectors .* version 1"):
            read()


@pytest.mark.parametrize("kind", list(OWN)[:3])
def test_each_kind_is_proved_before_its_first_row(
    kind: str, proved: Lineage, tmp_path: Path
) -> None:
    """Also of a version that is not production's, and of a new reader of changed vectors."""

    def some_changed(every: int) -> Callable[[int, np.ndarray], np.ndarray]:
        def change(version: int, vectors: np.ndarray) -> np.ndarray:
            vectors[::every] *= 1.5
            return vectors

        return change

    held = {0: range(300), 1: range(100)}
    address = own_store(kind, tmp_path / "few", 300, held, some_changed(30))
    with closing(Reader.open(proved, {"object": address})) as reader:
        read = reader.embed([5, 299, 300], 0)
        assert np.allclose(read.vectors[1], vectors_of(0).numpy()[299])
        assert read.sources.tolist() == [1, 0, -1]
    address = own_store(kind, tmp_path / "many", 300, held, some_changed(4))
    with pytest.raises(IntegrityError, match=r"of .* that were compared.*another model's"):
        Reader.open(proved, {"object": address})
    one = lineage_of(tmp_path / "one", 1, canaries=2)
    swapped = address.replace("v0=", "v9=").replace("v1=", "v0=").replace("v9=", "v1=")
    with pytest.raises(IntegrityError, match="6 dims as version 1; that version has 8"):
        Reader.open(proved, {"object": swapped})
    with pytest.raises(LineageError, match=r"version 1, which .* does not have"):
        Reader.open(one, {"object": own_store(kind, tmp_path / "two", 300, held)})
