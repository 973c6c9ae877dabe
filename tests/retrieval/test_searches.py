"""Searches at any version on one index, against loops over all rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from tests.support.agreement import scores_of
from tests.support.dictionary_store import DictionaryStore

from evergram.compatibility.chain import Chain
from evergram.compatibility.kinds import build_transform
from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval import metric_search
from evergram.retrieval.metric_search import (
    Field,
    by_cosine,
    by_distance,
    by_inner_product,
    near_by_cosine,
)
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.store import ID_TYPES, Hits, Rows, Space, Store, find, keys_of

SEARCHES = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}


@dataclass
class Line:
    """What maps need of a lineage."""

    chain: Chain
    maps: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]

    def forward(self, source: int, target: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self.maps.get((source, target))


def line_of(dims: list[int], draw: torch.Generator, kind: str = "affine") -> Line:
    steps = []
    for old, new in pairwise(dims):
        transform = build_transform(kind, old, new, {}, draw)
        with torch.no_grad():
            for parameter in transform.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
        steps.append(transform)
    maps = {
        (i, j): (
            torch.randn(dims[j], dims[i], generator=draw, dtype=torch.float64),
            torch.randn(dims[j], generator=draw, dtype=torch.float64),
        )
        for i in range(len(dims))
        for j in range(i + 1, len(dims))
    }
    return Line(Chain(steps, dims[0]), maps)


def read_as(
    line: Line, vectors: npt.NDArray[np.float64], source: int, target: int
) -> npt.NDArray[np.float64]:
    if target > source:
        weight, offset = line.maps[source, target]
        ahead: npt.NDArray[np.float64] = vectors @ weight.numpy().T + offset.numpy()
        return ahead
    past: npt.NDArray[np.float64] = line.chain.apply(
        torch.from_numpy(vectors), source, target
    ).numpy()
    return past


@contextmanager
def one_store(snapshot: bool) -> Iterator[Store]:
    """Yield an empty store: a loop over all rows, or a snapshot, which computes missing norms."""
    if not snapshot:
        yield DictionaryStore()
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(f"{folder}/one", create="int64") as store,
    ):
        yield store


def stored(
    store: Store,
    seed: int,
    counts: dict[int, int],
    spread: float,
    target: int,
    norms: bool = True,
    zeros: bool = False,
) -> tuple[list[Field], npt.NDArray[np.float64], np.random.Generator]:
    """Fill a store with as many rows of each version as counts say, whose ids are numbers from 0
    on. Return its fields, and the rows as `target` reads them. `zeros`: the first of a version is
    0."""
    rng = np.random.default_rng(seed)
    line = line_of([4, 5, 6], torch.Generator().manual_seed(seed))
    maps = VersionMaps(cast(Lineage, line))
    read = [np.zeros((0, 4 + target))]
    for version, count in counts.items():
        lengths = np.exp(spread * rng.standard_normal((count, 1)))
        vectors = (rng.standard_normal((count, 4 + version)) * lengths).astype(np.float32)
        if not count:
            continue
        vectors[0] *= not zeros
        rows = np.hstack([vectors, maps.norms(vectors, version)]) if norms else vectors
        first = sum(map(len, read))
        store.add_space(Space(version, rows.shape[1], "f"))
        # A few rows are deleted again, which a segment of a snapshot still has.
        ids, gone = np.arange(first, first + count), np.arange(count // 20) - 1000
        both = np.concatenate([rows, 9 * rows[: len(gone)]])
        store.upsert(Rows(version, pa.array(np.concatenate([ids, gone])), both))
        store.delete(pa.array(gone))
        read.append(read_as(line, vectors.astype(np.float64), version, target))
    fields = [Field(store, maps, v, target, 4 + v, s.dim) for v, s in store.filled().items()]
    return fields, np.concatenate(read), rng


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(0, 2**31), st.sampled_from(sorted(SEARCHES)), st.integers(0, 2)),
    st.lists(st.integers(0, 200), min_size=3, max_size=3),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.3, 2.0]),
    st.tuples(*[st.booleans()] * 4),
)
def test_every_metric_finds_what_a_loop_finds(
    drawn: tuple[int, str, int],
    counts: list[int],
    k: int,
    spread: float,
    flags: tuple[bool, bool, bool, bool],
) -> None:
    """Rows of three versions at once, lengths that differ a hundredfold, ways back and forward.

    Where a row has no norm of its target, as one read forward has none, candidates are re-ranked.
    """
    (seed, metric, target), (norms, some, zeros, snapshot) = drawn, flags
    with one_store(snapshot) as store:
        held = dict(enumerate(counts))
        fields, rows, rng = stored(store, seed, held, spread, target, norms, zeros)
        if not fields:
            return
        queries = rng.standard_normal((2, 4 + target)).astype(np.float32)
        count = len(rows)
        among = sorted(rng.choice(count, size=max(1, count // 2), replace=False)) if some else None
        results = SEARCHES[metric](fields, queries, k, among)
    # What float32 rounds relative to: an L2 score is a difference of squares of this size.
    power = 1e-3 * max(1.0, (rows**2).sum(axis=1).max())
    for scores, hits in zip(scores_of(metric, queries, rows), results, strict=True):
        best = np.sort(scores if among is None else scores[among])[::-1][:k]
        ids = hits.ids.to_pylist()
        assert len(set(ids)) == len(hits) == len(best)
        assert among is None or set(ids) <= set(among)
        np.testing.assert_allclose(hits.scores, best, rtol=2e-3, atol=2e-3 * power)
        assert (abs(scores[ids] - hits.scores) < 2e-3 * (1 + abs(scores[ids])) + 1e-4 * power).all()


class _Matrix:
    """A store of one space, in one matrix product."""

    address, id_type = "matrix", pa.int64()

    def __init__(self, stored: npt.NDArray[np.float32]) -> None:
        self._stored = stored
        self.rows_fetched = 0
        self.exact: list[bool] = []

    def spaces(self) -> dict[int, Space]:
        return {1: Space(1, self._stored.shape[1], "f")}

    def state(self, version: int) -> object:
        return len(self._stored)

    def takes_columns(self, version: int) -> bool:
        return False

    def scan(self, version: int) -> Iterator[Rows]:
        return (rows for rows, _ in self._scan(version, 100))

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, None]]:
        for start in range(0, len(self._stored), size):
            part = self._stored[start : start + size]
            yield Rows(1, pa.array(range(start, start + len(part))), part), None

    def _verify(self, rows: Rows, checks: None) -> None:
        """They have no checksums."""

    def fetch(self, ids: pa.Array) -> list[Rows]:
        self.rows_fetched += len(ids)
        return [Rows(1, ids, self._stored[ids.to_numpy()])]

    def search(
        self, queries: dict[int, Any], k: int, *, offsets: Any, ids: Any, exact: bool, columns: Any
    ) -> list[Hits]:
        self.exact.append(exact)
        scores = queries[1] @ self._stored.T + offsets[1][:, None]
        order = np.argsort(-scores, axis=1)[:, :k]
        return [
            Hits(pa.array(o), s[o].astype(np.float32), np.full(len(o), 1, dtype=np.int64))
            for o, s in zip(order, scores, strict=True)
        ]


def one_space(
    line: Line, vectors: npt.ArrayLike, *, target: int = 0, norms: bool = True, store: Any = _Matrix
) -> tuple[Any, Field]:
    """Return a store of vectors of version 1, and their field as version `target`."""
    maps, rows = VersionMaps(cast(Lineage, line)), np.asarray(vectors, np.float32)
    stored = np.concatenate([rows, maps.norms(rows, 1)], axis=1) if norms else rows
    made = store(stored)
    return made, Field(made, maps, 1, target, rows.shape[1], stored.shape[1])


def linear_line(dim: int) -> tuple[Line, npt.NDArray[np.float64]]:
    """Return a line of two versions of one dim, and Wᵀ⁻¹ of its step back."""
    line = line_of([dim, dim], torch.Generator().manual_seed(0), kind="linear")
    return line, np.linalg.inv(line.chain.matrix(1, 0).numpy()).T


def test_cosine_is_proved_where_products_mislead_and_looks_at_few_rows_elsewhere() -> None:
    """Ten thousand long rows at 60 degrees outdo a short row at 1 degree in inner product."""
    line, inverse = linear_line(8)
    wanted = np.zeros((10_000, 8))
    wanted[:, 0] = 50.0
    wanted[:, 1:] = np.random.default_rng(0).standard_normal((10_000, 7)) * 33
    wanted[-3:] = [[0.01, 0, 0, 0, 0, 0, 0, 1e-4 * i] for i in range(3)]
    _, field = one_space(line, wanted @ inverse)
    (hits,) = by_cosine([field], np.eye(8, dtype=np.float32)[:1], 3, None)
    assert set(hits.ids.to_pylist()) == {9_997, 9_998, 9_999}
    # Where lengths are alike.
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((10_000, 32)).astype(np.float32)
    store, field = one_space(linear_line(32)[0], vectors)
    read = field.maps.rows(vectors, 1, 0).astype(np.float64)
    query = rng.standard_normal((1, 32)).astype(np.float32)
    cosines = read @ query[0] / np.linalg.norm(read, axis=1)
    (hits,) = by_cosine([field], query, 10, None)
    assert set(hits.ids.to_pylist()) == set(np.argsort(-cosines)[:10].tolist())
    assert store.rows_fetched < 2_000


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    counts=st.lists(st.integers(0, 400), min_size=2, max_size=2),
    spread=st.sampled_from([0.0, 0.5]),
    k=st.integers(1, 500),
)
def test_rows_near_by_cosine_are_those_of_a_line_for_their_lengths(
    seed: int, counts: list[int], spread: float, k: int
) -> None:
    """Rows of two versions; a loop in float64 computes the candidates, their cosines, the line."""
    fields, rows, rng = stored(
        DictionaryStore(), seed, dict(zip((1, 2), counts, strict=True)), spread, 0
    )
    if not fields:
        return
    query = rng.standard_normal(4).astype(np.float32)
    (hits,) = near_by_cosine(fields, query[None], k, None)
    unit = query.astype(np.float64) / np.linalg.norm(query.astype(np.float64))
    lengths = np.linalg.norm(rows, axis=1)
    some = np.argsort(-(rows @ unit))[:256]
    t = max(0.0, np.sort(rows[some] @ unit / lengths[some])[::-1][:64][-1])
    scores = rows @ unit - t * lengths
    assert len(set(hits.ids.to_pylist())) == len(hits) == min(k, len(rows))
    # A tangent of its octave is above a length by less than a fifteenth of it.
    above = t * lengths / 15
    least = np.sort(scores - above)[::-1][: len(hits)].min()
    rounding = 2e-3 * (1 + np.abs(scores).max())
    assert scores[hits.ids.to_numpy()].min() >= least - rounding


def around(cosines: npt.NDArray[np.float64], draw: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return vectors of length 1 with these cosines with the first coordinate."""
    rest = draw.standard_normal((len(cosines), 31))
    rest *= (np.sqrt(1 - cosines**2) / np.linalg.norm(rest, axis=1))[:, None]
    return np.column_stack([cosines, rest])


