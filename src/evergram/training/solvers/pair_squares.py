"""The squared objective of a factorization over all pairs, as sums that need no pair unobserved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.encoders.features import SIDES
from evergram.errors import ShapeError


@dataclass(frozen=True)
class PairSquares:
    """F(U, V) = (1/n) Σ_i [½(s_i − y_i)² + w_i (s_i − π_i)²] + Σ_r λ_r Σ_ab p_a q_b (s_ab − π_ab)²
    + Σ_a m_a ‖u_a‖² + Σ_b m_b ‖v_b‖², with s_ab = ⟨u_a, v_b⟩ and π_ab = ⟨f_a, g_b⟩.

    It is what the mean of `Objective` over an epoch estimates for the squared task.

    Args:
        pairs: for each side, the rows of the n observed pairs, int64 [n].
        target: y, [n].
        weight: w, [n], which may be negative; None is zero.
        measures: for each side, p and q, [N, R].
        penalty: λ_r, one a measure.
        factors: for each side, f and g of the prior, [N, K]; K may be 0.
        norms: for each side, m, [N].
    Raises: ShapeError: lengths differ.
    Source: [G2] Eq. (7), App. B, App. C.
    """

    pairs: Mapping[str, Tensor]
    target: Tensor
    weight: Tensor | None
    measures: Mapping[str, Tensor]
    penalty: Sequence[float]
    factors: Mapping[str, Tensor]
    norms: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        lengths = {len(self.target), *(len(self.pairs[side]) for side in SIDES)}
        if self.weight is not None:
            lengths.add(len(self.weight))
        if len(lengths) > 1 or not len(self.target):
            raise ShapeError(
                f"Pairs, targets and weights have lengths {sorted(lengths)}; give at least one "
                "pair, and one of each a pair."
            )
        for side in SIDES:
            rows = {len(self.measures[side]), len(self.factors[side]), len(self.norms[side])}
            if len(rows) > 1 or self.measures[side].shape[1] != len(self.penalty):
                raise ShapeError(
                    f"The {side} side has measures {list(self.measures[side].shape)}, "
                    f"{len(self.factors[side])} factors, {len(self.norms[side])} weights of norms "
                    f"and {len(self.penalty)} penalties; give a row an entity, a column a penalty."
                )

    def value(self, tables: Mapping[str, Tensor]) -> Tensor:
        """Return F of the tables [N, D] of both sides, float64, without a loop over all pairs."""
        # Products of rows [u, f] and [v, −g] are s − π.
        rows = {
            side: torch.cat([tables[side].double(), sign * self.factors[side].double()], dim=1)
            for side, sign in zip(SIDES, (1.0, -1.0), strict=True)
        }
        dim = tables["query"].shape[1]
        query, candidate = (rows[side][self.pairs[side]] for side in SIDES)
        scores = (query[:, :dim] * candidate[:, :dim]).sum(1)
        total = 0.5 * (scores - self.target.double()).square().mean()
        if self.weight is not None:
            missed = (query * candidate).sum(1)
            total = total + (self.weight.double() * missed.square()).mean()
        for r, strength in enumerate(self.penalty):
            left, right = (
                rows[side].T @ (rows[side] * self.measures[side][:, r, None].double())
                for side in SIDES
            )
            total = total + strength * (left * right).sum()
        for side in SIDES:
            total = total + self.norms[side].double() @ tables[side].double().square().sum(1)
        return total
