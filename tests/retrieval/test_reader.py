"""Rows of several versions in one store, read at any."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose
from tests.support.dictionary_store import DictionaryStore
from tests.support.folding import CANDIDATES, candidates_of, folding_lineage, names
from tests.support.lineages import lineage_of, publish, read_as, vectors_of

from evergram.errors import (
    DataError,
    IntegrityError,
    LineageError,
    UnknownVersionError,
)
from evergram.lineage.lineage import Lineage
from evergram.lineage.new_queries.fold_in import fold_in
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.store import Rows, Space


def filled(lineage: Lineage) -> Reader:
    store = DictionaryStore()
    assert fill(lineage, store, "object") == 300
    return Reader(lineage, {"object": store})


class ClosingStore(DictionaryStore):
    """A store that somebody wrote, and that counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_reader_is_opened_on_a_store_of_ones_own(lineage: Lineage) -> None:
    store = ClosingStore()
    with pytest.raises(LineageError, match="no side 'candidate'"):
        Reader.open(lineage.path, {"candidate": store})
    fill(lineage, store, "object")
    with closing(Reader.open(lineage.path, {"object": store})) as reader:
        assert reader.store("object") is store
        vectors = reader.embed([7, 299], 0).vectors
        assert_allclose(vectors, read_as(2, 0)[[7, 299]].numpy(), rtol=1e-5, atol=1e-6)
    assert store.closed == 1


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


def test_a_store_of_another_lineage_is_refused(lineage: Lineage) -> None:
    store = DictionaryStore()
    store.add_space(Space(1, 8, "sha256:other"))
    store.upsert(Rows(1, pa.array([1]), np.ones((1, 8), np.float32)))
    with pytest.raises(IntegrityError, match="another lineage"):
        Reader(lineage, {"object": store})


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


def test_a_store_of_another_lineage_is_refused_before_a_promotion_too(tmp_path: Path) -> None:
    """Its rows are of a version that this lineage does not have."""
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    store = DictionaryStore()
    fill(lineage, store, "object", 2)
    other = lineage_of(tmp_path / "other", versions=4)
    space = space_of(other, 3)
    store.add_space(space)
    row = vectors_of(3).numpy()[:1]
    store.upsert(stored_rows(other, VersionMaps(other), space, pa.array([1]), row))
    with pytest.raises(IntegrityError, match="filled from another lineage"):
        Reader.open(lineage, {"object": store})


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


def test_a_canary_that_was_withdrawn_is_read_no_more(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    publish(lineage, 2, promote=False)
    with closing(Reader.open(lineage)) as before:
        lineage.withdraw(2, "its canaries drifted")
        with closing(before.carried(Lineage.open(tmp_path / "line"))) as between:
            assert between.embed([1]).sources.tolist() == [1]
            with pytest.raises(UnknownVersionError, match="withdrawn"):
                between.embed([1], 2)


def test_a_store_that_was_never_filled_is_named(lineage: Lineage) -> None:
    with (
        closing(Reader.open(lineage.path, {"object": DictionaryStore()})) as reader,
        pytest.raises(LineageError, match=r"was never filled; .* fills it"),
    ):
        reader.search(np.ones(10, dtype=np.float32), 3, 2)


@pytest.mark.parametrize("ids", [[5.0], [True]])
def test_numbers_that_are_no_ids_are_refused(lineage: Lineage, ids: list[float]) -> None:
    with pytest.raises(DataError, match="they are integers or texts"):
        filled(lineage).embed(ids)
    with pytest.raises(UnknownVersionError, match="True is no version"):
        filled(lineage).embed([5], True)


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
