"""Rows of several versions in one store, read and searched at any."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose
from tests.support.command import Command
from tests.support.dictionary_store import DictionaryStore
from tests.support.folding import CANDIDATES, candidates_of, folding_lineage, names
from tests.support.lineages import DIMS, lineage_of, publish, read_as, vectors_of
from tests.support.publishing import publish_next
from tests.support.store_kinds import STORES

from evergram.compatibility.transforms import AffineTransform, LinearTransform
from evergram.errors import DataError, IntegrityError, LineageError, ShapeError, UnknownVersionError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.lineage.new_queries.fold_in import fold_in
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.store import Rows
from evergram.vector_files.open_embeddings import open_embeddings


def filled(lineage: Lineage) -> Reader:
    store = DictionaryStore()
    assert fill(lineage, store, "object") == 300
    return Reader(lineage, {"object": store})


class ClosingStore(DictionaryStore):
    """A store that somebody wrote, and that counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_store_of_ones_own_that_is_refused_is_left_open(lineage: Lineage, tmp_path: Path) -> None:
    store = ClosingStore()
    fill(lineage, store, "object")
    other = lineage_of(tmp_path / "another", 1)
    with pytest.raises(IntegrityError):
        Reader.open(other, {"object": store})
    assert store.closed == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_embed_gives_what_each_version_would_read(lineage: Lineage, version: int) -> None:
    reader = filled(lineage)
    embedded = reader.embed([7, 299, 7, 1000, 0], version)
    assert embedded.version == version
    assert embedded.ids.to_pylist() == [7, 299, 7, 1000, 0]
    assert embedded.sources.tolist() == [2, 2, 2, -1, 2]
    assert embedded.missing.to_pylist() == [1000]
    expected = read_as(2, version)[[7, 299, 7, 7, 0]].numpy()
    expected[3] = 0
    assert_allclose(embedded.vectors, expected, rtol=1e-5, atol=1e-6)


def test_every_row_is_read_from_its_own_version(lineage: Lineage) -> None:
    """Half of the rows are still of version 1, as a backfill leaves them under way."""
    reader = filled(lineage)
    store = reader.store()
    older = space_of(lineage, 1)
    store.add_space(older)
    rows = vectors_of(1).numpy()[:150]
    stored = np.concatenate([rows, np.zeros((150, 2), np.float32)], axis=1)
    store.upsert(Rows(1, pa.array(range(150)), stored))
    embedded = reader.embed(range(300), 0)
    assert embedded.sources.tolist() == [1] * 150 + [2] * 150
    assert_allclose(embedded.vectors[:150], read_as(1, 0)[:150].numpy(), rtol=1e-5, atol=1e-6)
    assert_allclose(embedded.vectors[150:], read_as(2, 0)[150:].numpy(), rtol=1e-5, atol=1e-6)


def test_the_default_is_production_and_labels_are_versions(lineage: Lineage) -> None:
    reader = filled(lineage)
    assert reader.embed([1]).version == lineage.production == 2
    assert reader.embed([1], "v1").version == 1
    with pytest.raises(UnknownVersionError):
        reader.embed([1], 3)
    with pytest.raises(LineageError, match="no side 'query'"):
        reader.embed([1], 0, "query")


def test_vectors_are_transformed_back_and_never_silently_forward(lineage: Lineage) -> None:
    reader = filled(lineage)
    vectors = vectors_of(2).numpy()
    assert_allclose(reader.transform(vectors, 2, 0), read_as(2, 0).numpy(), rtol=1e-5, atol=1e-6)
    assert reader.transform(vectors, "v2", 2) is not None
    huge = np.full((1, 10), 1e30, np.float32)
    assert np.isfinite(reader.transform(huge, 2, 0)).all(), "a large vector is a finite one"


def test_a_canary_is_read_only_by_those_who_ask_for_it(tmp_path: Path) -> None:
    """Version 2 is published and not promoted: it is read from its own rows, and nobody who
    reads production or before gets anything that was computed from it."""
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    assert (lineage.production, lineage.newest) == (1, 2)
    with closing(Reader.open(lineage)) as reader:
        for version, source in ((0, 1), (1, 1), (None, 1), (2, 2)):
            embedded = reader.embed([3, 4], version)
            assert embedded.sources.tolist() == [source] * 2
            expected = read_as(source, embedded.version)[3:5].numpy()
            assert_allclose(embedded.vectors, expected, rtol=1e-5, atol=1e-6)
        assert reader.search(vectors_of(2)[3], 1, 2, metric="cosine")[0].versions.tolist() == [2]
        assert reader.search(vectors_of(1)[3], 1, 1, metric="cosine")[0].versions.tolist() == [1]
    lineage.label("stable", 2)
    with closing(Reader.open(lineage)) as reader:
        assert reader.embed([3, 4], 0).sources.tolist() == [2, 2]
    # Rolled back: the embeddings of version 1 were kept.
    lineage.label("stable", 1)
    with closing(Reader.open(lineage)) as reader:
        assert reader.embed([3, 4]).sources.tolist() == [1, 1]
        assert reader.embed([3, 4], 2).sources.tolist() == [2, 2]


