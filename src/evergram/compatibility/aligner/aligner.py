"""`Aligner`: the map from new vectors to old ones, fitted in closed form."""

from __future__ import annotations

import copy
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from evergram.compatibility.aligner.aligner_file import read_aligner, write_aligner
from evergram.compatibility.aligner.arrays import (
    BLOCK,
    VectorReader,
    Vectors,
    map_vectors,
    open_vectors,
)
from evergram.compatibility.aligner.solution import (
    AlignerReport,
    AlignerSettings,
    GroupedMoments,
    Solution,
    solve,
)
from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import Transform
from evergram.errors import DataError, ShapeError

log: logging.Logger = logging.getLogger(__name__)


class Aligner:
    """The map that takes new vectors to the old space, fitted to pairs of both.

    Rows are paired by position: row i of both arrays is the same object. A hash of its new vector
    puts each row into one of three groups: the fit uses the first, the second chooses the ridge
    (and the final fit uses it too), and the third measures the error. So the result is the same, up
    to rounding, for any order of the rows and any division into blocks.

    Args:
        transform: "linear" (W z), "affine" (W z + b), "orthogonal" (a turn) or "low_rank".
        ridge: ρ, added to the diagonal of E[z zᵀ]; "auto" chooses it on the second group.
        rank: of low_rank alone; by default 32, or the smaller dim if that is less.
        scaled: True lets an orthogonal map, and it alone, stretch by one factor.
        held_out: share of the rows in the third group, which is never fitted to.
    Raises: DataError: a value is not allowed, or the transform does not use it.
    Source: [BC] §3.2.3, post-hoc, solved for; see `compatibility.closed_forms`.

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
        pairs = ((f.name, getattr(self.settings, f.name), f.default) for f in fields(self.settings))
        changed = [
            f"{name}={v!r}" for name, v, default in pairs if v != default or name == "transform"
        ]
        return f"Aligner({', '.join(changed)})"

    def fit(self, new: Any, old: Any) -> Aligner:
        """Forget all rows from before, and fit to these.

        Args:
            new: [N, D_new] of floats, the input of `transform`.
            old: [N, D_old] of floats, of the same objects in the same order, its output.
        Returns: this aligner.
        Raises: ShapeError: they are not arrays of vectors, or have different numbers of rows.
            DataError: there are no rows, or one is not finite. After an error the rows
            from before are still there.
        """
        readers = self._checked(new, old)
        if not readers[0].rows:
            raise DataError("new and old have no rows; give at least a few dozen pairs.")
        self._moments = self._solution = None
        return self._add(*readers)

    def partial_fit(self, new: Any, old: Any) -> Aligner:
        """Fit to these rows as well; blocks of any size give the fit to all of them at once.

        Args, Returns, Raises: as of `fit`, also ShapeError for other dims than before, and
            DataError for an aligner that was loaded. An empty block is allowed, and nothing of a
            refused block is added.

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
                    "This aligner was loaded from a file, which has its map and not the sums of "
                    "its rows, so it can only be applied; fit a new one to all rows."
                )
        elif self._moments.dims != (old_reader.dim, new_reader.dim):
            before = self._moments.dims
            raise ShapeError(
                f"new has {new_reader.dim} dims and old {old_reader.dim}; the rows before had "
                f"{before[1]} and {before[0]}."
            )
        return self._add(new_reader, old_reader)

    def transform(self, new: Vectors) -> Vectors:
        """Map new vectors into the old space.

        Args:
            new: [N, D_new], or one vector [D_new].
        Returns: [N, D_old] or [D_old], of the type, dtype and device of `new`. Gradients of tensors
            flow.
        Raises: ShapeError: they are not vectors, or have other dims. DataError: a row is not finite
            or mapped beyond the range of its dtype; or no map can be fitted, as of `report`.
        """
        fitted = self._solved().fitted
        return map_vectors(new, fitted.weight, fitted.offset, "new")

    def report(self) -> AlignerReport:
        """Measure the map on the held-out rows.

        Raises: DataError: there are too few rows to fit a map, or the vectors of one side are zero,
            all the same, or all on one line.
        """
        return self._solved().report

    def as_transform(self) -> Transform:
        """Return a copy of the map as an `nn.Module`, float32 and frozen.

        It is for a `Chain`, to publish with a version, or (with `requires_grad_`) to train further.

        Raises: DataError: as of `report`.
        """
        return copy.deepcopy(self._solved().fitted.transform).requires_grad_(False).eval()

    def step_error(self) -> StepError:
        """Return the error of `as_transform` on held-out rows, for `certify` and for publishing.

        Raises: DataError: as of `report`, or no row is held out.
        """
        error = self._solved().error
        if error is None:
            raise DataError(
                f"No row was held out to measure the error on (held_out is "
                f"{self.settings.held_out:g}); fit more rows, or with a larger held_out."
            )
        return error

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all, over an existing one.

        It has the map, its report and its error, and reveals nothing else of the vectors.

        Args:
            path: of the file, in an existing folder.
        Raises: DataError: the file cannot be written, or as of `report`.
        """
        write_aligner(Path(path), self.settings, self._solved())

    @classmethod
    def load(cls, path: str | Path) -> Aligner:
        """Read what `save` wrote; it transforms bit by bit as the saved aligner does.

        Raises: IntegrityError: the content differs from what was saved, if only by a bit.
            DataError: the file is missing, cannot be read, of a later format, or no aligner file.
        """
        aligner = cls()
        aligner.settings, aligner._solution = read_aligner(Path(path))
        return aligner

    def _solved(self) -> Solution:
        """Return the map and its report, fitted anew if rows were added since."""
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
                    "The map is fitted to %d rows, and a %s map from %d to %d dims needs %d: add "
                    "rows, or take a kind that needs fewer.",
                    *(report.fitted_rows, report.transform, report.new_dim, report.old_dim),
                    report.rows_needed,
                )
        return self._solution

    def _checked(self, new: Any, old: Any) -> tuple[VectorReader, VectorReader]:
        """Return readers of both arrays, of which every row has been checked."""
        readers = open_vectors(new, "new"), open_vectors(old, "old")
        rows = readers[0].rows, readers[1].rows
        if rows[0] != rows[1]:
            raise ShapeError(
                f"new has {rows[0]} rows and old {rows[1]}; rows are paired by position, so give "
                "the vectors of the same objects in the same order."
            )
        self.settings.rank_of(readers[1].dim, readers[0].dim)  # raises if it is too high
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
