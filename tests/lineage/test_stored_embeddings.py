"""The embeddings that a lineage stores, and errors where it stores none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.lineages import vectors_of

from evergram.errors import IntegrityError, LineageError
from evergram.lineage.catalog.catalog import Catalog
from evergram.lineage.disk.manifest import sha256
from evergram.lineage.lineage import Lineage
from evergram.lineage.stored_embeddings import stored_file, stored_vectors
from evergram.vector_files.parquet import write_embeddings


def test_the_newest_version_is_read_by_default(lineage: Lineage) -> None:
    ids, vectors = stored_vectors(Catalog.open(lineage.path), "object")
    assert ids.equals(pa.array(range(300)))
    assert torch.equal(vectors, vectors_of(1))


def test_a_side_or_a_version_that_is_not_stored_is_named(lineage: Lineage) -> None:
    catalog = Catalog.open(lineage.path)
    with pytest.raises(LineageError, match=r"There is no side 'user' in .*; it has object"):
        stored_file(catalog, "user")
    message = r"embeddings of version 0 of .* are not stored, those of 1 are; read them as that"
    with pytest.raises(LineageError, match=message):
        stored_file(catalog, "object", 0)
    shutil.rmtree(catalog.embeddings_folder(1))
    with pytest.raises(IntegrityError, match=r"object\.parquet is missing"):
        stored_file(catalog, "object")


def write_as_published(catalog: Catalog, path: Path, ids: pa.Array, vectors: torch.Tensor) -> None:
    """Another file with its own hash in the manifest, as somebody who forges one would."""
    write_embeddings(path, [(ids, vectors)])
    manifest = catalog.manifest(1)
    catalog.manifests[1] = manifest.model_copy(update={"embeddings": {"object": sha256(path)}})


def test_a_file_of_another_dim_is_refused(lineage: Lineage) -> None:
    catalog = Catalog.open(lineage.path)
    path = stored_file(catalog, "object")
    write_as_published(catalog, path, pa.array([1]), torch.ones(1, 3))
    with pytest.raises(IntegrityError, match=r"object\.parquet has dim 3, its manifest 8"):
        stored_vectors(catalog, "object")


def test_a_row_without_an_id_is_refused(lineage: Lineage) -> None:
    catalog = Catalog.open(lineage.path)
    path = stored_file(catalog, "object")
    write_as_published(catalog, path, pa.array([1, None]), torch.ones(2, 8))
    with pytest.raises(IntegrityError, match="a row without an id or without a vector"):
        stored_vectors(catalog, "object")
