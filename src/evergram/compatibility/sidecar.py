"""`Sidecar`: a few bytes stored with each new vector, from which readers restore the old vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from evergram.errors import DataError, ShapeError

VALUES = 256  # vectors in a codebook: one byte names one
STAGES = 8  # codebooks that are fitted, and searched for a vector's code, together
BEAM = 5  # partial codes that the search for a code keeps
SAMPLE = 16_384  # maximum number of objects to fit codebooks to, 64 for each of their vectors
Vectors = TypeVar("Vectors", Tensor, npt.NDArray[Any])
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sidecar:
    """The backward transform, and codebooks for the residual that it leaves.

    Only the new vectors and M bytes each are stored. New readers use the new vectors unchanged; old
    readers compute W z_k + b + Σ_m C_m[code_m]. Vectors are tensors or NumPy arrays, and results
    have the same type. Fitting and encoding need faiss; reading does not.

    Args:
        weight: W [D_{k-1}, D_k]; offset: b [D_{k-1}], or None.
        codebooks: C, float32 [M, 256, D_{k-1}].
        missing: the mean square error that remains, over the objects of `fit`.
        power: E‖z_{k-1}‖².
    Source: Chen, Guan and Wang, "Approximate nearest neighbor search by residual vector
        quantization", 2010.

    >>> import torch
    >>> from evergram.compatibility.sidecar import Sidecar
    >>> new = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
    >>> old = torch.tanh(new @ torch.ones(6, 4) + new[:, :4])
    >>> sidecar = Sidecar.fit(torch.eye(4, 6), None, new, old, size=2)
    >>> codes = sidecar.encode(new, old)
    >>> codes.shape, codes.dtype
    (torch.Size([500, 2]), torch.uint8)
    >>> error = (sidecar.read(new, codes) - old).square().sum(1).mean() / old.square().sum(1).mean()
    >>> abs(float(error.sqrt()) - sidecar.relative_error) < 0.001
    True
    """

    weight: Tensor
    offset: Tensor | None
    codebooks: Tensor
    missing: float
    power: float

    @classmethod
    def fit(
        cls, weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors, size: int
    ) -> Sidecar:
        """Fit codebooks to objects with an old and a new vector, at most `SAMPLE` of them.

        Args:
            weight, offset: the backward transform, e.g. from `Aligner.as_transform().affine()`.
            new: z_k [N, D_k]; old: z_{k-1} [N, D_{k-1}], of the same objects.
            size: M, bytes per vector, 0 to D_{k-1}; `fit_for_error` chooses it.
        Raises: ShapeError: a shape or the size is wrong. DataError: there are no objects, the old
            vectors are all zero, a number is not finite, or faiss is not installed.
        """
        if not 0 <= size <= len(weight):
            raise ShapeError(
                f"The size is {size} bytes; it must be 0 to {len(weight)}, one byte per "
                "coordinate of an old vector."
            )
        return cls._fit(weight, offset, new, old, size, None)

    @classmethod
    def fit_for_error(
        cls, weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors, error: float
    ) -> Sidecar:
        """Fit with the fewest bytes for which `relative_error` is at most `error`.

        Raises: DataError: even the most bytes leave a larger error; or as in `fit`.
        """
        if not 0 <= error < math.inf:
            raise DataError(f"The error is {error:g}; it must be a number ≥ 0.")
        best = cls._fit(weight, offset, new, old, len(weight), error)
        if best.relative_error > error:
            raise DataError(
                f"No sidecar reaches a relative error of {error:g}; the lowest is "
                f"{best.relative_error:.2g}, with {best.size} bytes per vector. Allow that error, "
                "or keep the old vectors."
            )
        return best

    @classmethod
    def _fit(
        cls,
        weight: Tensor,
        offset: Tensor | None,
        new: Vectors,
        old: Vectors,
        most: int,
        error: float | None,
    ) -> Sidecar:
        """Fit `most` codebooks, or fewer if these leave at most `error`."""
        residual = _residual(weight, offset, new, old)
        if not len(residual):
            raise DataError("There are no vectors to fit a sidecar to; give some.")
        power = float(_tensor(old).double().square().sum(1).mean())
        if not 0 < power < math.inf:
            raise DataError(
                f"The old vectors' mean square length is {power:g}; it must be finite and above 0."
            )
        left = residual[:: -(-len(residual) // SAMPLE)].float().numpy()
        books: list[Floats] = []
        missing, enough = _mean_square(left), -1.0 if error is None else error**2 * power
        while len(books) < most and missing > enough:
            fitted = _quantizer(_trained(left, min(STAGES, most - len(books))))
            codes = fitted.compute_codes(left)
            for book, column in zip(_tables(fitted), codes.T, strict=True):
                books.append(book)
                left = left - book[column]
                missing = _mean_square(left)
                if missing <= enough:
                    break
        tables = np.stack(books) if books else np.zeros((0, VALUES, len(weight)), np.float32)
        shift = None if offset is None else offset.detach().double()
        sidecar = cls(weight.detach().double(), shift, torch.from_numpy(tables), missing, power)
        rest = residual - sidecar._decoded(sidecar._codes(residual))
        return replace(sidecar, missing=float(rest.square().sum(1).mean()))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in a file."""
        tensors = {"weight": self.weight, "codebooks": self.codebooks}
        if self.offset is not None:
            tensors["offset"] = self.offset
        return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}

    @classmethod
    def of_tensors(
        cls, tensors: Mapping[str, Tensor], codes: Tensor, record: Mapping[str, Any]
    ) -> Sidecar | None:
        """Return the sidecar described by a file's tensors and record; None if they are not valid
        or do not match the codes.

        Raises: KeyError: a tensor, or an entry of the record, is missing.
        """
        sidecar = cls(
            weight=tensors["weight"],
            offset=tensors.get("offset"),
            codebooks=tensors["codebooks"],
            missing=float(record["missing"]),
            power=float(record["power"]),
        )
        offset, tables = sidecar.offset, sidecar.codebooks
        fits = (
            (codes.dtype, tables.dtype) == (torch.uint8, torch.float32)
            and codes.dim() == sidecar.weight.dim() == 2
            and tables.shape == (codes.shape[1], VALUES, len(sidecar.weight))
            and (offset is None or offset.shape == (len(sidecar.weight),))
            and all(bool(t.isfinite().all()) for t in sidecar.tensors().values())
        )
        return sidecar if fits else None

    @property
    def size(self) -> int:
        """M, bytes per vector."""
        return len(self.codebooks)

    @property
    def relative_error(self) -> float:
        """√(E‖error‖² / E‖z_{k-1}‖²) over the objects of `fit`."""
        return math.sqrt(self.missing / self.power)

    def encode(self, new: Vectors, old: Vectors) -> Vectors:
        """Return the codes of objects, uint8 [N, M].

        Raises: ShapeError: a shape is wrong. DataError: a number is not finite, or faiss is not
            installed.
        """
        return _like(new, self._codes(_residual(self.weight, self.offset, new, old)))

    def read(self, new: Vectors, codes: Tensor | npt.NDArray[np.uint8]) -> Vectors:
        """Restore the old vectors of objects, [N, D_{k-1}], in the dtype of `new`. Half precision
        is computed in float32.

        Args:
            codes: [N, M] from `encode`.
        Raises: ShapeError: the codes have the wrong shape or dtype.
        """
        own = _tensor(codes)
        if own.shape != (len(new), self.size) or own.dtype != torch.uint8:
            raise ShapeError(
                f"The codes are {list(own.shape)} of {own.dtype}; they must be uint8 "
                f"[{len(new)}, {self.size}], one row per vector."
            )
        vectors = _tensor(new)
        dtype = torch.promote_types(vectors.dtype, torch.float32)
        mapped = _mapped(self.weight, self.offset, vectors, dtype)
        return _like(new, (mapped + self._decoded(own)).to(vectors.dtype))

    def read_without_codes(self, new: Tensor) -> Tensor:
        """Apply the backward transform alone, float64 [N, D_{k-1}]."""
        return _mapped(self.weight, self.offset, new)

    def _codes(self, residual: Tensor) -> Tensor:
        """Return the codes of residuals, uint8 [N, M]."""
        codes = torch.empty(len(residual), self.size, dtype=torch.uint8)
        left = residual.float().numpy()
        # As in `fit`: the codes of some stages, then those of what these leave.
        for start in range(0, self.size, STAGES):
            tables = self.codebooks[start : start + STAGES]
            part = torch.from_numpy(_quantizer(tables.numpy()).compute_codes(left))
            codes[:, start : start + len(tables)] = part
            left = left - _sum_of(tables, part).numpy()
        return codes

    def _decoded(self, codes: Tensor) -> Tensor:
        """Return the residuals that codes [N, M] stand for, float32 [N, D_{k-1}]."""
        return _sum_of(self.codebooks, codes)


