"""The embeddings that a lineage stores: of its newest version, and of every one with a label."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
from torch import Tensor

from evergram.did_you_mean import did_you_mean
from evergram.errors import IntegrityError, LineageError
from evergram.lineage.catalog.catalog import Catalog
from evergram.vector_files.open_embeddings import EmbeddingFile, open_embeddings
from evergram.vector_files.writers import read_embeddings


def side_of(sides: Collection[str], where: str, side: str | None = None) -> str:
    """Return a side of those that there are: by default "candidate", or else the first.

    Args:
        where: what has the sides, for the error.
    Raises: LineageError: there is no such side.
    """
    if side is None:
        return "candidate" if "candidate" in sides else next(iter(sides))
    if side not in sides:
        raise LineageError(
            f"There is no side {side!r} in {where}; it has {' and '.join(sides)}"
            f"{did_you_mean(side, sides)}."
        )
    return side


def stored_file(catalog: Catalog, side: str, version: int | None = None) -> Path:
    """Return the file of a version's vectors of a side, compared with its hash.

    Args:
        version: production by default.
    Raises: LineageError: there is no such side, or the version's vectors are not stored.
        IntegrityError: the file is not what was published.
    """
    manifest = catalog.manifest(catalog.resolve(version))
    side_of(manifest.embeddings, str(catalog.address), side)
    folder = catalog.embeddings_folder(manifest.version)
    name = f"{side}.parquet"
    if not folder.is_dir():
        catalog.refuse_changed()
        if manifest.version != catalog.newest:
            has = ", ".join(map(str, catalog.versions_with_embeddings))
            raise LineageError(
                f"The embeddings of version {manifest.version} of {catalog.address} are not "
                f"stored, those of {has} are; read them as that version, through the chain."
            )
    catalog.check_files(folder, {name: manifest.embeddings[side]})
    return folder / name


def stored_vectors(
    catalog: Catalog, side: str, version: int | None = None
) -> tuple[pa.Array, Tensor]:
    """Return the ids [N] and vectors [N, D_k] of a side of a version, by default production.

    Raises: as `stored_file`.
    """
    number = catalog.resolve(version)
    path, dim = stored_file(catalog, side, number), catalog.manifest(number).dim
    ids, vectors = read_embeddings(path)
    if vectors.shape[1] != dim:
        raise IntegrityError(f"{path} has dim {vectors.shape[1]}, its manifest {dim}.")
    if len(ids) != len(vectors) or ids.null_count:
        raise IntegrityError(f"{path} has a row without an id or without a vector.")
    return ids, vectors


def stored_embedding_file(catalog: Catalog, side: str, version: int | None = None) -> EmbeddingFile:
    """Return the file of a version's vectors of a side, to be read block by block.

    Raises: as `stored_file`.
    """
    number = catalog.resolve(version)
    path, dim = stored_file(catalog, side, number), catalog.manifest(number).dim
    file = open_embeddings(path)
    if file.dim != dim:
        raise IntegrityError(f"{path} has dim {file.dim}, its manifest {dim}.")
    return file
