"""Shares of a sum, none of which is above a limit: a softmax that saturates."""

from __future__ import annotations

import torch
from torch import Tensor

# Newton's method takes one or two; more only where most of the mass is at the limit.
MOST_ITERATIONS = 50
# Of a weight of 32 bits beside the largest: where smaller ones underflow, too few may be left for
# shares that sum to 1.
LEAST_WEIGHT = 2e-35
# Of log Z: below it the largest weights, 1, are at the limit in any case, and the least of 32 bits.
LEAST = -87.0


def limit_shares(weights: Tensor, limit: float, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Turn weights into shares p_b = e_b / (Z + e_b/q), in place; Z is such that they sum to 1.

    They maximise Σ p_b log e_b + H(p) over 0 ≤ p_b ≤ q, Σ p_b = 1, with the entropy
    H(p) = −1 − Σ (p_b log p_b + (q − p_b) log(1 − p_b/q)); for q → ∞ they are e_b / Σ e. The
    maximum is A = log Z + q Σ log(1 + e_b/(q Z)) − 1, so that its derivative by log e_b is p_b.

    Args:
        weights: e, float [T, N], positive, the largest of a row 1; they become p.
        limit: q, above 1/N.
        spare: [T, N], written over.
    Returns: A [T]; and what the rows of p sum to [T], 1 to the precision of Newton's method, by
        which they are still to be divided.
    Source: docs/method.md, "No candidate takes more than its share".
    """
    inverse = 1 / limit
    if weights.dtype == torch.float32:
        weights.clamp_(min=LEAST_WEIGHT)
    tolerance = torch.finfo(weights.dtype).eps ** 0.5
    # By log Z the sum falls. Without the limit's term it is below 1, so that this is an upper end.
    upper = weights.sum(1, keepdim=True).log()
    lower = torch.full_like(upper, LEAST)
    # Z is nearer by the mean p_b/q of the softmax; the factor is one that saves an iteration.
    crowding = torch.linalg.vector_norm(weights, dim=1, keepdim=True).square() * inverse
    place = upper - 0.6 * torch.log1p(crowding * (-2 * upper).exp())
    for _ in range(MOST_ITERATIONS):
        torch.add(place.exp(), weights, alpha=inverse, out=spare)
        torch.div(weights, spare, out=spare)
        total = spare.sum(1, keepdim=True)
        if bool((total - 1).abs().max() < tolerance):
            break
        below = total < 1
        upper, lower = torch.where(below, place, upper), torch.where(below, lower, place)
        squares = torch.linalg.vector_norm(spare, dim=1, keepdim=True).square()
        newton = place + total.log() * total / (total - inverse * squares)
        # The sum need not be concave in log Z, and a step that leaves the ends is halved. A row
        # that has converged steps onto its end, and stays there while others go on.
        inside = (newton >= lower) & (newton <= upper)
        place = torch.where(inside, newton, (lower + upper) / 2)
    value = place[:, 0] - 1 + limit * weights.mul_(inverse * (-place).exp()).log1p_().sum(1)
    weights.copy_(spare)
    return value, total[:, 0]