def _sum_of(tables: Tensor, codes: Tensor) -> Tensor:
    """Return Σ_m tables[m, codes[:, m]], [N, D]."""
    stages, values, dim = tables.shape
    if not stages:
        return tables.new_zeros(len(codes), dim)
    rows = codes.long() + values * torch.arange(stages)
    return embedding_bag(rows, tables.reshape(-1, dim), mode="sum")


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise DataError("A sidecar is made with faiss: pip install 'evergram[faiss]'.") from None
    return faiss


def _trained(left: Floats, stages: int) -> Floats:
    """Return codebooks [stages, 256, D] for vectors [n, D]."""
    faiss = _faiss()
    quantizer = faiss.ResidualQuantizer(left.shape[1], stages, 8)
    # A beam while fitting, and more iterations, would take seven times as long and leave 1 % less.
    quantizer.max_beam_size, quantizer.cp.niter = 1, 10
    # Fewer points than faiss advises are fine: these are the objects to encode.
    quantizer.cp.min_points_per_centroid = 1
    # k-means needs as many points as centres.
    quantizer.train(np.tile(left, (-(-VALUES // len(left)), 1)))
    return _tables(quantizer)


def _quantizer(tables: Floats) -> Any:
    """Return faiss's quantizer with these codebooks [m, 256, D]."""
    faiss = _faiss()
    quantizer = faiss.ResidualQuantizer(tables.shape[2], len(tables), 8)
    quantizer.max_beam_size, quantizer.use_beam_LUT = BEAM, 1
    faiss.copy_array_to_vector(tables.ravel(), quantizer.codebooks)
    quantizer.is_trained = True
    quantizer.compute_codebook_tables()
    return quantizer


def _tables(quantizer: Any) -> Floats:
    """Return the codebooks of faiss's quantizer, [m, 256, D]."""
    flat: Floats = _faiss().vector_to_array(quantizer.codebooks)
    return flat.reshape(quantizer.M, VALUES, quantizer.d)


def _mean_square(vectors: Floats) -> float:
    return float(np.square(vectors, dtype=np.float64).sum(1).mean())


def _tensor(array: Tensor | npt.NDArray[Any]) -> Tensor:
    """Return an array as a tensor, copied if torch cannot share its memory without a warning."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _like(vectors: Vectors, value: Tensor) -> Vectors:
    """Return a tensor as an array of the type of `vectors`."""
    return value.numpy() if isinstance(vectors, np.ndarray) else value


def _mapped(
    weight: Tensor, offset: Tensor | None, new: Tensor, dtype: torch.dtype = torch.float64
) -> Tensor:
    if new.dim() != 2 or new.shape[1] != weight.shape[1]:
        raise ShapeError(f"New vectors are {list(new.shape)}; they must be [N, {weight.shape[1]}].")
    mapped = new.detach().to(dtype) @ weight.detach().T.to(dtype)
    return mapped if offset is None else mapped + offset.detach().to(dtype)


def _residual(weight: Tensor, offset: Tensor | None, new: Vectors, old: Vectors) -> Tensor:
    """Return δ = z_{k-1} − W z_k − b, float64 [N, D_{k-1}]."""
    if tuple(old.shape) != (len(new), len(weight)):
        raise ShapeError(
            f"Old vectors are {list(old.shape)}; they must be [{len(new)}, {len(weight)}], of the "
            "same objects as the new ones."
        )
    residual = _tensor(old).detach().double() - _mapped(weight, offset, _tensor(new))
    if not bool(residual.isfinite().all()):
        raise DataError("A vector has a NaN or an infinity; correct it or leave it out.")
    return residual
