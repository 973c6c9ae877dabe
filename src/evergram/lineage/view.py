"""Stored embeddings, read as a past version; and vectors of new queries made of them."""

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

# Of any width.
Floats = npt.NDArray[np.floating[Any]]


Missing = Literal["error", "skip"]
# From n ids to bool [n], which of them are stored, and to their vectors [n, D].
Lookup = Callable[[list[Any]], tuple[Tensor, Tensor]]
# Ids that an error names, at most.
NAMED = 5


@dataclass(frozen=True, repr=False)
class View:
    """The stored embeddings of one version, read as another: z̃_j = W_k^j z_k.

    >>> from evergram import Lineage
    >>> lineage = Lineage.open("lineages/films")
    >>> view = lineage.view(version=0)  # what version 2 has stored, in the space of version 0
    >>> view.source, view.version, view.dim
    (2, 0, 4)
    >>> ids, vectors = view.embeddings("candidate")
    >>> view.export("candidates-as-v0.parquet", side="candidate") == len(ids)
    True

    Args:
        version: j, the version that they are read as.
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
        """The address of its lineage, independent of the current folder."""
        return self._lineage.place

    @overload
    def transform(self, embeddings: Tensor) -> Tensor: ...

    @overload
    def transform(self, embeddings: Floats) -> Floats: ...

    def transform(self, embeddings: Tensor | Floats) -> Tensor | Floats:
        """Return embeddings of version k, [..., D_k], in the space of version j, [..., D_j].

        Args:
            embeddings: floats in a tensor or a NumPy array; the same kind is returned.
        Raises: ShapeError: they are neither, hold no floats, or are of another dim. DataError: a
            number is not finite, or would not be in version j.
        """
        if isinstance(embeddings, np.ndarray) and embeddings.dtype.kind == "f":
            # Torch reads neither a reversed view, nor another byte order, nor what is wider.
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
            raise ShapeError(f"Vectors are {wanted}, and a {given} was given.")
        if not bool(embeddings.isfinite().all()):
            raise DataError("A vector has a number that is not finite; leave its row out.")
        read = self._apply(embeddings)
        row = first_not_finite(read.reshape(-1, self.dim))
        if row is not None:
            largest = float(embeddings.reshape(-1, embeddings.shape[-1])[row].abs().max())
            raise DataError(
                f"Row {row + 1} has numbers as large as {largest:g}, too large to be read as "
                f"version {self.version} in {embeddings.dtype}; give float64, or leave it out."
            )
        return read

    def embeddings(self, side: str) -> tuple[pa.Array, Tensor]:
        """Return the ids [N] and the vectors [N, D_j] of all stored objects of a side.

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

        They are computed in the space of version k, and read as version j as stored ones are.

        `view.fold_in([[12, 7], [7, 30, 4]], weights=[[1, 2.5], [1, 1, 1]])` is of two queries.

        Args:
            candidates: ids that a query met, or a list of such lists.
            weights: how often each was met, above 0; by default once. An id twice is weight 2.
            values: of the pairs, for a version that was trained on values.
            missing: "skip" leaves out candidates that are not stored.
        Raises: LineageError: version k was published without what this needs, or its vectors are
            not stored. DataError, ShapeError: an id, weight or value cannot be used.
        Source: docs/method.md, "A new query".
        """
        owner = f"Version {self.source} of {self.address}"
        lookup = stored_lookup(lambda: self._lineage.embeddings("candidate", self.source))
        form, lists = self._lineage.reader(self.source).query_form(), (candidates, weights, values)
        return self.transform(fold_in(form, lookup, *lists, missing=missing, owner=owner))

    def export(
        self, path: str | Path, side: str, *, overwrite: bool = False, dimensions: int | None = None
    ) -> int:
        """Write the ids and the vectors of a side to a file, marked with both fingerprints.

        Args:
            path: its suffix chooses the format: .parquet, .arrow, .npy or .safetensors; see
                `vector_files.open_embeddings.write_vectors`.
            side: as for `embeddings`.
            overwrite: whether to write over a file that is there.
            dimensions: keep this many of the first coordinates, with length 1; one of the numbers
                that the record of version j's encoder declares. The file is then marked with no
                fingerprint, as its vectors are in no version's space.
        Returns: rows written.
        Raises: DataError: no such format, a file that is there, a folder that cannot be written, or
            dimensions that are not declared.
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
        """Return W_k^j [D_j, D_k] and the offset [D_j], float64: z̃_j = W z_k + b. Raises:
        ShapeError: a transform between the two versions is not affine."""
        return self._chain.affine(self.source, self.version)

    def _apply(self, embeddings: Tensor) -> Tensor:
        return self._chain.apply(embeddings, self.source, self.version)


