"""The cascade: the new model decides among old hits, and encodes each object once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.searched_arrays import searched

from evergram.errors import DataError, ShapeError
from evergram.retrieval.migrating.cascade import KeptVectors, cascade
from evergram.stores.rows import Floats
from evergram.vector_files.writers import write_vectors

ROWS, OLD, NEW, QUERIES = 60, 5, 8, 7
IDS = [f"d{i}" for i in range(ROWS)]


class Encoder:
    """Gives rows of an array, and counts how often each was asked for."""

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors
        self.asked: list[str] = []
        self.calls = 0

    def __call__(self, ids: pa.Array) -> Floats:
        self.calls += 1
        self.asked += ids.to_pylist()
        rows: Floats = self.vectors[[IDS.index(i) for i in ids.to_pylist()]]
        return rows


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_at_full_depth_it_is_the_new_index() -> None:
    old, new, queries = drawn(0, ROWS, OLD), drawn(1, ROWS, NEW), drawn(2, QUERIES, NEW)
    first = searched(IDS, old, 0)(drawn(3, QUERIES, OLD), ROWS)
    hits = cascade(first, queries, KeptVectors(Encoder(new), NEW), 10)
    for one, other in zip(hits, searched(IDS, new, 1)(queries, 10), strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)


def test_only_first_hits_are_returned_and_only_they_are_encoded_once_each() -> None:
    old, new, queries = drawn(0, ROWS, OLD), drawn(1, ROWS, NEW), drawn(2, QUERIES, NEW)
    encoder = Encoder(new)
    kept = KeptVectors(encoder, NEW)
    first = searched(IDS, old, 0)(drawn(3, QUERIES, OLD), 6)
    hits = cascade(first, queries, kept, 6)
    touched = {i for part in first for i in part.ids.to_pylist()}
    assert sorted(encoder.asked) == sorted(touched)
    assert encoder.calls == 1
    for one, before in zip(hits, first, strict=True):
        assert set(one.ids.to_pylist()) == set(before.ids.to_pylist())
        assert (np.diff(one.scores) <= 0).all()
    cascade(first, queries, kept, 3)
    assert encoder.calls == 1
    assert len(kept) == len(touched)


def test_kept_vectors_outlive_the_process(tmp_path: Path) -> None:
    new = drawn(1, ROWS, NEW)
    kept = KeptVectors(Encoder(new), NEW)
    kept.of(pa.array(IDS[5:9]))
    kept.save(tmp_path / "kept.parquet")
    encoder = Encoder(new)
    again = KeptVectors(encoder, NEW)
    again.of(pa.array(IDS[5:6]))
    again.load(tmp_path / "kept.parquet")
    np.testing.assert_array_equal(again.of(pa.array(IDS[5:10])), new[5:10])
    assert encoder.asked == [IDS[5], IDS[9]]


def test_an_id_that_a_file_has_twice_takes_no_other_ids_place(tmp_path: Path) -> None:
    new = drawn(1, ROWS, NEW)
    ids, rows = [IDS[0], IDS[1], IDS[0]], new[[0, 1, 2]]
    write_vectors(tmp_path / "other.parquet", [(pa.array(ids), torch.from_numpy(rows))])
    kept = KeptVectors(Encoder(new), NEW)
    kept.load(tmp_path / "other.parquet")
    assert len(kept) == 2
    np.testing.assert_array_equal(kept.of(pa.array([IDS[3], *ids[:2]])), new[[3, 0, 1]])


def test_a_query_without_hits_stays_without() -> None:
    empty = searched([], drawn(0, 0, OLD), 0)(drawn(3, 1, OLD), 5)
    assert (
        len(cascade(empty, drawn(2, 1, NEW), KeptVectors(Encoder(drawn(1, ROWS, NEW)), NEW), 5)[0])
        == 0
    )
    mixed = [*empty, *searched(IDS, drawn(0, ROWS, OLD), 0)(drawn(3, 1, OLD), 5)]
    hits = cascade(mixed, drawn(2, 2, NEW), KeptVectors(Encoder(drawn(1, ROWS, NEW)), NEW), 5)
    assert [len(part) for part in hits] == [0, 5]


def test_a_wrong_answer_of_the_model_is_refused_and_not_kept(tmp_path: Path) -> None:
    for answer, error, message in (
        (np.zeros((1, NEW)), ShapeError, "of 2 objects are"),
        (np.full((2, NEW), np.nan), DataError, "'d0' has a NaN"),
    ):
        kept = KeptVectors(lambda _, answer=answer: answer, NEW)  # type: ignore[misc]
        with pytest.raises(error, match=message):
            kept.of(pa.array(IDS[:2]))
        assert len(kept) == 0
    with pytest.raises(DataError, match="nothing to write"):
        kept.save(tmp_path / "kept.parquet")


def test_wrong_queries_are_refused() -> None:
    first = searched(IDS, drawn(0, ROWS, OLD), 0)(drawn(3, 2, OLD), 5)
    kept = KeptVectors(Encoder(drawn(1, ROWS, NEW)), NEW)
    for queries in (drawn(2, 1, NEW), drawn(2, 2, OLD)):
        with pytest.raises(ShapeError, match="one for each list"):
            cascade(first, queries, kept, 5)
    with pytest.raises(DataError, match="k is 0"):
        cascade(first, drawn(2, 2, NEW), kept, 0)


def test_a_metric_that_there_is_not_is_refused() -> None:
    kept = KeptVectors(lambda ids: drawn(0, len(ids), 3), 3)
    with pytest.raises(DataError, match="no metric 'L2'; there is ip, l2 and cosine"):
        cascade([], drawn(1, 0, 3), kept, 2, "L2")  # type: ignore[arg-type]
