"""A store filled with a published version: again, over withdrawn rows, and of another lineage."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dictionary_store import DictionaryStore
from tests.support.encoders import lineage_with_encoder, without_recorded_pairs
from tests.support.lineages import lineage_of, publish, vectors_of
from tests.support.older_stores import store_of_a_withdrawn_version
from tests.support.publishing import publish_next

from evergram.errors import DataError, IntegrityError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import (
    canary_stores,
    fill,
    id_type,
    local_stores,
    open_stores,
    space_of,
    stored_rows,
)
from evergram.retrieval.reader import Reader
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.open_store import open_store
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Rows, Space

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


def test_filling_twice_changes_nothing(lineage: Lineage) -> None:
    store = DictionaryStore()
    assert fill(lineage, store, "object") == 300
    before = store.count()
    fill(lineage, store, "object")
    assert store.count() == before == {2: 300}
    assert store.spaces()[2].dim == 10 + 3


def test_filling_replaces_or_removes_rows_of_a_withdrawn_version(lineage: Lineage) -> None:
    lineage.label("kept", 2)
    store, _ = store_of_a_withdrawn_version(lineage)
    space = store.spaces()[3]
    store.upsert(Rows(3, pa.array([5000]), np.ones((1, space.dim), np.float32)))
    assert fill(lineage, store, "object") == 300
    assert store.count() == {2: 300}
    Reader(lineage, {"object": store})


def test_the_lineages_own_snapshots_outlive_a_withdrawal(lineage: Lineage) -> None:
    """Version 3 has objects that version 2 has not."""
    lineage.label("kept", 2)
    publish(lineage, 3, rows=350)
    Reader.open(lineage).close()
    lineage.label("stable", 2)
    Reader.open(lineage).close()
    lineage.withdraw(3, "it was bad")
    reader = Reader.open(lineage)
    embedded = reader.embed([0, 349], 2)
    assert embedded.sources.tolist() == [2, -1]
    reader.close()


def test_a_space_of_another_lineage_is_not_filled(lineage: Lineage) -> None:
    """Its process was killed before it wrote a row."""
    store = DictionaryStore()
    space = space_of(lineage, 2)
    store.add_space(Space(2, space.dim, "sha256:another"))
    with pytest.raises(IntegrityError, match="belongs to another lineage"):
        fill(lineage, store, "object")
    assert store.count() == {}
    store = DictionaryStore()
    store.add_space(space_of(lineage, 2, norms=False))
    assert fill(lineage, store, "object") == 300


def test_a_vector_that_is_too_long_for_its_norm_is_named(lineage: Lineage) -> None:
    space = space_of(lineage, 1)
    vectors = np.ones((2, 8), np.float32)
    vectors[1] = 1e30
    with pytest.raises(DataError, match=r"id 8 of version 1 is too long.*scaled down"):
        stored_rows(lineage, VersionMaps(lineage), space, pa.array([7, 8]), vectors)


def test_a_space_with_norms_has_one_more_coordinate_for_each_version(lineage: Lineage) -> None:
    space = space_of(lineage, 1)
    assert (space.dim, space.fingerprint) == (8 + 2, lineage.manifest(1).fingerprint)
    assert space_of(lineage, 1, norms=False).dim == 8


def test_progress_is_told_in_rows_of_all(lineage: Lineage) -> None:
    calls: list[tuple[int, int]] = []
    fill(lineage, DictionaryStore(), "object", progress=lambda *rows: calls.append(rows))
    assert calls == [(300, 300)]


def test_one_store_for_two_sides_is_refused(tmp_path: Path) -> None:
    lineage = lineage_with_encoder(tmp_path / "films")
    with open_store(str(tmp_path / "one"), create="int64"):
        pass
    one = dict.fromkeys(("query", "candidate"), str(tmp_path / "one"))
    message = "is given for side 'query' and for side 'candidate'; a store holds one side"
    with pytest.raises(DataError, match=message):
        open_stores(lineage, one)


def test_a_side_that_is_not_there_is_named(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(LineageError, match=r"There is no side 'user' in .*; it has object"):
        open_stores(lineage, {"user": str(tmp_path / "store")})


def test_the_type_of_ids_is_that_of_the_published_file(tmp_path: Path) -> None:
    assert id_type(lineage_of(tmp_path / "numbers", 1), "object", 0) == "int64"
    assert id_type(lineage_of(tmp_path / "texts", 1, text=True), "object", 0) == "string"


def test_local_stores_are_filled_when_production_moves_and_only_then(lineage: Lineage) -> None:
    calls: list[tuple[str, int, int, int]] = []

    def filled() -> dict[str, dict[int, int]]:
        stores = local_stores(lineage, lambda *rows: calls.append(rows))
        counts = {side: store.count() for side, store in stores.items()}
        for store in stores.values():
            store.close()
        return counts

    assert filled() == filled() == {"object": {2: 300}}
    assert calls == [("object", 2, 300, 300)]
    publish(lineage, 3)
    assert filled() == {"object": {3: 300}}
    assert calls[1:] == [("object", 3, 300, 300)]


def test_a_fill_that_was_killed_after_its_rows_is_made_again(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marker would say version 2 for rows of version 3, and a rollback would believe it."""
    lineage.label("kept", 2)
    Reader.open(lineage).close()
    publish(lineage, 3)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # The package has a function of the module's name.
        patch.setattr(sys.modules["evergram.retrieval.fill"], "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            Reader.open(lineage)
    lineage.label("stable", 2)
    with closing(Reader.open(lineage)) as reader:
        embedded = reader.embed([0, 7], 2)
    assert embedded.sources.tolist() == [2, 2]
    np.testing.assert_array_equal(embedded.vectors, vectors_of(2)[[0, 7]].numpy())


def test_a_snapshot_that_somebody_filled_with_a_later_version_is_filled_again(
    lineage: Lineage,
) -> None:
    lineage.label("kept", 2)
    Reader.open(lineage).close()
    publish(lineage, 3)
    with closing(open_store(str(lineage.path / "stores" / "object"))) as store:
        fill(lineage, store, "object")
    lineage.label("stable", 2)
    with closing(Reader.open(lineage)) as reader:
        assert reader.embed([0, 7], 2).sources.tolist() == [2, 2]


def test_rows_that_were_deleted_stay_deleted(lineage: Lineage) -> None:
    Reader.open(lineage).close()
    with closing(open_store(str(lineage.path / "stores" / "object"))) as store:
        store.delete(pa.array([3]))
    with closing(Reader.open(lineage)) as reader:
        assert reader.embed([3, 7], 2).sources.tolist() == [-1, 2]


def test_a_canary_has_stores_of_its_own_until_it_is_promoted(lineage: Lineage) -> None:
    assert canary_stores(lineage) == {}
    publish(lineage, 3, promote=False)
    (store,) = canary_stores(lineage).values()
    assert store.count() == {3: 300}
    store.close()
    folder = lineage.path / "stores" / ".canary"
    assert folder.is_dir()
    lineage.promote()
    assert canary_stores(lineage) == {}
    assert not folder.exists()


def test_a_side_that_cannot_be_filled_closes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = lineage_with_encoder(tmp_path / "films")
    closed: list[str] = []
    monkeypatch.setattr(
        SnapshotStore, "close", lambda store: closed.append(Path(store.address).name)
    )

    def full(side: str, *_: int) -> None:
        if side == sides[-1]:
            raise DataError("the file ends here")

    sides = list(lineage.manifest(lineage.production).embeddings)
    assert len(sides) == 2
    with pytest.raises(DataError, match="ends here"):
        local_stores(lineage, full)
    assert sorted(closed) == sorted(sides)


def test_versions_of_one_space_are_filled_each(tmp_path: Path) -> None:
    """One encoder that is kept has one fingerprint, though its vectors change with the data."""
    lineage = lineage_with_encoder(tmp_path / "films")
    with closing(Reader.open(lineage)) as reader:
        assert reader.store("candidate").count() == {0: 40}
    artefact = without_recorded_pairs(lineage)
    ids, vectors = lineage.embeddings("candidate")
    moved = {**artefact.embeddings, "candidate": (ids, 2 * vectors)}
    publish_next(lineage, replace(artefact, embeddings=moved))
    assert lineage.manifest(1).fingerprint == lineage.manifest(0).fingerprint
    with closing(Reader.open(lineage)) as reader:
        assert reader.store("candidate").count() == {1: 40}
        np.testing.assert_allclose(reader.embed(ids).vectors, 2 * vectors.numpy(), rtol=1e-6)


def test_a_snapshot_of_the_newest_version_has_ids_as_a_table_of_ones_own_has_them(
    tmp_path: Path,
) -> None:
    """Integers that were published may be texts in a table."""
    lineage = lineage_of(tmp_path / "l", 1, canaries=3)
    publish(lineage, 1, promote=False, canaries=3)
    store = DictionaryStore("string")
    store.add_space(space := space_of(lineage, 0))
    own, ids = vectors_of(0).numpy(), pa.array(map(str, range(300)))
    store.upsert(stored_rows(lineage, VersionMaps(lineage), space, ids, own))
    with closing(Reader.open(lineage.path, {"object": store})) as reader:
        newest = vectors_of(1).numpy()
        np.testing.assert_allclose(reader.embed(["7"], 1).vectors[0], newest[7], rtol=1e-6)
        nearest = ((newest - newest[7]) ** 2).sum(axis=1).argsort()[:2]
        hits = reader.search(newest[7], 2, 1, metric="l2")[0]
        assert hits.ids.to_pylist() == [str(i) for i in nearest]
    with closing(Reader.open(lineage.path)) as reader:  # its own snapshots have integers
        np.testing.assert_allclose(reader.embed([7], 1).vectors[0], newest[7], rtol=1e-6)
