"""Measure by differences how much a consumer's own model changes with the embeddings that it reads.

`evergram.compatibility.input_fisher` has the same of a differentiable model, by its gradients. Here
the model is a file of another team, run by `probe_program` in a process without torch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from evergram.errors import DataError
from evergram.evaluation.probes.probe_models import BLOCK, Floats, ProbeModel

# Steps of the differences, as a share of the root mean variance of the embeddings: wide enough for
# models that compute in float32, and for trees, which are flat between their thresholds.
STEP = 0.1
# A probability and what is left to 1 count as at least so much: below, a difference of a model in
# float32 is rounding.
LEAST_CHANCE = 0.01


def probe_fisher(model: ProbeModel, embeddings: NDArray[np.float32], metric: str) -> Floats:
    """Return the mean input Fisher matrix of a probe, float64 [D, D]; see `input_fisher`.

    Args:
        embeddings: [N, D].
        metric: of the probe; with "rmse" its output is a value, otherwise probabilities (numbers
            in [0, 1] that add up to 1, or one alone) or logits.
    Raises: DataError: there are no embeddings, they are all alike, or the model does not answer
        with numbers.
    """
    rows, dim = embeddings.shape
    step = STEP * float(np.sqrt(embeddings.var(axis=0).mean())) if rows else 0.0
    if not step > 0:
        raise DataError(
            f"{rows} embeddings that do not differ say nothing of what a probe is sensitive to; "
            "leave the consumer out."
        )
    centres = model.outputs(embeddings)
    factor = _factor(centres, metric, never_chances=model.gives_logits)
    total: Floats = np.zeros((dim, dim))
    moves = step * np.concatenate([np.eye(dim), -np.eye(dim)])
    size = max(1, BLOCK // (2 * dim))
    for start in range(0, rows, size):
        block: Floats = embeddings[start : start + size].astype(np.float64)
        moved = (block[:, None] + moves).reshape(-1, dim)
        ends = model.outputs(moved.astype(np.float32)).reshape(len(block), 2, dim, -1)
        slope = (ends[:, 0] - ends[:, 1]) / (2 * step)  # [b, D, C]
        weighed = factor(slope, centres[start : start + size])
        flat = weighed.transpose(0, 2, 1).reshape(-1, dim)
        total += flat.T @ flat
    total /= rows
    return total


def _factor(centres: Floats, metric: str, *, never_chances: bool) -> Callable[..., Floats]:
    """Return the function that makes slopes [b, D, C] at outputs [b, C] such that their products
    are the rows' Fisher matrices."""
    if metric == "rmse":
        return lambda slope, _: slope
    one = centres.shape[1] == 1
    inside = bool(((centres >= 0) & (centres <= 1)).all()) and not never_chances
    if inside and (one or np.allclose(centres.sum(axis=1), 1, atol=1e-3)):
        return _of_chances
    return _of_logits


def _of_chances(slope: Floats, chance: Floats) -> Floats:
    # Σ_c ∇p_c ∇p_cᵀ / p_c; of one probability, ∇p ∇pᵀ / (p (1 − p)).
    spread = chance * (1 - chance) if chance.shape[1] == 1 else chance
    weighed: Floats = slope / np.sqrt(np.maximum(spread, LEAST_CHANCE))[:, None]
    return weighed


def _of_logits(slope: Floats, logits: Floats) -> Floats:
    if logits.shape[1] == 1:
        chance = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
        return slope * np.sqrt(chance * (1 - chance))[:, None]
    # Σ_c p_c (∇h_c − Σ_c p_c ∇h_c)(…)ᵀ.
    chance = np.exp(logits - logits.max(axis=1, keepdims=True))
    chance = (chance / chance.sum(axis=1, keepdims=True))[:, None]
    weighed: Floats = np.sqrt(chance) * (slope - (chance * slope).sum(axis=2, keepdims=True))
    return weighed
