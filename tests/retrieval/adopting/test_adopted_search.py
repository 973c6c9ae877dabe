"""Searches of tables of somebody's own, of each kind: against a loop in float64 over what each row
reads as."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.lineages import DIMS, lineage_of
from tests.support.own_stores import OWN, own_store
from tests.support.own_tables import category

from evergram.errors import DataError
from evergram.retrieval.adopting import adopted_search
from evergram.retrieval.reader import Metric, Reader
from evergram.stores.adopted_store import AdoptedStore

ROWS = 300
# Of each version, the rows whose column is not NULL: some have both, and some have none.
HELD = {0: range(280), 1: range(100, 200), 2: range(150, 160)}


@pytest.fixture(scope="module", params=sorted(OWN))
def reader(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("adopted")
    lineage = lineage_of(folder / "line", 3, ROWS, canaries=2)
    address = own_store(request.param, folder / "own", ROWS, HELD)
    with closing(Reader.open(lineage, {"object": address})) as opened:
        yield opened


def oracle(
    reader: Reader, metric: Metric, query: np.ndarray, version: int, rows: list[int]
) -> list[tuple[float, int]]:
    """Return score and id of each row, best first."""
    read = reader.embed(rows, version)
    scored = []
    for i, vector, source in zip(rows, read.vectors.astype(float), read.sources, strict=True):
        if source < 0:
            continue
        product = sum(a * b for a, b in zip(query.tolist(), vector.tolist(), strict=True))
        if metric == "l2":
            product = -sum((a - b) ** 2 for a, b in zip(query, vector, strict=True))
        if metric == "cosine":
            product /= np.sqrt(sum(query**2)) * np.sqrt(sum(vector**2))
        scored.append((product, i))
    return sorted(scored, reverse=True)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["ip", "l2", "cosine"]),
    st.integers(0, 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, "news", ("news", 2004)]),
    st.booleans(),
)
def test_a_search_is_a_loop_over_all_rows(
    reader: Reader, metric: Metric, version: int, seed: int, kept: object, among: bool
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
        conditions = {"category": "news"}
        rows = [i for i in rows if category(i) == "news"]
    if isinstance(kept, tuple):
        conditions = {"category": ["news", "other"], "year": {"gte": 2004, "lt": 2010}}
        rows = [i for i in rows if 4 <= i % 20 < 10]
    k = 7
    expected = oracle(reader, metric, query.astype(float), version, rows)
    (hits,) = reader.search(query, k, version, metric=metric, ids=ids, filter=conditions)
    assert hits.ids.to_pylist() == [i for _, i in expected[:k]]
    assert np.allclose(hits.scores, [s for s, _ in expected[:k]], rtol=1e-4, atol=1e-4)
    assert hits.versions.tolist() == [_held(i) for i in hits.ids.to_pylist()]


def _held(row: int) -> int:
    return max(version for version, rows in HELD.items() if row in rows)


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_k_rows_that_match_are_k_hits(reader: Reader, metric: Metric) -> None:
    query = np.ones(DIMS[0], np.float32)
    chosen = {"category": "news", "year": 2003}
    match = [i for i in range(280) if i % 3 == 0 and i % 20 == 3]
    (hits,) = reader.search(query, 100, 0, metric=metric, filter=chosen)
    assert sorted(hits.ids.to_pylist()) == match
    (none,) = reader.search(query, 100, 0, metric=metric, filter={"category": "else"})
    assert len(none) == 0


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
        with pytest.raises(DataError, match=r"searches of that version are not by ip"):
            reader.search(query, 3, 0, metric="ip")
    few = {"category": "news", "year": {"lt": 2005}}
    (hits,) = reader.search(query, 3, 0, metric="cosine", filter=few)
    assert len(hits) == 3


@pytest.mark.parametrize("kind", sorted(OWN))
def test_a_row_of_zeros_has_the_cosine_zero_and_a_query_of_zeros_none(
    kind: str, tmp_path: Path
) -> None:
    def with_zeros_in_row_3(version: int, vectors: np.ndarray) -> np.ndarray:
        vectors[3] = 0
        return vectors

    lineage = lineage_of(tmp_path / "line", 1, 30, canaries=2)
    address = own_store(kind, tmp_path / "own", 30, change=with_zeros_in_row_3)
    query = np.ones(DIMS[0], np.float32)
    with closing(Reader.open(lineage, {"object": address})) as with_zeros:
        (hits,) = with_zeros.search(query, 30, metric="cosine")
        assert hits.scores[hits.ids.to_pylist().index(3)] == 0
        assert (np.diff(hits.scores) <= 0).all()
        with pytest.raises(DataError, match="length 0"):
            with_zeros.search(0 * query, 3, metric="cosine")
