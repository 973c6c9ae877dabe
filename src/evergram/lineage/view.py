"""Stored embeddings read as a past version, and vectors of new queries computed from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn import functional

from evergram.compatibility.chain import Chain
from evergram.errors import DataError, LineageError, ShapeError
from evergram.gramian.query_form import Interactions, QueryForm
from evergram.ids import Lists, as_lists
from evergram.texts.record import checked_dims, cut
from evergram.vector_files.open_embeddings import (
    check_writable,
    first_not_finite,
    open_embeddings,
    provenance_of,
    write_vectors,
)

if TYPE_CHECKING:
    from evergram.lineage.lineage import Lineage

Floats = npt.NDArray[np.floating[Any]]  # floats of any width
Missing = Literal["error", "skip"]
# Maps n ids to a mask [n] of stored ones, and their vectors [n, D].
Lookup = Callable[[list[Any]], tuple[Tensor, Tensor]]
NAMED = 5  # maximum number of ids that an error lists


@dataclass(frozen=True, repr=False)
class View:
    """The stored embeddings of one version, read as another: z̃_j = W_k^j z_k.

    >>> from evergram import Lineage
    >>> lineage = Lineage.open("lineages/films")
    >>> view = lineage.view(version=0)  # version 2's embeddings, read as version 0
    >>> view.source, view.version, view.dim
    (2, 0, 4)
    >>> ids, vectors = view.embeddings("candidate")
    >>> view.export("candidates-as-v0.parquet", side="candidate") == len(ids)
    True

    Args:
        version: j, the version to read them as.
        source: k, the version whose embeddings are stored.
        dim: D_j.
        fingerprint: of version j.
        computed_from: the fingerprint of version k.
    """

    version: int
    source: int
    dim: int
    fingerprint: str
    computed_from: str
    _lineage: Lineage
    _chain: Chain

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._lineage, self.version, self.source, self.fingerprint)

    def __repr__(self) -> str:
        return f"View(version {self.source} read as {self.version}, dim {self.dim})"

    @property
    def address(self) -> str:
        """The lineage's address, with an absolute path for a folder."""
        return self._lineage.absolute_address

    @overload
    def transform(self, embeddings: Tensor) -> Tensor: ...

    @overload
    def transform(self, embeddings: Floats) -> Floats: ...

    def transform(self, embeddings: Tensor | Floats) -> Tensor | Floats:
        """Transform embeddings of version k, [..., D_k], to version j, [..., D_j].

        Args:
            embeddings: floats in a tensor or a NumPy array; the same type is returned.
        Raises: ShapeError: another type or dim. DataError: a number is not finite, or would not be
            after the transform.
        """
        if isinstance(embeddings, np.ndarray) and embeddings.dtype.kind == "f":
            # Torch supports no negative strides, foreign byte orders or floats above 64 bits.
            width = np.float64 if embeddings.dtype.itemsize >= 8 else np.float32
            array = np.array(embeddings, dtype=width, order="C")
            transformed: Floats = self.transform(torch.from_numpy(array)).numpy()
            return transformed
        if (
            not isinstance(embeddings, Tensor)
            or not embeddings.is_floating_point()
            or not embeddings.dim()
        ):
            given = f"{type(embeddings).__name__} {getattr(embeddings, 'dtype', '')}"
            wanted = "floats in a tensor or a NumPy array, [N, D] or [D]"
            raise ShapeError(f"Vectors must be {wanted}; a {given} was given.")
        if not bool(embeddings.isfinite().all()):
            raise DataError("A vector has a number that is not finite; leave its row out.")
        transformed_rows = self._apply(embeddings)
        row = first_not_finite(transformed_rows.reshape(-1, self.dim))
        if row is not None:
            largest = float(embeddings.reshape(-1, embeddings.shape[-1])[row].abs().max())
            raise DataError(
                f"Row {row + 1} has numbers up to {largest:g}, which overflow as version "
                f"{self.version} in {embeddings.dtype}; give float64, or leave it out."
            )
        return transformed_rows

    def embeddings(self, side: str) -> tuple[pa.Array, Tensor]:
        """Return the ids [N] and vectors [N, D_j] of all stored objects of a side.

        Args:
            side: "query" or "candidate"; "object" in a lineage of files.
        Raises: LineageError: there is no such side, or the vectors are not stored.
        """
        ids, vectors = self._lineage.embeddings(side, self.source)
        return ids, self.transform(vectors)

    def fold_in(
        self,
        candidates: Lists,
        weights: Lists | None = None,
        values: Lists | None = None,
        *,
        missing: Missing = "error",
    ) -> Tensor:
        """Return the vectors of new queries, float32 [Q, D_j], from the candidates they met.

        They are computed at version k and then transformed to version j.

        `view.fold_in([[12, 7], [7, 30, 4]], weights=[[1, 2.5], [1, 1, 1]])` has two queries.

        Args:
            candidates: ids that a query met, or a list of such lists.
            weights: how often each was met, above 0; default 1. A repeated id counts twice.
            values: the pairs' values, if the version was trained on values.
            missing: "skip" leaves out candidates that are not stored.
        Raises: LineageError: version k was published without a query form, or its vectors are not
            stored. DataError, ShapeError: an invalid id, weight or value.
        Source: docs/method.md, "A new query".
        """
        owner = f"Version {self.source} of {self.address}"
        lookup = stored_lookup(lambda: self._lineage.embeddings("candidate", self.source))
        form, lists = self._lineage.reader(self.source).query_form(), (candidates, weights, values)
        return self.transform(fold_in(form, lookup, *lists, missing=missing, owner=owner))

    def export(
        self, path: str | Path, side: str, *, overwrite: bool = False, dimensions: int | None = None
    ) -> int:
        """Write the ids and vectors of a side to a file, with both fingerprints.

        Args:
            path: the suffix selects the format: .parquet, .arrow, .npy or .safetensors; see
                `vector_files.open_embeddings.write_vectors`.
            side: see `embeddings`.
            dimensions: cut vectors to this many first coordinates, scaled to length 1; must be
                declared by the record of version j's text encoder. The file then has no
                fingerprint, as its vectors are not of any version.
        Returns: the number of rows written.
        Raises: DataError: unknown format, the file exists, the folder cannot be written, or the
            dimensions are not declared.
        """
        path = Path(path)
        check_writable(path, overwrite=overwrite)
        cuts = self._lineage.manifest(self.version).cuts
        dims = checked_dims(dimensions, self.dim, cuts, self.version)
        fingerprints = provenance_of(self.fingerprint, self.computed_from) if dims is None else {}
        stored = open_embeddings(self._lineage.stored(side, self.source))
        blocks = stored.read_as(self._apply, self.version, stored.blocks(), 0)
        if dims is not None:
            blocks = ((ids, torch.from_numpy(cut(rows.numpy(), dims))) for ids, rows in blocks)
        return write_vectors(path, blocks, fingerprints, overwrite=overwrite)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return W = W_k^j [D_j, D_k] and the offset b [D_j], float64: z̃_j = W z_k + b. Raises:
        ShapeError: a transform between the two versions is not affine."""
        return self._chain.affine(self.source, self.version)

    def _apply(self, embeddings: Tensor) -> Tensor:
        return self._chain.apply(embeddings, self.source, self.version)


def _reopened(lineage: Lineage, version: int, source: int, fingerprint: str) -> View:
    """Unpickle a view. Raises: LineageError: the address now has another lineage."""
    view = lineage.view(version, source)
    if view.fingerprint != fingerprint:
        raise LineageError(f"{lineage} is not the lineage that the view was created from.")
    return view


# Vectors of new queries, from the stored candidates that they met.


def fold_in(
    form: QueryForm | None,
    lookup: Lookup,
    candidates: Lists,
    weights: Lists | None = None,
    values: Lists | None = None,
    *,
    missing: Missing = "error",
    owner: str = "This version",
) -> Tensor:
    """Return the vectors of Q new queries, float32 [Q, D]; see `View.fold_in`.

    Args:
        form: the query form of the version that `lookup` reads; None if it has none.
        owner: the version's name for errors, such as "Version 1 of films".
    """
    if form is None:
        what = "was published without a query form, so it cannot fold in queries"
        raise LineageError(f"{owner} {what}; train the next version from a recipe.")
    lists = as_lists(candidates, "candidates")
    ids = [key for row in lists for key in row]
    query = torch.repeat_interleave(torch.tensor([len(row) for row in lists]))
    weight = _numbers(weights, lists, "weights")
    if len(low := (~(weight > 0)).nonzero()):
        given = f"{ids[int(low[0])]!r} is {float(weight[int(low[0])]):g}"
        raise DataError(f"The weight of {given}; weights must be above 0.")
    if form.values and values is None:
        raise DataError(f"{owner} was trained on values; give values=, one per candidate.")
    if values is not None and not form.values:
        raise DataError(f"{owner} was trained with the target 1 for every pair; leave values out.")
    target = _numbers(values, lists, "values")
    stored, vectors = lookup(ids)
    if missing not in ("error", "skip"):
        raise DataError(f"missing is {missing!r}; it must be 'error' or 'skip'.")
    unknown = [key for key, is_stored in zip(ids, stored.tolist(), strict=True) if not is_stored]
    if missing == "error" and unknown:
        raise unknown_candidates(unknown, len(ids))
    empty = torch.bincount(query[stored], minlength=len(lists)) == 0
    if bool(empty.any()):
        row = int(empty.nonzero()[0])
        raise DataError(f"Query {row + 1} of {len(lists)} has no stored candidates.")
    met_vectors = vectors[stored]
    if form.length != "free":
        met_vectors = functional.normalize(met_vectors.double())
    met = Interactions(query[stored], met_vectors, weight[stored], target[stored])
    folded = form.minimise(met).float()
    if not bool(folded.isfinite().all()):
        raise DataError("A vector would not be finite; give smaller weights or values.")
    return folded


def unknown_candidates(unknown: list[Any], count: int) -> DataError:
    """Return the error for candidates, of `count` in all, that are not stored."""
    first = ", ".join(repr(key)[:40] for key in unknown[:NAMED])
    return DataError(
        f"{len(unknown)} of {count} candidates are not stored: {first}"
        f"{', …' if len(unknown) > NAMED else ''}; leave them out, or set missing = 'skip'."
    )


def stored_lookup(block: Callable[[], tuple[pa.Array, Tensor]]) -> Lookup:
    """Return a lookup in stored ids [N] and vectors [N, D], which are read when it is called."""

    def lookup(keys: list[Any]) -> tuple[Tensor, Tensor]:
        ids, vectors = block()
        are_integers = pa.types.is_integer(ids.type)
        kind, expected = ((int, np.integer), "integers") if are_integers else (str, "strings")
        # Checked here, because Arrow would truncate 2.9 to 2.
        wrong = [x for x in keys if not isinstance(x, kind) or isinstance(x, bool)]
        try:
            array = pa.array([] if wrong else keys, ids.type)
        except (pa.ArrowException, OverflowError):
            wrong = keys
        if wrong:
            raise DataError(f"Ids of candidates must be {expected} here, not {wrong[0]!r}.")
        index = pc.fill_null(pc.index_in(array, value_set=ids), -1)
        rows = torch.from_numpy(np.array(index)).long()
        return rows >= 0, vectors[rows.clamp(min=0)]

    return lookup


def _numbers(numbers: Lists | None, lists: list[list[Any]], what: str) -> Tensor:
    """Return one number per id, float64 [n]; ones if `numbers` is None."""
    rows = [[1.0] * len(row) for row in lists] if numbers is None else as_lists(numbers, what)
    if list(map(len, rows)) != list(map(len, lists)):
        raise ShapeError(f"{what} must be as long as the candidates.")
    flat = [x for row in rows for x in row]
    for x in flat:
        if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
            raise DataError(f"{what} has {x!r}; give finite numbers.")
    return torch.tensor(flat, dtype=torch.float64)
