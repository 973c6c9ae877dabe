"""The map from a stored version to a past one: one matrix and one offset."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from evergram.errors import DataError, ShapeError
from evergram.lineage.view import View

# PostgreSQL and DuckDB cut or refuse longer names.
LONGEST_NAME = 50
# Hexadecimal digits that tell apart lineages whose names look alike in SQL.
HASH_DIGITS = 6


@dataclass(frozen=True)
class AffineMap:
    """z̃ = W z + b.

    Args:
        name: of functions and tables that hold it: a letter, then letters, digits and `_`.
        about: what the file is, in sentences.
        weight: W, float32 [D_j, D_k].
        offset: b, float32 [D_j].
    """

    name: str
    about: str
    weight: npt.NDArray[np.float32]
    offset: npt.NDArray[np.float32]

    @property
    def source_dim(self) -> int:
        """D_k."""
        return int(self.weight.shape[1])

    @property
    def dim(self) -> int:
        """D_j."""
        return int(self.weight.shape[0])


def affine_map(view: View, lineage: str, name: str | None = None) -> AffineMap:
    """Return how a view reads vectors.

    Args:
        lineage: its name, for the file's first line and for the default name.
        name: None is evergram_LINEAGE_as_vN; where a lineage's name cannot stand in SQL as it is,
            with digits of its hash.
    Raises: DataError: the name cannot be one of SQL. ShapeError: a transform between the two
        versions is not affine, so that no matrix is the way.
    """
    name = checked_name(view, lineage, name)
    try:
        weight, offset = view.affine()
    except ShapeError as error:
        raise ShapeError(
            f"{str(error).rstrip('.')}, and this format holds a matrix; choose onnx if the "
            "transform is of kind residual_mlp, read the vectors by Evergram, or refit that "
            "version's transform as 'linear' or 'affine'."
        ) from None
    arrays = [np.ascontiguousarray(t.to(torch.float32).numpy()) for t in (weight, offset)]
    return AffineMap(name, about_view(view, lineage, weight.shape[1]), *arrays)


def checked_name(view: View, lineage: str, name: str | None) -> str:
    """Return a name of functions and graphs, by default evergram_LINEAGE_as_vN.

    Raises: DataError: it cannot be one of SQL.
    """
    if name is None:
        suffix = f"_as_v{view.version}"
        name = f"evergram_{lineage}{suffix}"
        if not _is_name(name):
            # Another lineage's name may look the same once it is changed or cut.
            suffix = f"_{hashlib.sha256(lineage.encode()).hexdigest()[:HASH_DIGITS]}{suffix}"
            plain = re.sub(r"[^a-z0-9]+", "_", lineage.lower()).strip("_")
            name = f"evergram_{plain}"[: LONGEST_NAME - len(suffix)].rstrip("_") + suffix
    if not _is_name(name):
        raise DataError(
            f"The name {name!r} cannot be that of a function in SQL or of a graph; give a letter "
            f"and then letters, digits and _, in lower case, at most {LONGEST_NAME}."
        )
    return name


def _is_name(name: str) -> bool:
    return re.fullmatch(rf"[a-z][a-z0-9_]{{0,{LONGEST_NAME - 1}}}", name) is not None


def about_view(view: View, lineage: str, source_dim: int) -> str:
    """Return the sentences that describe a view in a file."""
    return (
        f"Reads vectors of version {view.source} of {lineage} ({source_dim} dims) as version "
        f"{view.version} ({view.dim} dims). Written by Evergram; fingerprints "
        f"{view.computed_from} and {view.fingerprint}."
    )
