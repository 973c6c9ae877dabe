"""A file of one version's vectors is written as another version's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.embedding_files import file_of, file_without_ids, randn
from tests.support.lineages import DIMS, lineage_of, read_as, vectors_of
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DataError, LineageError, ShapeError, UnknownVersionError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.import_file import import_embeddings
from evergram.releasing.files.transform_file import transform_file
from evergram.releasing.files.transform_shards import transform_shards
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.shards import Shards

ROWS = 300
IDS = pa.array(range(ROWS))


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line")


@pytest.mark.parametrize("suffix", [".parquet", ".npy", ".safetensors"])
def test_vectors_are_read_through_the_chain_and_ids_stay(
    lineage: Lineage, tmp_path: Path, suffix: str
) -> None:
    file = file_of(tmp_path / f"new{suffix}", vectors_of(2), IDS)
    out = tmp_path / f"back{suffix}"
    assert transform_file(file, lineage, 0, out) == ROWS
    back = open_embeddings(out)
    parts = list(back.blocks())
    ids = [str(i) for chunk, _ in parts for i in chunk.to_pylist()]
    assert ids == [str(i) for i in range(ROWS)]
    torch.testing.assert_close(torch.cat([v for _, v in parts]).float(), read_as(2, 0))
    # The file says what it is: a wrong --from is noticed later.
    assert back.fingerprint == lineage.manifest(0).fingerprint


def test_an_older_version_may_be_the_source(lineage: Lineage, tmp_path: Path) -> None:
    file = file_of(tmp_path / "one.parquet", vectors_of(1), IDS)
    transform_file(file, lineage, 0, tmp_path / "zero.parquet", source=1)
    (_, vectors), *_ = open_embeddings(tmp_path / "zero.parquet").blocks()
    torch.testing.assert_close(vectors.float(), read_as(1, 0))


def test_another_dim_or_version_is_refused_and_nothing_is_written(
    lineage: Lineage, tmp_path: Path
) -> None:
    out = tmp_path / "out.parquet"
    narrow = file_of(tmp_path / "narrow.parquet", randn(0, ROWS, 5), IDS)
    with pytest.raises(ShapeError, match=rf"has dim 5; version 2 of .* has dim {DIMS[2]}\. Name"):
        transform_file(narrow, lineage, 0, out)
    file = file_of(tmp_path / "new.parquet", vectors_of(2), IDS)
    with pytest.raises(UnknownVersionError):
        transform_file(file, lineage, 9, out)
    assert not out.exists()


def test_a_vector_that_would_overflow_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    back = LinearTransform.from_matrix(10 * torch.eye(DIMS[0]))
    artefact = {"object": (IDS, vectors_of(0))}
    facts: dict[str, Any] = {"metrics": {"model": {}}}
    publish_next(lineage, Artefact(DIMS[0], artefact, back, facts, {}))
    vectors = torch.ones(ROWS, DIMS[0])
    vectors[4, 1] = -3e38
    file, out = file_of(tmp_path / "new.parquet", vectors, IDS), tmp_path / "out.parquet"
    message = r"row 5 \(id 4\): its vector \(column 'vector'\) has numbers as large as -3e\+38"
    with pytest.raises(DataError, match=message):
        transform_file(file, lineage, 0, out)
    with pytest.raises(DataError, match=message):
        transform_shards(file, lineage, (None, 0), Shards(tmp_path / "out", 100))
    assert not out.exists()


def test_a_file_that_is_there_is_not_written_over_unasked(lineage: Lineage, tmp_path: Path) -> None:
    file, out = file_of(tmp_path / "new.parquet", vectors_of(2), IDS), tmp_path / "out.parquet"
    out.write_text("mine")
    with pytest.raises(DataError, match="is there already and is not written over"):
        transform_file(file, lineage, 0, out)
    assert out.read_text() == "mine"
    assert transform_file(file, lineage, 0, out, overwrite=True) == ROWS


def test_rows_without_ids_are_written_without_them_or_not_at_all(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "named")
    import_embeddings(file_of(tmp_path / "first.parquet", randn(0, 60, 4)), lineage)
    bare = file_without_ids(tmp_path / "bare.npy", randn(0, 60, 4))
    with pytest.raises(DataError, match=r"or write an \.npy, which has none either"):
        transform_file(bare, lineage, 0, tmp_path / "out.parquet")
    assert transform_file(bare, lineage, 0, tmp_path / "out.npy") == 60
    assert not open_embeddings(tmp_path / "out.npy").has_ids


def test_an_earlier_version_is_read_as_a_later_one_by_the_forward_maps(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = file_of(tmp_path / "old.parquet", vectors_of(0), IDS), tmp_path / "out.parquet"
    assert transform_file(file, lineage, 2, out, source=0) == ROWS
    forward = lineage.forward(0, 2)
    assert forward is not None
    weight, offset = (part.float() for part in forward)
    written = open_embeddings(out)
    (_, vectors), *_ = written.blocks()
    torch.testing.assert_close(vectors.float(), vectors_of(0) @ weight.T + offset)
    assert written.fingerprint == lineage.manifest(2).fingerprint
    shards = Shards(tmp_path / "out", 1)
    transform_shards(file, lineage, (0, 2), shards)
    (_, again), *_ = open_embeddings(shards.path(0)).blocks()
    assert torch.equal(again, vectors)
    monkeypatch.setattr(Lineage, "forward", lambda *_: None)
    with pytest.raises(LineageError, match="no forward map was published between them"):
        transform_file(file, lineage, 2, tmp_path / "none.parquet", source=0)
