"""Stored rows and hits by sidecars, beside the old vectors themselves."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from tests.retrieval.sidecars.conftest import ROWS, Made
from tests.support.dictionary_store import DictionaryStore
from tests.support.embedding_files import file_of

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.adopting.view_search import search_view
from evergram.retrieval.embedded import Embedded
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Metric, Reader
from evergram.retrieval.sidecars import reading
from evergram.retrieval.sidecars.make_sidecar import make_sidecar
from evergram.retrieval.sidecars.reading import reread
from evergram.retrieval.sidecars.sidecar_files import SidecarFiles
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.rows import MOST_HITS, Hits, Rows
from evergram.stores.store import StoreView

SIDE = "object"
CALIBRATED: Any = {"scores": "calibrated", "query_vectors": "own"}


@pytest.fixture
def sidecars(made: Made) -> dict[int, Path]:
    return made.sidecars


def error(read: np.ndarray, true: np.ndarray) -> float:
    return float(np.linalg.norm(read - true) / np.linalg.norm(true))


def test_rows_are_read_as_the_old_vectors_and_nearer_than_by_the_way_back(
    made: Made, sidecars: dict[int, Path]
) -> None:
    with (
        closing(Reader.open(made.lineage)) as plain,
        closing(Reader.open(made.lineage, sidecars=list(sidecars.values()))) as reader,
    ):
        for version in (2, 1, 0):
            true = made.vectors[version].numpy()
            by_chain = plain.embed(made.ids, version).vectors
            embedded = reader.embed(made.ids, version)
            assert set(embedded.counts) == {2}
            if version == 2:
                np.testing.assert_array_equal(embedded.vectors, by_chain)
            else:
                assert error(embedded.vectors, true) < 0.25 * error(by_chain, true)
        stated = VersionSidecar.open(sidecars[2])
        assert error(reader.embed(made.ids, 1).vectors, made.vectors[1].numpy()) == pytest.approx(
            stated.error, rel=1e-4
        )
        assert stated.way_back_error == pytest.approx(
            error(plain.embed(made.ids, 1).vectors, made.vectors[1].numpy()), rel=1e-4
        )
        # In another order, some twice, one that is not stored.
        some = [made.ids[n].as_py() for n in (7, 3, 7)]
        asked = reader.embed([*some, "none" if isinstance(some[0], str) else -5], 1)
        whole = reader.embed(made.ids, 1).vectors
        np.testing.assert_allclose(asked.vectors[:3], whole[[7, 3, 7]], rtol=1e-6)
        assert not asked.vectors[3].any()


def test_a_step_without_a_sidecar_is_the_way_back(made: Made, sidecars: dict[int, Path]) -> None:
    with closing(Reader.open(made.lineage, sidecars=[sidecars[2]])) as reader:
        as_one = reader.embed(made.ids, 1).vectors
        expected = reader.transform(as_one, 1, 0)
        np.testing.assert_allclose(
            reader.embed(made.ids, 0).vectors, expected, rtol=1e-5, atol=1e-6
        )
    # Codes of version 1 say nothing of rows of version 2 that were not read by codes themselves.
    with (
        closing(Reader.open(made.lineage, sidecars=[sidecars[1]])) as reader,
        closing(Reader.open(made.lineage)) as plain,
    ):
        same = plain.embed(made.ids, 0).vectors
        np.testing.assert_array_equal(reader.embed(made.ids, 0).vectors, same)


def test_an_object_that_was_embedded_anew_is_read_by_the_way_back(
    made: Made, sidecars: dict[int, Path]
) -> None:
    store = DictionaryStore("string" if pa.types.is_string(made.ids.type) else "int64")
    fill(made.lineage, store, SIDE)
    changed = made.ids.slice(4, 1)
    row = store.fetch(changed)[0].vectors.copy()
    row[:, 0] += 0.25
    store.upsert(Rows(2, changed, row))
    opened = SidecarFiles([sidecars[2]])
    with closing(Reader(made.lineage, {SIDE: store}, sidecars=opened)) as reader:
        read = reader.embed(made.ids, 1).vectors
        dim = made.vectors[2].shape[1]
        by_way_back = reader.transform(row[:, :dim], 2, 1)
        np.testing.assert_allclose(read[4], by_way_back[0], rtol=1e-5)
        others = [n for n in range(ROWS) if n != 4]
        assert error(read[others], made.vectors[1].numpy()[others]) < 0.1


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_a_search_ranks_by_what_is_read(
    made: Made, sidecars: dict[int, Path], metric: Metric
) -> None:
    queries = made.vectors[0][:5].numpy() + 0.1
    files = list(sidecars.values())
    rows = {id_: row for row, id_ in enumerate(made.ids.to_pylist())}
    with closing(Reader.open(made.lineage, sidecars=files)) as reader:
        scores = scores_of(metric, queries, reader.embed(made.ids, 0).vectors)
    for depth in (ROWS, 300):
        with closing(Reader.open(made.lineage, sidecars=SidecarFiles(files, depth))) as reader:
            hits = reader.search(queries, 10, 0, metric=metric)
        with closing(Reader.open(made.lineage)) as plain:
            narrow = queries.astype(np.float32)
            asked = VersionMaps(made.lineage), 0, narrow, depth, metric, None
            proposed = search_view(plain.store(), *asked, proposals=True)
            if metric != "cosine":
                nearest = plain.search(queries, depth, 0, metric=metric)
                assert [h.ids for h in proposed] == [h.ids for h in nearest]
        for own, near, of_query in zip(scores, proposed, hits, strict=True):
            places = sorted((rows[i] for i in near.ids.to_pylist()), key=lambda n: -own[n])
            expected = [made.ids[n].as_py() for n in places[:10]]
            assert of_query.ids.to_pylist() == expected
            np.testing.assert_allclose(of_query.scores, own[places[:10]], rtol=1e-4, atol=1e-5)
            assert set(of_query.versions.tolist()) == {2}
    # More than the depth, among some, and at the version of the rows.
    with closing(Reader.open(made.lineage, sidecars=SidecarFiles(files, 3))) as reader:
        among = made.ids.slice(0, 50)
        (few,) = reader.search(queries[:1], 50, 0, metric=metric, ids=among)
        first_rows = sorted(range(50), key=lambda n: -scores[0][n])
        assert few.ids.to_pylist() == [among[n].as_py() for n in first_rows]
        np.testing.assert_allclose(few.scores, scores[0][first_rows], rtol=1e-4, atol=1e-5)
        own_version = made.vectors[2][:1].numpy()
        (first,) = reader.search(own_version, 3, 2, metric="l2")
        assert first.ids[0].as_py() == made.ids[0].as_py()


def scores_of(
    metric: Metric, queries: npt.NDArray[np.float64], vectors: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    read = vectors.astype(np.float64)
    distances: npt.NDArray[np.float64] = -((queries[:, None] - read[None]) ** 2).sum(-1)
    if metric == "l2":
        return distances
    products: npt.NDArray[np.float64] = queries @ read.T
    if metric == "ip":
        return products
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(read, axis=1)
    cosines: npt.NDArray[np.float64] = products / lengths
    return cosines


def test_old_queries_find_what_they_found(made: Made, sidecars: dict[int, Path]) -> None:
    queries = made.vectors[0].numpy()[:100]
    with (
        closing(Reader.open(made.lineage)) as plain,
        closing(Reader.open(made.lineage, sidecars=list(sidecars.values()))) as reader,
    ):
        shares = []
        true = np.argsort(
            ((queries[:, None] - made.vectors[0].numpy()[None]) ** 2).sum(-1), axis=1
        )[:, :10]
        for one in (plain, reader):
            hits = one.search(queries, 10, 0, metric="l2")
            shares.append(
                np.mean(
                    [
                        len({made.ids[int(n)].as_py() for n in own} & set(h.ids.to_pylist())) / 10
                        for own, h in zip(true, hits, strict=True)
                    ]
                )
            )
    assert shares[1] > 0.8
    assert shares[1] > shares[0] + 0.3


def test_an_object_that_was_embedded_anew_between_two_sidecars_goes_on_by_the_way_back(
    made: Made, sidecars: dict[int, Path], tmp_path: Path
) -> None:
    kept = set(made.lineage.canaries(1)[SIDE][0].to_pylist())
    texts = made.ids.cast(pa.string()).to_pylist()
    anew = [n for n, text in enumerate(texts) if text not in kept][:5]
    between = made.vectors[1].clone()
    between[anew] += 0.5
    changed = file_of(tmp_path / "between.parquet", between, made.ids)
    make_sidecar(made.lineage, changed, size=6).save(tmp_path / "2.sidecar")
    paths = [sidecars[1], tmp_path / "2.sidecar"]
    with closing(Reader.open(made.lineage, sidecars=paths)) as reader:
        as_one, as_none = (reader.embed(made.ids, v).vectors for v in (1, 0))
        way_back = reader.transform(as_one[anew], 1, 0)
        np.testing.assert_allclose(as_none[anew], way_back, rtol=1e-4, atol=1e-5)
        rest = [n for n in range(ROWS) if n not in anew]
        assert error(as_none[rest], made.vectors[0].numpy()[rest]) < 0.15


def test_objects_without_codes_are_read_by_the_way_back(made: Made, tmp_path: Path) -> None:
    half = made.ids.slice(0, ROWS // 2)
    some = file_of(tmp_path / "half.parquet", made.vectors[1][: len(half)], half)
    make_sidecar(made.lineage, some, size=6).save(tmp_path / "half.sidecar")
    with (
        closing(Reader.open(made.lineage)) as plain,
        closing(Reader.open(made.lineage, sidecars=[tmp_path / "half.sidecar"])) as reader,
    ):
        by_codes, by_chain = (r.embed(made.ids, 1).vectors for r in (reader, plain))
    np.testing.assert_array_equal(by_codes[len(half) :], by_chain[len(half) :])
    assert error(by_codes[: len(half)], made.vectors[1].numpy()[: len(half)]) < 0.1


def test_calibrated_scores_are_of_the_way_back(made: Made, sidecars: dict[int, Path]) -> None:
    queries = made.vectors[1][:3].numpy()
    with (
        closing(Reader.open(made.lineage)) as plain,
        closing(Reader.open(made.lineage, sidecars=[sidecars[2]])) as reader,
    ):
        expected, got = (r.search(queries, 5, 1, **CALIBRATED) for r in (plain, reader))
        for one, two in zip(expected, got, strict=True):
            assert one.ids.equals(two.ids)
            np.testing.assert_array_equal(one.scores, two.scores)
        raw = reader.search(queries, 5, 1)
        with pytest.raises(DataError, match="ranks by a sidecar"):
            reader.calibrated(raw, 1, query_vectors="own")
        newest = reader.search(made.vectors[2][:1].numpy(), 5, 2)
        assert len(reader.calibrated(newest, 2, query_vectors="own")) == 1


def test_more_is_looked_at_only_where_a_sidecar_may_help(
    made: Made, sidecars: dict[int, Path]
) -> None:
    opened = SidecarFiles([sidecars[1]]).read(made.lineage)
    assert opened.apply(SIDE, 0, [1, 2])
    assert not opened.apply(SIDE, 0, [0, 2])
    assert not opened.apply(SIDE, 1, [1])
    assert not opened.apply("query", 0, [1])
    assert opened.depth(SIDE, 0, 10) == reading.DEPTH
    assert opened.depth(SIDE, 0, 1250) == 5000
    # No k becomes more than a store takes.
    assert opened.depth(SIDE, 0, 10**9) == MOST_HITS
    assert opened.depth(SIDE, 1, 10) == opened.depth("query", 0, 10) == 10
    assert SidecarFiles([sidecars[1]], 20).read(made.lineage).depth(SIDE, 0, 4) == 20


@pytest.mark.parametrize("metric", get_args(Metric))
def test_queries_beyond_those_that_are_read_at_once_have_the_same_hits(
    made: Made, sidecars: dict[int, Path], metric: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = made.vectors[0][:7].numpy() + 0.1
    with closing(Reader.open(made.lineage, sidecars=SidecarFiles(sidecars[2], 40))) as reader:
        depths: list[tuple[int, int]] = []

        def searched(view: StoreView, *asked: Any, **options: Any) -> list[Hits]:
            depths.append((len(asked[2]), asked[3]))
            return search_view(view, *asked, **options)

        monkeypatch.setattr("evergram.retrieval.version_search.search_view", searched)
        alone = [reader.search(query, 3, 0, metric=metric)[0] for query in queries]
        together = reader.search(queries, 3, 0, metric=metric)
        monkeypatch.setattr(reading, "HITS", 100)
        divided = reader.search(queries, 3, 0, metric=metric)
        assert depths == [(1, 40)] * 7 + [(7, 40)] + [(2, 40)] * 3 + [(1, 40)]
        # One that reads no sidecar is not divided.
        reader.search(made.vectors[2][:9].numpy(), 3, 2, metric=metric)
        reader.search(queries, 3, 0, metric=metric, **CALIBRATED)
        assert depths[-2:] == [(9, 3), (7, 3)]
    for one, two, three in zip(alone, together, divided, strict=True):
        assert one.ids.equals(two.ids)
        assert one.ids.equals(three.ids)
        np.testing.assert_allclose(two.scores, one.scores, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(three.scores, one.scores, rtol=1e-5, atol=1e-6)


def test_a_row_that_was_removed_since_the_search_is_no_hit() -> None:
    ids, zeros = pa.array([3, 1, 2]), np.zeros(3, np.float32)
    hits = [Hits(ids, zeros, np.ones(3, np.int64)), Hits(ids.slice(1), zeros[1:], np.ones(2, int))]

    def embed(asked: pa.Array) -> Embedded:
        assert asked.to_pylist() == [3, 1, 2]
        vectors = np.array([[9, 9], [1, 0], [0, 3]], np.float32)
        return Embedded(0, asked, vectors, np.array([-1, 1, 1]))

    first, second = reread(embed, hits, np.array([[1, 1], [1, 0]], np.float32), "ip", 2)
    assert (first.ids.to_pylist(), first.scores.tolist()) == ([2, 1], [3, 1])
    assert (second.ids.to_pylist(), second.scores.tolist()) == ([1, 2], [1, 0])


def test_a_reader_that_is_carried_keeps_its_sidecars(made: Made, sidecars: dict[int, Path]) -> None:
    with closing(Reader.open(made.lineage, sidecars=[sidecars[2]])) as reader:
        before = reader.embed(made.ids, 1).vectors
        with closing(reader.carried(Lineage.open(made.lineage.path))) as after:
            np.testing.assert_array_equal(after.embed(made.ids, 1).vectors, before)