def test_a_store_that_has_the_newest_version_answers_before_it_is_promoted(tmp_path: Path) -> None:
    """What is looked at before a version is promoted is the store that will answer then."""
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    store = DictionaryStore()
    fill(lineage, store, "object", 2)
    store.delete(pa.array([3]))
    # Half migrated: a row that is still of version 1 is read forward.
    space = space_of(lineage, 1)
    store.add_space(space)
    row = vectors_of(1).numpy()[4:5]
    store.upsert(stored_rows(lineage, VersionMaps(lineage), space, pa.array([4]), row))
    with closing(Reader.open(lineage, {"object": store})) as reader:
        assert reader.embed([3, 4, 5], 2).sources.tolist() == [-1, 1, 2]
        (hits,) = reader.search(vectors_of(2)[3], 300, 2, metric="cosine")
        assert 3 not in hits.ids.to_pylist()
        assert reader.embed([5], 0).sources.tolist() == [2]
    assert not (lineage.path / "stores").exists()


@pytest.mark.parametrize("unreadable", [True, False])
def test_a_store_without_rows_that_can_be_read_as_the_newest_is_not_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: bool
) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    store = DictionaryStore()
    fill(lineage, store, "object", 1)
    if unreadable:
        monkeypatch.setattr(Lineage, "forward", lambda self, source, target: None)
        space = space_of(lineage, 2)
        store.add_space(space)
        row = vectors_of(2).numpy()[4:5]
        store.upsert(stored_rows(lineage, VersionMaps(lineage), space, pa.array([4]), row))
    with closing(Reader.open(lineage, {"object": store})) as reader:
        assert reader.embed([4, 5], 2).sources.tolist() == [2, 2]
        with pytest.raises(DataError, match=r"Version 2 is after production \(1\), and .* has no"):
            reader.search(vectors_of(2)[3], 1, 2, filter={"kind": "a"})


