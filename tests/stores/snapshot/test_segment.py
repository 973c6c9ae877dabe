"""Rows of a segment are found by their ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.agreement import as_dict, same_rows
from tests.support.dictionary_store import DictionaryStore
from tests.support.snapshot_rows import SPACE, vectors

from evergram.errors import IntegrityError
from evergram.stores.rows import row_checks
from evergram.stores.snapshot import segment as segment_module
from evergram.stores.snapshot.segment import Segment, Wanted, keys_of, mapped
from evergram.stores.snapshot.segment_writer import SegmentWriter
from evergram.stores.snapshot.snapshot_store import SnapshotStore
from evergram.stores.store import Rows


def test_text_ids_with_one_hash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "text_key", lambda text: len(text) % 2)
    oracle = DictionaryStore("string")
    names = [f"{'x' * (i % 3)}{i}" for i in range(40)]
    with SnapshotStore.open(str(tmp_path / "store"), "string") as store:
        for each in (store, oracle):
            blocks = [Rows(0, pa.array(part), vectors(len(part))) for part in (names, names[5:9])]
            each.load(SPACE, blocks)
            each.upsert(Rows(0, pa.array(names[20:30]), vectors(10, 3)))
            each.delete(names[:3])
        same_rows(store, oracle)
        assert as_dict(store.fetch([names[30], "absent"])) == as_dict(oracle.fetch([names[30]]))


def segment_of(folder: Path, ids: list[int] | list[str], batch_rows: int) -> Segment:
    """A segment whose vectors are the places of its rows as they were written."""
    vectors = np.arange(2.0 * len(ids), dtype=np.float32).reshape(-1, 2)
    block = Rows(0, pa.array(ids), vectors)
    writer = SegmentWriter(folder, 0, 0, batch_rows)
    writer.add(block, row_checks(block))
    return Segment(folder, writer.finish())


@pytest.mark.parametrize("batch_rows", [100, 7])
@pytest.mark.parametrize("names", ["dense", "sparse", "texts"])
def test_each_asked_id_is_found_with_its_own_row(
    tmp_path: Path, batch_rows: int, names: str
) -> None:
    order = np.random.default_rng(0).permutation(40)
    numbers = (order if names == "dense" else order * 10**15 - 7).tolist()
    ids = [f"id{n}" for n in numbers] if names == "texts" else numbers
    segment = segment_of(tmp_path, ids, batch_rows)
    asked = [ids[13], "absent" if names == "texts" else -(10**18), ids[2], ids[39], ids[0]]
    which, found_rows = segment.find(Wanted.of(pa.array(asked)))
    assert which.tolist() == [0, 2, 3, 4]
    assert segment.ids(found_rows).to_pylist() == [ids[13], ids[2], ids[39], ids[0]]
    places = np.array([13, 2, 39, 0])
    expected = np.stack([2.0 * places, 2.0 * places + 1], axis=1)
    assert segment.vectors(found_rows).tolist() == expected.tolist()
    read = Rows(0, segment.ids(found_rows), segment.vectors(found_rows))
    assert np.array_equal(segment.checks(found_rows), row_checks(read))


@pytest.mark.parametrize("batch_rows", [100, 3])
def test_of_an_id_that_comes_again_the_last_row_is_living(tmp_path: Path, batch_rows: int) -> None:
    segment = segment_of(tmp_path, [5, 6, 5, 7, 6, 5], batch_rows)
    dead = segment.superseded()
    living = np.arange(len(segment)) if dead is None else np.flatnonzero(~dead)
    rows_by_id = dict(
        zip(segment.ids(living).to_pylist(), segment.vectors(living).tolist(), strict=True)
    )
    assert rows_by_id == {5: [10, 11], 7: [6, 7], 6: [8, 9]}


def test_no_id_is_found_in_no_ids(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, ["a", "b"], 100)
    which, found_rows = segment.find(Wanted.of(pa.array([], pa.string())))
    assert (len(which), len(found_rows)) == (0, 0)
    assert segment.ids(found_rows).to_pylist() == []


def test_a_file_that_was_changed_is_refused_unless_it_was_just_written(tmp_path: Path) -> None:
    record = segment_of(tmp_path, [1, 2], 100).record
    path = tmp_path / record.data.name
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(IntegrityError, match=r"0\.arrow is not what was written \(its SHA-256"):
        Segment(tmp_path, record)
    assert len(mapped(tmp_path, record.data, trusted=True)) == path.stat().st_size


def test_keys_stay_as_they_are_in_files() -> None:
    """They are stored, so a later Evergram must compute the same."""
    assert keys_of(pa.array(["", "id-7"])).tolist() == [13020603013274838756, 5555235785907067145]
    assert keys_of(pa.array([3, -3])).tolist() == [3, -3]
