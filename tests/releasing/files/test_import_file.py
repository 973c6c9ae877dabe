"""Vectors of another model become version 0 of a lineage."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.embedding_files import file_of, id_names, randn

from evergram.data.corpus import Side, Vocabulary
from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align_settings import AlignSettings
from evergram.releasing.files.import_file import import_embeddings
from evergram.releasing.files.past_file import SIDE
from evergram.training.checkpoint import held_out


def test_its_vectors_are_stored_and_its_canaries_are_held_out_from_align(tmp_path: Path) -> None:
    vectors = randn(0, 300, 4)
    lineage = Lineage.create(tmp_path / "l")
    report = import_embeddings(file_of(tmp_path / "v.parquet", vectors), lineage)
    assert (report["version"], report["rows"], report["dim"]) == (0, 300, 4)
    assert report["fingerprint"] == lineage.manifest(0).fingerprint
    ids, stored = lineage.embeddings(SIDE)
    rows = Vocabulary(id_names(300)).rows(ids)
    assert torch.equal(stored, vectors[rows])
    ids, kept = lineage.canaries(0)[SIDE]
    rows = Vocabulary(id_names(300)).rows(ids)
    assert torch.equal(kept, vectors[rows])
    aside = held_out(Side(Vocabulary(id_names(300))), AlignSettings().held_out)
    assert sorted(rows.tolist()) == torch.nonzero(aside).flatten().tolist()


def test_a_lineage_that_has_versions_is_refused(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "l")
    file = file_of(tmp_path / "v.npy", randn(0, 50, 4))
    import_embeddings(file, lineage)
    with pytest.raises(
        LineageError, match="has versions already; 'evergram vectors align' adds the next"
    ):
        import_embeddings(file, lineage)


def test_an_id_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    ids = pa.array(["a", "b", "a"])
    file = file_of(tmp_path / "v.parquet", randn(0, 3, 4), ids)
    lineage = Lineage.create(tmp_path / "l")
    with pytest.raises(DataError, match="'a'"):
        import_embeddings(file, lineage)
    assert not lineage.versions