@pytest.mark.parametrize("way", ["promoted", "rolled back"])
def test_while_stores_are_brought_to_another_version_every_version_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Without a map forward: a row that were read at a later version than its own would fail."""
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: None)
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    if way == "rolled back":
        lineage.label("stable", 2)
    with closing(Reader.open(lineage)) as before:
        lineage.label("stable", 1 if way == "rolled back" else 2)
        with closing(before.carried(Lineage.open(tmp_path / "line"))) as between:
            store = between.store()
            space = space_of(lineage, lineage.production)
            store.add_space(space)
            some = vectors_of(lineage.production).numpy()[:150]
            store.upsert(
                stored_rows(lineage, VersionMaps(lineage), space, pa.array(range(150)), some)
            )
            for version in (0, 1, 2):
                embedded = between.embed(range(300), version)
                for source in set(embedded.sources.tolist()):
                    of_source = embedded.sources == source
                    expected = read_as(source, version).numpy()[of_source]
                    assert_allclose(embedded.vectors[of_source], expected, rtol=1e-5, atol=1e-6)


def test_a_store_that_was_never_filled_is_named(lineage: Lineage) -> None:
    with (
        closing(Reader.open(lineage.path, {"object": DictionaryStore()})) as reader,
        pytest.raises(LineageError, match=r"was never filled; .* fills it"),
    ):
        reader.search(np.ones(10, dtype=np.float32), 3, 2)


@pytest.mark.parametrize("forms", [True, False])
def test_new_queries_are_computed_at_the_version_that_the_rows_are_of(
    tmp_path: Path, forms: bool
) -> None:
    """While stores are filled with a new version, and then no longer."""
    lineage = folding_lineage(tmp_path / "films", forms=forms)
    met = [["c1", "c5"], ["c7"]]
    both = [lineage.view(v, v) if v else None for v in (0, 1)]
    store = DictionaryStore("string")
    store.add_space(space := space_of(lineage, 0))
    ids = pa.array(names(CANDIDATES, "c"))
    rows = stored_rows(lineage, VersionMaps(lineage), space, ids, candidates_of(0).numpy())
    store.upsert(rows)
    store.take_side("candidate")
    reader = Reader(lineage, {"candidate": store})
    if not forms:
        with pytest.raises(LineageError, match="published without what folding in needs"):
            reader.fold_in(met, version=0)
        return
    vectors, source = reader.fold_in_with_source(met, version=0)
    assert source == 0
    form = lineage.query_form(0)
    assert form is not None
    lookup = {f"c{i}": row for i, row in enumerate(candidates_of(0))}

    def stored(keys: list[int | str]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(len(keys), dtype=torch.bool), torch.stack([lookup[str(k)] for k in keys])

    assert_allclose(vectors, fold_in(form, stored, met).numpy(), rtol=1e-4, atol=1e-5)
    # One candidate of the newest version, and one that is not: both are read as the older.
    newer = space_of(lineage, 1)
    store.add_space(newer)
    one = pa.array(["c7"])
    fresh = candidates_of(1)[7:8].numpy()
    store.delete(one)
    store.upsert(stored_rows(lineage, VersionMaps(lineage), newer, one, fresh))
    assert reader.fold_in_with_source(met, version=0)[1] == 0
    folded, source = reader.fold_in_with_source(["c7"], version=0)
    assert source == 1
    assert both[1] is not None
    expected = reader.transform(both[1].fold_in(["c7"]).numpy(), 1, 0)
    assert_allclose(folded, expected, rtol=1e-4, atol=1e-5)
    assert reader.fold_in_with_source(met)[1] == 1


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_search_at_a_past_version_is_search_among_what_it_reads(
    lineage: Lineage, metric: str
) -> None:
    reader = filled(lineage)
    query = np.random.default_rng(0).standard_normal(6).astype(np.float32)
    read = read_as(2, 0).numpy().astype(np.float64)
    scores = {
        "ip": read @ query,
        "l2": -((read - query) ** 2).sum(axis=1),
        "cosine": read @ query / np.linalg.norm(read, axis=1) / np.linalg.norm(query),
    }[metric]
    hits = reader.search(query, 5, 0, metric=metric)[0]  # type: ignore[arg-type]
    best = np.argsort(-scores)[:5]
    assert hits.ids.to_pylist() == best.tolist()
    assert_allclose(hits.scores, scores[best], rtol=1e-4, atol=1e-4)
    assert hits.versions.tolist() == [2] * 5


def test_a_search_that_cannot_be_done_says_why(lineage: Lineage) -> None:
    reader = filled(lineage)
    with pytest.raises(ShapeError, match=r"version 0 have dim 6"):
        reader.search(np.ones(8), version=0)
    with pytest.raises(DataError, match="not finite"):
        reader.search(np.full(6, np.nan), version=0)
    with pytest.raises(DataError, match="k is 0"):
        reader.search(np.ones(6), 0, version=0)
    with pytest.raises(DataError, match="metric 'dot'"):
        reader.search(np.ones(6), version=0, metric="dot")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="nice"):
        reader.search(np.ones(6), version=0, scores="nice")  # type: ignore[arg-type]
    with pytest.raises(UnknownVersionError, match="True"):
        reader.embed([5], True)
    with pytest.raises(ShapeError, match="must be numbers"):
        reader.search(np.ones(6) + 1j, version=0)
    with pytest.raises(ShapeError, match="all of one length"):
        reader.search([[1.0], [1.0, 2.0]], version=0)


def unit_lineage(folder: Path, *, unit: bool = True) -> Lineage:
    """Two versions, each of its own length, the second read back by another map than it had."""
    lineage = Lineage.create(folder, "line")
    draw = torch.Generator().manual_seed(0)
    old, turn = torch.randn(60, 5, generator=draw), torch.randn(5, 7, generator=draw)
    old = old / old.norm(dim=1, keepdim=True) if unit else old
    for version, vectors in enumerate((old, torch.randn(60, 7, generator=draw))):
        keys = pa.array(range(60))
        artefact = Artefact(
            vectors.shape[1],
            {"object": (keys, vectors)},
            LinearTransform.from_matrix(turn) if version else None,
            {"metrics": {"model": {}}},
            {"name": "line"},
            canaries={"object": (keys.slice(0, 9), vectors[:9])},
        )
        publish_next(lineage, artefact)
    return lineage


@pytest.mark.parametrize("unit", [True, False])
def test_a_search_without_a_metric_ranks_as_vectors_of_length_1_did(
    tmp_path: Path, unit: bool
) -> None:
    """Read back they have other lengths, by which the inner product would rank, too."""
    lineage = unit_lineage(tmp_path / "line", unit=unit)
    query = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    with closing(Reader.open(lineage)) as reader:
        assert reader.default_metric(0) == ("cosine" if unit else "ip")
        assert reader.default_metric() == "ip"
        plain, cosine, product = (
            [hits.ids.to_pylist() for hits in reader.search(query, 5, 0, metric=metric)]
            for metric in (None, "cosine", "ip")
        )
        assert plain == (cosine if unit else product)
        assert cosine != product
        newest = np.ones(7)
        one, other = (reader.search(newest, 5, metric=m)[0].scores for m in (None, "ip"))
        assert one.tolist() == other.tolist()


def test_the_canaries_are_read_once_and_not_at_all_for_production(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = unit_lineage(tmp_path / "line")
    versions: list[int] = []
    read = Lineage.canaries

    def counted(self: Lineage, version: int) -> Any:
        versions.append(version)
        return read(self, version)

    monkeypatch.setattr(Lineage, "canaries", counted)
    with closing(Reader.open(lineage)) as reader:
        for _ in range(3):
            reader.search(np.ones(5), 2, 0)
            reader.search(np.ones(7), 2)
    assert versions == [0]


def test_norms_are_the_squared_lengths_at_each_version_up_to_its_own(lineage: Lineage) -> None:
    norms = VersionMaps(lineage).norms(vectors_of(2).numpy(), 2)
    lengths = [read_as(2, target).double().square().sum(1) for target in range(3)]
    truth = torch.stack(lengths, dim=1).numpy() * NORM_SCALE
    np.testing.assert_allclose(norms, truth, rtol=1e-5)


def test_without_a_forward_map_a_later_version_is_refused(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: None)
    with pytest.raises(LineageError, match="of version 0 cannot be read as the later version 2: "):
        VersionMaps(lineage).rows(vectors_of(0).numpy(), 0, 2)


IDS = pa.array(range(200))

OLD = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))

# A quarter turn of two planes and a shift: its inverse is far from it.
TURN = torch.tensor([[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, -1], [0, 0, 1, 0]]).float()

NEW = OLD @ TURN.T * 2 + 1


def turned_artefact(vectors: torch.Tensor, back: AffineTransform | None) -> Artefact:
    return Artefact(4, {"object": (IDS, vectors)}, back, {"metrics": {"model": {}}}, {})


@pytest.fixture
def old_rows(tmp_path: Path) -> tuple[Lineage, str]:
    """A lineage of two versions, and a store that has the first one's rows."""
    lineage, store = Lineage.create(tmp_path / "line"), f"snapshot:{tmp_path / 'store'}"
    publish_next(lineage, turned_artefact(OLD, None))
    with open_store(store, create="int64") as opened:
        fill(lineage, opened, "object")
    back = AffineTransform.from_matrix(TURN.T / 2, -TURN.T.sum(1) / 2)
    publish_next(lineage, turned_artefact(NEW, back))
    np.testing.assert_allclose(lineage.view(0).embeddings("object")[1], OLD, atol=1e-5)
    return Lineage.open(tmp_path / "line"), store


