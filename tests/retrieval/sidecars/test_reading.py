"""Stored rows and hits by sidecars, beside the old vectors themselves."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.retrieval.sidecars.conftest import ROWS, Made
from tests.support.dictionary_store import DictionaryStore
from tests.support.embedding_files import file_of, id_names, randn

from evergram.errors import DataError, IntegrityError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import align
from evergram.releasing.files.align_settings import AlignSettings
from evergram.retrieval.embedded import Embedded
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Reader
from evergram.retrieval.sidecars import reading
from evergram.retrieval.sidecars.make_sidecar import make_sidecar
from evergram.retrieval.sidecars.reading import Sidecars, reread
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar
from evergram.stores.rows import Hits, Rows

SIDE = "object"


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
    opened = Sidecars.open([sidecars[2]], made.lineage)
    with closing(Reader(made.lineage, {SIDE: store}, sidecars=opened)) as reader:
        read = reader.embed(made.ids, 1).vectors
        dim = made.vectors[2].shape[1]
        by_way_back = reader.transform(row[:, :dim], 2, 1)
        np.testing.assert_allclose(read[4], by_way_back[0], rtol=1e-5)
        others = [n for n in range(ROWS) if n != 4]
        assert error(read[others], made.vectors[1].numpy()[others]) < 0.1


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_a_search_ranks_by_what_is_read(
    made: Made, sidecars: dict[int, Path], metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = made.vectors[0][:5].numpy() + 0.1
    with closing(Reader.open(made.lineage, sidecars=list(sidecars.values()))) as reader:
        read = reader.embed(made.ids, 0).vectors.astype(float)
        scores = {
            "ip": queries @ read.T,
            "l2": -((queries[:, None] - read[None]) ** 2).sum(-1),
            "cosine": queries
            @ read.T
            / np.linalg.norm(queries, axis=1)[:, None]
            / np.linalg.norm(read, axis=1),
        }[metric]
        rows = {id_: row for row, id_ in enumerate(made.ids.to_pylist())}
        for depth in (ROWS, 300):
            monkeypatch.setattr(reading, "DEPTH", depth)
            hits = reader.search(queries, 10, 0, metric=metric)  # type: ignore[arg-type]
            with closing(Reader.open(made.lineage)) as plain:
                proposed = plain.search(queries, depth, 0, metric=metric)  # type: ignore[arg-type]
            for own, first, of_query in zip(scores, proposed, hits, strict=True):
                places = sorted((rows[i] for i in first.ids.to_pylist()), key=lambda n: -own[n])
                expected = [made.ids[n].as_py() for n in places[:10]]
                assert of_query.ids.to_pylist() == expected
                np.testing.assert_allclose(of_query.scores, own[places[:10]], rtol=1e-4, atol=1e-5)
                assert set(of_query.versions.tolist()) == {2}
        # More than DEPTH, among some, and at the version of the rows.
        monkeypatch.setattr(reading, "DEPTH", 3)
        among = made.ids.slice(0, 50)
        (few,) = reader.search(queries[:1], 50, 0, metric=metric, ids=among)  # type: ignore[arg-type]
        first_rows = sorted(range(50), key=lambda n: -scores[0][n])
        assert few.ids.to_pylist() == [among[n].as_py() for n in first_rows]
        np.testing.assert_allclose(few.scores, scores[0][first_rows], rtol=1e-4, atol=1e-5)
        own_version = made.vectors[2][:1].numpy()
        (first,) = reader.search(own_version, 3, 2, metric="l2")
        assert first.ids[0].as_py() == made.ids[0].as_py()


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


def test_sidecars_of_others_are_refused(
    made: Made, sidecars: dict[int, Path], tmp_path: Path
) -> None:
    empty = Lineage.create(tmp_path / "empty", "empty")
    other = Lineage.create(tmp_path / "other", "other")
    files = [file_of(tmp_path / f"{n}.parquet", randn(n, 900, 4)) for n in range(3)]
    for past, new in pairwise(files):
        align(past, new, other, AlignSettings("affine"), max_error=float("inf"))
    for lineage in (empty, other):
        with pytest.raises(IntegrityError, match="from version 2 to 1 of another lineage than"):
            Sidecars.open([sidecars[2]], lineage)
    with pytest.raises(DataError, match="Two sidecars are of one side"):
        Sidecars.open([sidecars[2], sidecars[2]], made.lineage)
    with pytest.raises(DataError, match="is no sidecar of a version"):
        Sidecars.open([made.file(0)], made.lineage)
    with pytest.raises(DataError, match="cannot be read"):
        Sidecars.open([tmp_path / "none"], made.lineage)
    with pytest.raises(DataError, match="is a folder"):
        Sidecars.open([tmp_path], made.lineage)


def test_a_production_without_a_sidecar_is_logged(
    made: Made, sidecars: dict[int, Path], caplog: pytest.LogCaptureFixture
) -> None:
    Sidecars.open(sidecars[2], made.lineage)
    assert not caplog.records
    Sidecars.open([sidecars[1]], made.lineage)
    assert "Version 2 has no sidecar of side object" in caplog.text


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
        expected, got = (r.search(queries, 5, 1, scores="calibrated") for r in (plain, reader))
        for one, two in zip(expected, got, strict=True):
            assert one.ids.equals(two.ids)
            np.testing.assert_array_equal(one.scores, two.scores)
        raw = reader.search(queries, 5, 1)
        with pytest.raises(DataError, match="ranks by a sidecar"):
            reader.calibrated(raw, 1)
        assert len(reader.calibrated(reader.search(made.vectors[2][:1].numpy(), 5, 2), 2)) == 1


def test_more_is_looked_at_only_where_a_sidecar_may_help(
    made: Made, sidecars: dict[int, Path]
) -> None:
    opened = Sidecars.open([sidecars[1]], made.lineage)
    assert opened.apply(SIDE, 0, [1, 2])
    assert not opened.apply(SIDE, 0, [0, 2])
    assert not opened.apply(SIDE, 1, [1])
    assert not opened.apply("query", 0, [1])
    assert opened.depth(SIDE, 0, 10) == reading.DEPTH
    assert opened.depth(SIDE, 0, 5000) == 5000
    assert opened.depth(SIDE, 1, 10) == opened.depth("query", 0, 10) == 10


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


def test_a_withdrawn_version_ends_its_sidecars_and_nothing_else(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "line", "line")
    meaning = randn(0, 900, 6)
    files = [
        file_of(tmp_path / f"{n}.parquet", meaning @ randn(n, 6, 5) + 0.3 * randn(n + 5, 900, 5))
        for n in (1, 2, 3)
    ]
    align(files[0], files[1], lineage, AlignSettings("affine"), promote=False)
    path = tmp_path / "1.sidecar"
    make_sidecar(lineage, files[0], size=4).save(path)
    reader = Reader.open(lineage, sidecars=[path])
    lineage.withdraw(1, "wrong")
    with pytest.raises(IntegrityError, match="withdrawn"):
        Reader.open(Lineage.open(lineage.path), sidecars=[path])
    with closing(reader), closing(reader.carried(Lineage.open(lineage.path))) as after:
        assert len(after.embed(id_names(900), 0).vectors) == 900
    # The version after it follows the one before, and so does its sidecar.
    again = Lineage.open(lineage.path)
    align(files[0], files[2], again, AlignSettings("affine"))
    made = make_sidecar(again, files[0], size=4)
    assert (made.version, made.target) == (2, 0)
    made.save(path)
    old = (meaning @ randn(1, 6, 5) + 0.3 * randn(6, 900, 5)).numpy()
    with closing(Reader.open(again, sidecars=[path])) as reader:
        assert error(reader.embed(id_names(900), 0).vectors, old) == pytest.approx(made.error)


def test_a_reader_that_is_carried_keeps_its_sidecars(made: Made, sidecars: dict[int, Path]) -> None:
    with closing(Reader.open(made.lineage, sidecars=[sidecars[2]])) as reader:
        before = reader.embed(made.ids, 1).vectors
        with closing(reader.carried(Lineage.open(made.lineage.path))) as after:
            np.testing.assert_array_equal(after.embed(made.ids, 1).vectors, before)
