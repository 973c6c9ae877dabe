"""`Aligner`: the map from new vectors to old ones, fitted in closed form.

Vectors are read in blocks from a NumPy array or a torch tensor, so a memory-mapped array may be
larger than memory. Mapped vectors have the type, dtype and (torch) device of the input.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from evergram.compatibility.aligner.aligner_file import read_aligner, write_aligner
from evergram.compatibility.aligner.solution import (
    AlignerReport,
    AlignerSettings,
    GroupedMoments,
    Solution,
    solve,
)
from evergram.compatibility.certificate import StepError
from evergram.compatibility.closed_forms import mapped_rows
from evergram.compatibility.transforms import Transform
from evergram.errors import DataError, ShapeError

log: logging.Logger = logging.getLogger(__name__)
BLOCK = 8192  # rows per block
LARGEST = 1e100  # squares of larger numbers could overflow a sum
# The input and output of a function have the same type.
Vectors = TypeVar("Vectors", npt.NDArray[Any], Tensor)


class Aligner:
    """A map from new vectors to the old space, fitted to pairs of new and old vectors.

    Rows are paired by position: row i of both arrays is the same object. A hash of its new vector
    puts each row into one of three groups: the first is for fitting, the second chooses the ridge
    (and is used in the final fit), and the third measures the error. The result therefore does not
    depend, up to rounding, on the order of the rows or on the blocks.

    Args:
        transform: "linear" (W z), "affine" (W z + b), "orthogonal" (rotation or reflection) or
            "low_rank".
        ridge: ρ, added to the diagonal of E[z zᵀ]; "auto" chooses it on the second group.
        rank: for low_rank only; by default 32, or the smaller dim if that is less.
        scaled: for orthogonal only; True also fits a scale factor.
        held_out: share of the rows in the third group, which are never fitted.
    Raises: DataError: a value is not allowed, or the transform does not use it.
    Source: [BC] §3.2.3, post-hoc, in closed form; see `compatibility.closed_forms`.

    >>> import numpy as np
    >>> from evergram.compatibility import Aligner
    >>> draw = np.random.default_rng(0)
    >>> new = draw.normal(size=(1000, 8))
    >>> old = new @ draw.normal(size=(8, 5)) + 0.1 * draw.normal(size=(1000, 5))
    >>> aligner = Aligner().fit(new, old)
    >>> aligner.transform(new).shape
    (1000, 5)
    >>> report = aligner.report()
    >>> report.better_than_chance, round(report.r2, 2)
    (True, 1.0)
    """

    def __init__(
        self,
        transform: str = "linear",
        ridge: float | Literal["auto"] = "auto",
        *,
        rank: int | None = None,
        scaled: bool = False,
        held_out: float = 0.1,
    ) -> None:
        self.settings: AlignerSettings = AlignerSettings(transform, rank, scaled, held_out, ridge)
        self._moments: GroupedMoments | None = None
        self._solution: Solution | None = None

    def __repr__(self) -> str:
        values = (
            (f.name, getattr(self.settings, f.name), f.default) for f in fields(self.settings)
        )
        changed = [
            f"{name}={v!r}" for name, v, default in values if v != default or name == "transform"
        ]
        return f"Aligner({', '.join(changed)})"

    def fit(self, new: Any, old: Any) -> Aligner:
        """Fit to these rows, discarding any earlier ones.

        Args:
            new: floats [N, D_new], the input of `transform`.
            old: floats [N, D_old], of the same objects in the same order, its output.
        Returns: this aligner.
        Raises: ShapeError: they are not arrays of vectors, or have different numbers of rows.
            DataError: there are no rows, or one is not finite. After an error the aligner is
            unchanged.
        """
        readers = self._checked(new, old)
        if not readers[0].rows:
            raise DataError("new and old have no rows; give at least a few dozen pairs.")
        self._moments = self._solution = None
        return self._add(*readers)

    def partial_fit(self, new: Any, old: Any) -> Aligner:
        """Add these rows to the fit; the result is the same as fitting all rows at once.

        Args, Returns, Raises: as in `fit`, also ShapeError if the dims differ from earlier rows,
            and DataError if the aligner was loaded from a file. An empty block is allowed. After an
            error, no row of the block has been added.

        >>> import torch
        >>> from evergram.compatibility import Aligner
        >>> aligner = Aligner("affine")
        >>> for seed in range(5):
        ...     new = torch.randn(100, 4, generator=torch.Generator().manual_seed(seed))
        ...     _ = aligner.partial_fit(new, 2 * new[:, :3] + 1)
        >>> aligner.transform(torch.zeros(4)).round(decimals=2)
        tensor([1., 1., 1.])
        """
        new_reader, old_reader = self._checked(new, old)
        if self._moments is None:
            if self._solution is not None:
                raise DataError(
                    "This aligner was loaded from a file, which has the map but not the sums over "
                    "the rows, so it cannot be fitted further; fit a new one to all rows."
                )
        elif self._moments.dims != (old_reader.dim, new_reader.dim):
            before = self._moments.dims
            raise ShapeError(
                f"new has {new_reader.dim} dims and old {old_reader.dim}; earlier rows had "
                f"{before[1]} and {before[0]}."
            )
        return self._add(new_reader, old_reader)

    def transform(self, new: Vectors) -> Vectors:
        """Map new vectors into the old space.

        Args:
            new: [N, D_new], or one vector [D_new].
        Returns: [N, D_old] or [D_old], with the type, dtype and device of `new`. Gradients flow
            through tensors.
        Raises: ShapeError: wrong shape. DataError: a row is not finite, or its image overflows the
            dtype; or no map can be fitted, as in `report`.
        """
        fitted = self._solved().fitted
        return map_vectors(new, fitted.weight, fitted.offset, "new")

    def report(self) -> AlignerReport:
        """Measure the map on the held-out rows.

        Raises: DataError: there are too few rows to fit a map, or the vectors of one side are zero,
            identical or all on one line.
        """
        return self._solved().report

    def as_transform(self) -> Transform:
        """Return a copy of the map as an `nn.Module`, float32 and frozen.

        Use it in a `Chain`, publish it with a version, or train it further (after
        `requires_grad_`).

        Raises: DataError: as in `report`.
        """
        return copy.deepcopy(self._solved().fitted.transform).requires_grad_(False).eval()

    def step_error(self) -> StepError:
        """Return the error of `as_transform` on held-out rows, for `certify` and for publishing.

        Raises: DataError: as in `report`, or no row is held out.
        """
        error = self._solved().error
        if error is None:
            raise DataError(
                "No row was held out to measure the error (held_out is "
                f"{self.settings.held_out:g}); fit more rows, or use a larger held_out."
            )
        return error

    def save(self, path: str | Path) -> None:
        """Write one safetensors file atomically, replacing an existing one.

        It holds the map, its report and its error, and nothing else about the vectors.

        Args:
            path: a file in an existing folder.
        Raises: DataError: the file cannot be written, or as in `report`.
        """
        write_aligner(Path(path), self.settings, self._solved())

    @classmethod
    def load(cls, path: str | Path) -> Aligner:
        """Read a file that `save` wrote; its transform is bit-identical to the saved one.

        Raises: IntegrityError: the content differs from what was saved. DataError: the file is
            missing, unreadable, not an aligner, or has a later format.
        """
        aligner = cls()
        aligner.settings, aligner._solution = read_aligner(Path(path))
        return aligner

    def _solved(self) -> Solution:
        """Return the map and its report, refitted if rows have been added."""
        if self._solution is None:
            if self._moments is None:
                raise DataError("This aligner has seen no rows; call fit(new, old) first.")
            self._solution = solve(self._moments, self.settings)
            report = self._solution.report
            if report.better_than_chance is False:
                log.warning(
                    "The map from new to old vectors is no better than chance on %d held-out rows "
                    "(R² %.2g): check that row i of both is the same object, and see report().",
                    report.held_out_rows,
                    report.r2,
                )
            if report.fitted_rows < report.rows_needed:
                log.warning(
                    "The map is fitted to %d rows, but kind %s from %d to %d dims needs %d: add "
                    "rows, or choose a kind that needs fewer.",
                    report.fitted_rows,
                    report.transform,
                    report.new_dim,
                    report.old_dim,
                    report.rows_needed,
                )
        return self._solution

    def _checked(self, new: Any, old: Any) -> tuple[VectorReader, VectorReader]:
        """Return readers for both arrays, after checking every row."""
        readers = open_vectors(new, "new"), open_vectors(old, "old")
        rows = readers[0].rows, readers[1].rows
        if rows[0] != rows[1]:
            raise ShapeError(
                f"new has {rows[0]} rows and old {rows[1]}; rows are paired by position, so give "
                "the vectors of the same objects in the same order."
            )
        self.settings.rank_of(readers[1].dim, readers[0].dim)  # raises if the rank is too high
        for reader in readers:
            for start in range(0, reader.rows, BLOCK):
                reader.block(start, start + BLOCK)
        return readers

    def _add(self, new: VectorReader, old: VectorReader) -> Aligner:
        moments = self._moments or GroupedMoments(old.dim, new.dim, self.settings.held_out)
        for start in range(0, new.rows, BLOCK):
            blocks = (reader.block(start, start + BLOCK) for reader in (old, new))
            moments.add(*(block.detach().cpu().double() for block in blocks))
        self._moments, self._solution = moments, None
        return self


@dataclass(frozen=True)
class VectorReader:
    """Reads an array of floats [N, D] block by block."""

    name: str  # name of the array in error messages
    vectors: npt.NDArray[Any] | Tensor  # [N, D]

    @property
    def rows(self) -> int:
        """N."""
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """D."""
        return int(self.vectors.shape[1])

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows `start` to `stop`, [b, D], in float64 for 64-bit input, otherwise float32.
        Raises: DataError: one of them is not finite or too large to be summed."""
        rows = self.vectors[start:stop]
        if isinstance(rows, Tensor):
            block = rows if rows.dtype == torch.float64 else rows.float()
        else:
            # Torch cannot read reversed views, foreign byte orders or wider floats.
            width = np.float64 if rows.dtype.itemsize >= 8 else np.float32
            block = torch.from_numpy(np.array(rows, dtype=width, order="C"))
        # In float32 the limit becomes infinity, so the comparison rejects only NaN and infinity.
        usable = (block.detach().abs() < LARGEST).all(1)
        if not bool(usable.all()):
            row = int(torch.nonzero(~usable)[0])
            size = float(block[row].detach().abs().max())
            problem = f"a number of size {size:.0e} (the limit is {LARGEST:.0e})"
            if not np.isfinite(size):
                problem = "NaN or infinity"
            raise DataError(
                f"{self.name}[{start + row}] contains {problem}; correct the row or leave it out."
            )
        return block


