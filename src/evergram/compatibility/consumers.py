"""Alignment weighed by known consumers: input Fisher matrices, and their mean ([BC] §6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from evergram.errors import ShapeError

# An eigenvalue may be below 0 by this share of the trace: rounding.
ROUNDING = 1e-6
# A consumer: embeddings [B, D] to one number or C logits a row, [B] or [B, C].
ConsumerModel = Callable[[Tensor], Tensor]
# What the numbers are: logits of classes (one alone: of the second of two), or a predicted value.
ConsumerOutput = Literal["logits", "value"]


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


def input_fisher(
    model: ConsumerModel,
    embeddings: Tensor,
    output: ConsumerOutput = "logits",
    *,
    batch_size: int = 1024,
) -> Tensor:
    """Return a consumer's mean input Fisher matrix, float64 [D, D], positive semi-definite.

    F = E_z E_{y ~ p(·|z)}[∇_z ℓ ∇_z ℓᵀ] with ℓ = −log p(y|z), which needs no label. With
    J = ∂h/∂z [C, D] that is E[Jᵀ (diag p − p pᵀ) J] for a softmax of C logits h, E[p(1 − p) JᵀJ]
    for one logit, and E[JᵀJ] for a value with normal noise. Where z moves by a small δ, the
    predictions move by ½ δᵀ F δ of KL divergence.

    Args:
        model: reads each row by itself, and is differentiable; a module is read in evaluation mode.
        embeddings: [N, D], of the version that it was fitted to.
        output: "logits", or "value" of a regression.
        batch_size: rows at once.
    Raises: ShapeError: the rows, the outputs or `output` are not of this kind, or no gradient
        leads from the outputs to the embeddings.
    Source: docs/method.md, "Consumers that are known".

    >>> import torch
    >>> from evergram.compatibility import input_fisher
    >>> weight = torch.tensor([2.0, 0.0])
    >>> input_fisher(lambda z: z @ weight, torch.zeros(8, 2)).tolist()  # ¼ w wᵀ at p = ½
    [[1.0, 0.0], [0.0, 0.0]]
    """
    if embeddings.ndim != 2 or not len(embeddings):
        raise ShapeError(
            f"The embeddings are {list(embeddings.shape)}; they must be [N, D] of one or more rows."
        )
    if output not in ("logits", "value"):
        raise ShapeError(f"output is {output!r}; it is 'logits' or 'value'.")
    dim = embeddings.shape[1]
    total = torch.zeros(dim, dim, dtype=torch.float64)
    was_training = isinstance(model, nn.Module) and model.training
    if isinstance(model, nn.Module):
        model.eval()
    try:
        for rows in torch.split(embeddings.detach(), batch_size):
            slopes = _weighed_slopes(model, rows, output)
            total += slopes.T @ slopes
    finally:
        if isinstance(model, nn.Module):
            model.train(was_training)
    return total / len(embeddings)


def _weighed_slopes(model: ConsumerModel, rows: Tensor, output: ConsumerOutput) -> Tensor:
    """Return float64 [B·C, D] whose Gram matrix is the sum of the rows' Fisher matrices."""
    with torch.enable_grad():
        inputs = rows.clone().requires_grad_()
        outputs = model(inputs)
        if not isinstance(outputs, Tensor) or outputs.ndim not in (1, 2):
            shape = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ShapeError(
                f"The consumer returns {shape}; it must return a tensor [B] or [B, C]."
            )
        if len(outputs) != len(rows):
            raise ShapeError(
                f"The consumer returns {len(outputs)} rows for {len(rows)} embeddings; it must "
                "return one for each."
            )
        if not outputs.requires_grad:
            raise ShapeError(
                "The consumer's outputs have no gradient by its inputs; it must compute them by "
                "differentiable operations of torch."
            )
        columns = outputs.reshape(len(rows), -1)
        slopes = [
            torch.autograd.grad(columns[:, c].sum(), inputs, retain_graph=True)[0]
            for c in range(columns.shape[1])
        ]
    slope = torch.stack(slopes, dim=1).double().cpu()  # J [B, C, D]
    if output == "logits":
        logits = columns.detach().double().cpu()
        if logits.shape[1] == 1:
            chance = logits.sigmoid()
            slope = slope * (chance * (1 - chance)).sqrt()[..., None]
        else:
            # Jᵀ (diag p − p pᵀ) J = Σ_c p_c (J_c − J̄)(J_c − J̄)ᵀ with J̄ = Σ_c p_c J_c.
            chance = logits.softmax(-1)[..., None]
            slope = chance.sqrt() * (slope - (chance * slope).sum(1, keepdim=True))
    return slope.flatten(0, 1)