def _reopened(lineage: Lineage, version: int, source: int, fingerprint: str) -> View:
    """Return a view in another process. Raises: LineageError: the lineage is another one now."""
    view = lineage.view(version, source)
    if view.fingerprint != fingerprint:
        raise LineageError(f"{lineage} is another lineage than the view was made of.")
    return view


# Vectors of new queries, from the stored candidates that each of them met.


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
    """Return the vectors of Q queries that come after training, float32 [Q, D]; see `View.fold_in`.

    Args:
        form: of the version that `lookup` reads; None if it was published without one.
        owner: the version, to call it in an error, such as "Version 1 of films".
    """
    if form is None:
        what = "was published without what folding in needs"
        raise LineageError(f"{owner} {what}; the next version that a recipe trains has it.")
    lists = as_lists(candidates, "candidates")
    ids = [key for row in lists for key in row]
    query = torch.repeat_interleave(torch.tensor([len(row) for row in lists]))
    weight = _numbers(weights, lists, "weights")
    if len(low := (~(weight > 0)).nonzero()):
        given = f"{ids[int(low[0])]!r} is {float(weight[int(low[0])]):g}"
        raise DataError(f"The weight of {given}; weights must be above 0.")
    if form.values and values is None:
        raise DataError(f"{owner} was trained on the values of pairs; give values=, one for each.")
    if values is not None and not form.values:
        raise DataError(f"{owner} was trained with the target 1 for every pair; leave values out.")
    target = _numbers(values, lists, "values")
    known, vectors = lookup(ids)
    if missing not in ("error", "skip"):
        raise DataError(f"missing is {missing!r}; it must be 'error' or 'skip'.")
    unknown = [key for key, is_known in zip(ids, known.tolist(), strict=True) if not is_known]
    if missing == "error" and unknown:
        raise unknown_candidates(unknown, len(ids))
    empty = torch.bincount(query[known], minlength=len(lists)) == 0
    if bool(empty.any()):
        row = int(empty.nonzero()[0])
        raise DataError(f"Query {row + 1} of {len(lists)} has no candidate that is stored.")
    met_vectors = vectors[known]
    if form.length != "free":
        met_vectors = functional.normalize(met_vectors.double())
    met = Interactions(query[known], met_vectors, weight[known], target[known])
    folded = form.minimise(met).float()
    if not bool(folded.isfinite().all()):
        raise DataError("A vector would not be finite; give smaller weights or values.")
    return folded


def unknown_candidates(unknown: list[Any], count: int) -> DataError:
    """Return the refusal of candidates that are not stored, of `count` that were given."""
    named = ", ".join(repr(key)[:40] for key in unknown[:NAMED])
    return DataError(
        f"{len(unknown)} of {count} candidates are not stored: {named}"
        f"{', …' if len(unknown) > NAMED else ''}; leave them out, or set missing = 'skip'."
    )


def stored_lookup(block: Callable[[], tuple[pa.Array, Tensor]]) -> Lookup:
    """Return a lookup in stored ids [N] and vectors [N, D], which are read when it is called."""

    def lookup(asked: list[Any]) -> tuple[Tensor, Tensor]:
        ids, vectors = block()
        are_numbers = pa.types.is_integer(ids.type)
        kind, expected = ((int, np.integer), "whole numbers") if are_numbers else (str, "texts")
        # Arrow would cut 2.9 to 2.
        wrong = [x for x in asked if not isinstance(x, kind) or isinstance(x, bool)]
        try:
            keys = pa.array([] if wrong else asked, ids.type)
        except (pa.ArrowException, OverflowError):
            wrong = asked
        if wrong:
            raise DataError(f"Ids of candidates are {expected} here, and {wrong[0]!r} is none.")
        rows = torch.from_numpy(np.array(pc.fill_null(pc.index_in(keys, value_set=ids), -1))).long()
        return rows >= 0, vectors[rows.clamp(min=0)]

    return lookup


def _numbers(numbers: Lists | None, lists: list[list[Any]], what: str) -> Tensor:
    """Return one number for each id, float64 [n]; ones where none are given."""
    rows = [[1.0] * len(row) for row in lists] if numbers is None else as_lists(numbers, what)
    if list(map(len, rows)) != list(map(len, lists)):
        raise ShapeError(f"{what} are not as long as the candidates.")
    flat = [x for row in rows for x in row]
    for x in flat:
        if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
            raise DataError(f"{what} has {x!r}; give finite numbers.")
    return torch.tensor(flat, dtype=torch.float64)
