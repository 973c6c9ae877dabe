"""The file that a new one is aligned to must be the newest version's, in ids and in vectors."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.embedding_files import file_of, file_without_ids, randn
from tests.support.encoders import lineage_with_encoder

from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.import_file import import_embeddings
from evergram.releasing.files.past_file import SAME, checked_past, refuse_unnamed_rows

VECTORS = randn(0, 60, 4)


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """A lineage whose version 0 has `VECTORS`, under the ids id0, id1, …"""
    new = Lineage.create(tmp_path / "line")
    import_embeddings(file_of(tmp_path / "first.parquet", VECTORS), new)
    return new


def test_of_a_lineage_without_versions_any_file_will_do(tmp_path: Path) -> None:
    old = file_of(tmp_path / "old.npy", VECTORS)
    empty = Lineage.create(tmp_path / "l")
    assert checked_past(old, file_of(tmp_path / "new.npy", VECTORS), empty) is old
    with pytest.raises(LineageError, match="has no version 0: it has none yet; give the file"):
        checked_past(0, old, empty)


def test_the_newest_version_may_be_named_by_its_number(lineage: Lineage, tmp_path: Path) -> None:
    new = file_of(tmp_path / "new.npy", randn(1, 60, 3))
    past = checked_past(0, new, lineage)
    assert (past.rows, past.dim, past.has_ids) == (60, 4, True)
    with pytest.raises(LineageError, match=r"Version 1 is not the newest of .*; give 0, or the"):
        checked_past(1, new, lineage)


def test_another_files_vectors_or_dim_are_refused(lineage: Lineage, tmp_path: Path) -> None:
    new = file_of(tmp_path / "new.npy", randn(1, 60, 3))
    rounded = VECTORS * (1 + SAME / 2)
    assert checked_past(file_of(tmp_path / "same.npy", rounded), new, lineage).rows == 60
    moved = VECTORS.clone()
    moved[7] *= 1 + 10 * SAME
    with pytest.raises(LineageError, match="the vector of id 'id7' is another; give 0"):
        checked_past(file_of(tmp_path / "moved.npy", moved), new, lineage)
    with pytest.raises(LineageError, match="its dim is 3, not 4; give 0 in its place"):
        checked_past(file_of(tmp_path / "narrow.npy", VECTORS[:, :3]), new, lineage)


def test_a_file_of_other_objects_is_not_taken_for_the_version(
    lineage: Lineage, tmp_path: Path
) -> None:
    """One object of the version's proves nothing of a thousand that it never had."""
    new = file_of(tmp_path / "new.npy", randn(1, 200, 3))
    for others, fits in ((59, True), (60, True), (61, False)):
        ids = pa.array([*(f"id{i}" for i in range(60)), *(f"new{i}" for i in range(others))])
        vectors = torch.cat([VECTORS, randn(2, others, 4)])
        old = file_of(tmp_path / f"{others}.parquet", vectors, ids)
        if fits:
            assert checked_past(old, new, lineage).rows == 60 + others
            continue
        with pytest.raises(LineageError, match=r"has 60 of its 121 objects, .* cannot be compared"):
            checked_past(old, new, lineage)


def test_rows_without_ids_are_not_paired_with_names(lineage: Lineage, tmp_path: Path) -> None:
    bare = file_without_ids(tmp_path / "bare.npy", randn(1, 60, 3))
    with pytest.raises(DataError, match=r"bare\.npy has no ids.* by --new-ids FILE, one a line"):
        checked_past(0, bare, lineage)
    # Ids that are the numbers of the rows make no difference.
    numbered = file_of(tmp_path / "numbered.npy", VECTORS, pa.array(range(60)))
    empty = Lineage.create(tmp_path / "l")
    assert checked_past(numbered, bare, empty) is numbered
    with pytest.raises(DataError, match=r"bare\.npy has no ids, and .* ids of its own, such as"):
        refuse_unnamed_rows(bare, lineage, 0)


def test_a_lineage_of_trained_models_is_refused(tmp_path: Path) -> None:
    trained = lineage_with_encoder(tmp_path / "films")
    with pytest.raises(LineageError, match=r"has the sides .*, of a model that was trained"):
        checked_past(0, file_of(tmp_path / "new.npy", VECTORS), trained)