@pytest.mark.parametrize("lengths", ["widely spread", "popular", "outliers"])
def test_many_rows_near_by_cosine_need_few_fetches(lengths: str) -> None:
    """And they have the nearest, also where long rows with other directions have the largest
    products, as popular ones do."""
    draw = np.random.default_rng(0)
    spread = {"widely spread": 1.0}.get(lengths, 0.1)
    rows = around(draw.uniform(-0.4, 0.4, 10_000), draw)
    rows *= np.exp(spread * draw.standard_normal((len(rows), 1)))
    if lengths == "popular":
        rows[:3000] = 5 * around(draw.uniform(0.3, 0.6, 3000), draw)
        rows[3000:3100] = around(draw.uniform(0.8, 0.95, 100), draw)
    if lengths == "outliers":
        rows[:3] *= 1000
        rows[3:6] /= 1000
    line, inverse = linear_line(32)
    store, field = one_space(line, rows @ inverse)
    (hits,) = near_by_cosine([field], np.eye(32, dtype=np.float32)[:1] * 3, 1000, None)
    assert store.rows_fetched == 256
    assert store.exact == [False, False, True]
    # The smallest and the largest length are found once.
    near_by_cosine([field], np.eye(32, dtype=np.float32)[:1], 1000, None)
    assert store.exact[3:] == [False, True]
    assert len(set(hits.ids.to_pylist())) == 1000
    best = set(np.argsort(-rows[:, 0] / np.linalg.norm(rows, axis=1))[:100].tolist())
    assert len(best & set(hits.ids.to_pylist())) >= 95