def test_rows_of_an_older_version_are_read_forward(old_rows: tuple[Lineage, str]) -> None:
    lineage, store = old_rows
    with closing(Reader.open(lineage, {"object": store})) as reader:
        read = reader.embed([3, 5], version=1)
        assert read.sources.tolist() == [0, 0]
        np.testing.assert_allclose(read.vectors, NEW[[3, 5]], atol=1e-3)
        (hits,) = reader.search(NEW[3].numpy(), k=1, version=1, metric="l2")
        assert hits.ids.to_pylist() == [3]
        assert hits.scores[0] == pytest.approx(0, abs=1e-3)
        moved = reader.transform(OLD[:5].numpy(), 0, 1)
        np.testing.assert_allclose(moved, NEW[:5], atol=1e-3)
        np.testing.assert_allclose(reader.transform(moved, 1, 0), OLD[:5], atol=1e-3)


def test_a_file_of_an_older_version_is_rewritten_forward(
    old_rows: tuple[Lineage, str], evergram: Command, tmp_path: Path
) -> None:
    lineage, old, out = old_rows[0], tmp_path / "old.parquet", tmp_path / "new.parquet"
    lineage.view(0).export(old, "object")
    ran = evergram("vectors", "transform", old, "--lineage", lineage, "--from", "v0", "--as", "v1",
                   "--out", out)  # fmt: skip
    assert ran.code == 0, ran.err
    (_, vectors), *_ = open_embeddings(out).blocks()
    np.testing.assert_allclose(vectors, NEW, atol=1e-3)


@pytest.mark.parametrize("kind", ["snapshot"])
def test_a_filter_of_a_store_without_metadata_is_refused(kind: str, tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", rows=30)
    with STORES[kind](tmp_path, "int64") as store:
        fill(lineage, store, "object")
        reader = Reader(lineage, {"object": store})
        query = np.ones(DIMS[2], np.float32)
        with pytest.raises(DataError, match=r"ids and vectors alone.*'ids'"):
            reader.search(query, 3, filter={"category": "news"})
        assert len(reader.search(query, 3)[0]) == 3