def open_vectors(vectors: Any, name: str) -> VectorReader:
    """Return a reader for floats [N, D]; data is copied only when a block is read. Raises:
    ShapeError: it is not a NumPy array or torch tensor, not of floats, or not [N, D]."""
    if isinstance(vectors, Tensor):
        are_floats = vectors.is_floating_point() and vectors.layout == torch.strided
    else:
        is_array = isinstance(vectors, np.ndarray) and not np.ma.isMaskedArray(vectors)
        are_floats = is_array and vectors.dtype.kind == "f"
    if not are_floats or vectors.ndim != 2 or not vectors.shape[1]:
        found = f"a {type(vectors).__name__}"
        if isinstance(vectors, np.ndarray | Tensor):
            found += f" of {vectors.dtype}, {list(vectors.shape)}"
        raise ShapeError(
            f"{name} is {found}; it must be a NumPy array or torch tensor of floats [N, D]."
        )
    return VectorReader(name, vectors)


def map_vectors(vectors: Vectors, weight: Tensor, offset: Tensor | None, name: str) -> Vectors:
    """Return W z + b for every z, in the same array type and dtype, computed in float64 for float64
    vectors, else in float32.

    Args:
        vectors: [N, D], or one vector [D].
        weight, offset: W and b, float64 [D_old, D] and [D_old].
    Raises: ShapeError: wrong shape. DataError: a vector is not finite, or its image overflows the
        dtype.
    """
    if isinstance(vectors, np.ndarray | Tensor) and vectors.ndim == 1:
        image: Vectors = map_vectors(vectors[None], weight, offset, name)[0]
        return image
    source = open_vectors(vectors, name)
    if source.dim != weight.shape[1]:
        raise ShapeError(
            f"{name} is {list(vectors.shape)}; this aligner was fitted to vectors of "
            f"{weight.shape[1]} dims."
        )
    if isinstance(vectors, Tensor):
        mapped = mapped_rows(source.block(0, source.rows), weight, offset).to(vectors.dtype)
        _check_finite(mapped.detach(), source, 0)
        return mapped
    out: npt.NDArray[Any] = np.empty((source.rows, len(weight)), vectors.dtype)
    for start in range(0, source.rows, BLOCK):
        rows = out[start : start + BLOCK]
        with np.errstate(over="ignore"):  # `_check_finite` names the row
            rows[...] = mapped_rows(source.block(start, start + len(rows)), weight, offset).numpy()
        _check_finite(rows, source, start)
    return out


def _check_finite(mapped: Tensor | npt.NDArray[Any], source: VectorReader, start: int) -> None:
    finite = torch.isfinite(mapped) if isinstance(mapped, Tensor) else np.isfinite(mapped)
    if not bool(finite.all()):
        row = start + int((~finite).any(1).nonzero()[0][0])
        raise DataError(
            f"The image of {source.name}[{row}] overflows {mapped.dtype}; give wider floats."
        )