def test_rows_near_by_cosine_where_there_is_no_line() -> None:
    """Of zeros alone, any."""
    line = line_of([3, 4], torch.Generator().manual_seed(0), kind="linear")
    query = np.ones((1, 3), np.float32)
    for norms in (False, True):
        _, field = one_space(line, np.zeros((20, 4)), norms=norms)
        assert len(near_by_cosine([field], query, 5, None)[0]) == 5


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_search_returns_as_many_as_are_asked_for(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more than are ever looked at for few."""
    monkeypatch.setattr(metric_search, "MOST", 100)
    line, rows = linear_line(4)[0], np.random.default_rng(0).normal(size=(150, 4))
    for norms in (False, True):
        _, field = one_space(line, rows, norms=norms)
        hits = SEARCHES[metric]([field], np.ones((1, 4), np.float32), 140, None)
        assert len(hits[0]) == 140


def forward_line(
    dims: tuple[int, int], singular: npt.NDArray[np.float64], rng: np.random.Generator
) -> Line:
    """Return a line whose forward map has these singular values, and an offset."""
    old, new = dims
    left = np.linalg.qr(rng.standard_normal((new, new)))[0][:, : len(singular)]
    right = np.linalg.qr(rng.standard_normal((old, old)))[0][: len(singular)]
    line = line_of([old, new], torch.Generator().manual_seed(0))
    weight, offset = (left * singular) @ right, rng.standard_normal(new)
    line.maps[0, 1] = torch.from_numpy(weight), torch.from_numpy(offset)
    return line


@settings(max_examples=150, deadline=None)
@given(
    drawn=st.tuples(st.integers(0, 2**31), st.sampled_from(["l2", "cosine"])),
    dims=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    condition=st.sampled_from([1.0, 10.0, 1e4, np.inf]),
    shape=st.tuples(st.integers(1, 400), st.integers(1, 30), st.sampled_from([0.0, 3.0, 100.0])),
    flags=st.tuples(*[st.booleans()] * 4),
)
def test_rows_that_are_read_forward_are_searched_exactly(
    drawn: tuple[int, str],
    dims: tuple[int, int],
    condition: float,
    shape: tuple[int, int, float],
    flags: tuple[bool, bool, bool, bool],
) -> None:
    """Maps that flatten directions, or whole planes; rows far from 0, of unlike lengths, equal
    ones, zeros; queries near a row, far from all, and opposite to them; few candidates at first."""
    (seed, metric), (count, k, centre), (long, some, few, snapshot) = drawn, shape, flags
    rng = np.random.default_rng(seed)
    old, new = dims
    singular = np.geomspace(1, 1 / condition, min(dims)) if condition < np.inf else np.zeros(1)
    if condition == np.inf:
        singular[0] = 1.0
    maps = VersionMaps(cast(Lineage, forward_line(dims, singular, rng)))
    vectors = centre + rng.standard_normal((count, old))
    vectors *= np.exp(2 * long * rng.standard_normal((count, 1)))
    vectors[: count // 8], vectors[count // 8 : count // 4] = 0.0, vectors[-1]
    rows = np.hstack([vectors, maps.norms(vectors.astype(np.float32), 0)]).astype(np.float32)
    read = maps.rows(rows[:, :old], 0, 1).astype(np.float64)
    near = read[rng.integers(0, count, 2)] + 0.1 * rng.standard_normal((2, new))
    queries = np.vstack([near, 1 + 9 * rng.standard_normal(new), -0.01 - read.sum(axis=0)])
    queries = queries.astype(np.float32)
    among = sorted(rng.choice(count, size=max(1, count // 2), replace=False)) if some else None
    with pytest.MonkeyPatch.context() as patch, one_store(snapshot) as store:
        store.add_space(Space(0, old + 1, "f"))
        store.upsert(Rows(0, pa.array(range(count)), rows))
        patch.setattr(metric_search, "WIDER", 2)
        patch.setattr(metric_search, "LEAST", 1)
        patch.setattr(metric_search, "MOST", 64 if few else 1 << 20)
        found = SEARCHES[metric]([Field(store, maps, 0, 1, old, old + 1)], queries, k, among)
    for query, scores, hits in zip(queries, scores_of(metric, queries, read), found, strict=True):
        best = np.sort(scores if among is None else scores[among])[::-1][:k]
        ids = hits.ids.to_numpy()
        assert len(set(ids.tolist())) == len(ids) == len(best)
        # By cosine a score is known as well as float32 knows a row's direction and its share.
        rounding = 1e-6 if metric == "l2" else 3e-5
        scale = np.abs(best).max() if metric == "l2" else 1.0
        blur = 1e-6 * (query.astype(np.float64) ** 2).sum() if metric == "l2" else 0.0
        assert (scores[ids] >= best - rounding * scale - blur).all()
        # A snapshot's distances are float32 unless too few digits are left.
        relative = metric_search.DIGITS if snapshot and metric == "l2" else 1e-5
        # Rows far from 0 that are read forward are rounded to float32.
        rounded = 4e-7 * np.linalg.norm(query) * np.sqrt(np.abs(scores[ids]).max())
        atol = 1e-6 + (rounded if metric == "l2" else 0.0)
        np.testing.assert_allclose(hits.scores, scores[ids], rtol=relative, atol=atol)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_the_nearest_row_is_found_below_any_number_of_larger_products(metric: str) -> None:
    """Twenty thousand long rows have larger inner products than the one that is nearest."""
    rng = np.random.default_rng(0)
    rows = np.hstack([np.full((20_000, 1), 50.0), 40 * rng.standard_normal((20_000, 7))])
    rows[777] = np.eye(8)[0]
    _, field = one_space(linear_line(8)[0], rows, target=1, norms=False)
    (hits,) = SEARCHES[metric]([field], 1.01 * np.eye(8, dtype=np.float32)[:1], 1, None)
    assert hits.ids.to_pylist() == [777]
    # Norms without a fit would have needed every row.
    assert field.norms.above - field.norms.below > 1000
    (again,) = SEARCHES[metric]([field], 1.01 * np.eye(8, dtype=np.float32)[:1], 20_001, None)
    assert len(again) == 20_000
    assert again.ids[0].as_py() == 777


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_row_that_is_gone_when_it_is_read_is_no_hit(metric: str) -> None:
    """Somebody else deletes it, or refreshes it, between the two looks; as a vector of zeros it
    would be near."""
    line = line_of([3, 4], torch.Generator().manual_seed(0))
    vectors = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32) + 9

    class Moving(_Matrix):
        def fetch(self, ids: pa.Array) -> list[Rows]:
            refreshed = Rows(2, pa.array([7]), np.full((1, 4), -1, np.float32))
            return [*super().fetch(ids.filter(pc.not_equal(ids, 7))), refreshed]

    _, field = one_space(line, vectors, target=1, norms=False, store=Moving)
    queries = np.full((1, 4), -1, np.float32)
    hits = SEARCHES[metric]([field], queries, 20, None)[0]
    assert sorted(hits.ids.to_pylist()) == [i for i in range(20) if i != 7]


def test_a_way_that_is_not_affine_is_refused_for_search_and_read_for_fetch() -> None:
    line = line_of([3, 4], torch.Generator().manual_seed(0), kind="residual_mlp")
    maps = VersionMaps(cast(Lineage, line))
    store = DictionaryStore()
    store.add_space(Space(1, 4, "f"))
    rows = np.ones((2, 4), dtype=np.float32)
    store.upsert(Rows(1, pa.array([1, 2]), rows))
    field = Field(store, maps, 1, 0, 4, 4)
    for search in SEARCHES.values():
        with pytest.raises(LineageError, match="not affine"):
            search([field], np.ones((1, 3), np.float32), 1, None)
    torch.testing.assert_close(
        torch.from_numpy(maps.rows(rows, 1, 0)), line.chain.apply(torch.from_numpy(rows), 1, 0)
    )


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(("centre", "spread"), [(4.0, 0.005), (0.0, 1.0)])
def test_distances_are_those_of_float64_where_rows_are_far_from_0_and_near_each_other(
    centre: float, spread: float, norms: bool
) -> None:
    """The product's three terms cancel out there, and float32 leaves nothing of the difference."""
    rng = np.random.default_rng(0)
    line = line_of([64, 64], torch.Generator().manual_seed(0), kind="linear")
    vectors = (centre + spread * rng.standard_normal((2_000, 64))).astype(np.float32)
    _, field = one_space(line, vectors, target=1, norms=norms)
    noise = 0.2 * spread * rng.standard_normal((8, 64))
    queries = np.concatenate([vectors[:8] + noise, vectors[8:10]]).astype(np.float32)
    exact = -((queries[:, None].astype(np.float64) - vectors.astype(np.float64)) ** 2).sum(-1)
    for hits, own in zip(by_distance([field], queries, 5, None), exact, strict=True):
        best = np.argsort(-own)[:5]
        assert hits.ids.to_pylist() == best.tolist()
        np.testing.assert_allclose(hits.scores, own[best], rtol=1e-4)
        assert (hits.scores <= 0).all()
        np.testing.assert_allclose(hits.scores, own[hits.ids.to_numpy()], rtol=1e-4)
    # A distance that is past float32.
    with pytest.raises(DataError, match="give shorter vectors"):
        by_distance([field], np.full((1, 64), 2.5e38, np.float32), 1, None)


TEXTS = st.text(alphabet="ab1", max_size=3)
NUMBERS = st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)
ONES_AND_OTHERS = st.one_of(
    *(
        st.tuples(st.lists(one, min_size=1, unique=True, max_size=12), st.lists(one, max_size=12))
        for one in (TEXTS, NUMBERS)
    )
)


@settings(deadline=None)
@given(ONES_AND_OTHERS)
def test_ids_are_found_as_in_a_dictionary(ids: tuple[list[int | str], list[int | str]]) -> None:
    kind = "string" if isinstance(ids[0][0], str) else "int64"
    stored, asked = (pa.array(one, ID_TYPES[kind]) for one in ids)
    order = np.argsort(keys_of(stored), kind="stable")
    keys, ordered = keys_of(stored)[order], stored.take(pa.array(order))
    which, places = find(keys, asked, keys_of(asked), lambda at: ordered.take(pa.array(at)))
    expected = [(n, ids[0].index(one)) for n, one in enumerate(ids[1]) if one in ids[0]]
    assert list(zip(which.tolist(), order[places].tolist(), strict=True)) == expected
