"""Weigh the alignment error by what consumers are sensitive to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evergram.errors import ShapeError

# An eigenvalue may be below 0 by this share of the trace: rounding.
ROUNDING = 1e-6


def consumer_metric(fishers: Sequence[Tensor], weight: float) -> Tensor:
    """Return A = (1 − μ) I + μ mean_c D F_c / tr F_c, float64 [D, D].

    It is positive definite, has the trace D that I has, so that λ keeps its meaning, and does not
    depend on the scale of any F_c or on their order.

    Args:
        fishers: F_c [D, D], one for each consumer, symmetric and positive semi-definite, such as
            `input_fisher` returns.
        weight: μ, at least 0 (A = I) and below 1.
    Raises: ShapeError: there is no matrix, one is not of this kind or is 0, or μ is out of range.
    Source: docs/method.md, "Consumers that are known".

    >>> import torch
    >>> from evergram.compatibility import consumer_metric
    >>> consumer_metric([torch.tensor([[8.0, 0.0], [0.0, 0.0]])], weight=0.5).tolist()
    [[1.5, 0.0], [0.0, 0.5]]
    """
    if not 0 <= weight < 1:
        raise ShapeError(f"The weight of consumers is {weight}; it is at least 0 and below 1.")
    if not fishers:
        raise ShapeError("There is no matrix of a consumer; give one or more.")
    shares = [_of_trace_dim(fisher) for fisher in fishers]
    dims = {len(share) for share in shares}
    if len(dims) > 1:
        raise ShapeError(f"The consumers' matrices have dims {sorted(dims)}; they must have one.")
    eye = torch.eye(dims.pop(), dtype=torch.float64)
    return (1 - weight) * eye + weight * torch.stack(shares).mean(0)


def _of_trace_dim(fisher: Tensor) -> Tensor:
    """Return D F / tr F, float64."""
    matrix = fisher.detach().double().cpu()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"A consumer's matrix is {list(matrix.shape)}; it must be [D, D].")
    trace = float(matrix.trace())
    if not (torch.isfinite(matrix).all() and trace > 0):
        raise ShapeError(
            f"A consumer's matrix has the trace {trace:g}, so its predictions do not change with "
            "the embeddings or are not finite; leave this consumer out."
        )
    symmetric = (matrix + matrix.T) / 2
    values = torch.linalg.eigvalsh(symmetric)
    if float((matrix - symmetric).abs().max()) > ROUNDING * trace or values[0] < -ROUNDING * trace:
        raise ShapeError(
            "A consumer's matrix is not symmetric or has a negative eigenvalue, so it is no Fisher "
            "matrix; `input_fisher` makes one."
        )
    if values[0] < 0:
        values, vectors = torch.linalg.eigh(symmetric)
        root = vectors * values.clamp(min=0).sqrt()
        symmetric = root @ root.T
        symmetric = (symmetric + symmetric.T) / 2
    return symmetric * (len(matrix) / symmetric.trace())
