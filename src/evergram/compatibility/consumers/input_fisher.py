"""Measure how much a consumer's predictions change with the embeddings that it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from evergram.errors import ShapeError

# A consumer: embeddings [B, D] to one number or C logits a row, [B] or [B, C].
ConsumerModel = Callable[[Tensor], Tensor]
# What the numbers are: logits of classes (one alone: of the second of two), or a predicted value.
ConsumerOutput = Literal["logits", "value"]


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
