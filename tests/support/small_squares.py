"""A small objective of all its parts, and its value by the slow sum over all pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.training.solvers.pair_squares import PairSquares

SIZES = {"query": 7, "candidate": 5}


def small_squares(seed: int, *, sparse: bool = False, prior: int = 0) -> PairSquares:
    """Draw pairs with repeats, two measures, and a query and a candidate that are in no pair."""
    made = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=made, dtype=torch.float64)

    pairs = {s: torch.randint(0, n - 1, (18,), generator=made) for s, n in SIZES.items()}
    measures = {s: draw(n, 2) for s, n in SIZES.items()}
    return PairSquares(
        pairs,
        draw(18) * 3,
        draw(18) - 0.3 if sparse else None,
        {s: m / m.sum(0) for s, m in measures.items()},
        (0.7, 0.2),
        {s: draw(n, prior) for s, n in SIZES.items()},
        {s: draw(n) * 0.05 for s, n in SIZES.items()},
    )


def small_tables(squares: PairSquares, dim: int, seed: int) -> dict[str, Tensor]:
    """Draw normal rows, float64 [N, D]."""
    made = torch.Generator().manual_seed(seed)
    return {
        s: torch.randn(len(m), dim, generator=made, dtype=torch.float64)
        for s, m in squares.norms.items()
    }


def over_all_pairs(squares: PairSquares, tables: dict[str, Tensor]) -> Tensor:
    """Return F by a dense matrix of all scores, for autograd too."""
    scores = tables["query"] @ tables["candidate"].T
    missed = scores - squares.factors["query"] @ squares.factors["candidate"].T
    at = squares.pairs["query"], squares.pairs["candidate"]
    total = 0.5 * (scores[at] - squares.target).square().mean()
    if squares.weight is not None:
        total = total + (squares.weight * missed[at].square()).mean()
    for r, strength in enumerate(squares.penalty):
        p, q = (squares.measures[s][:, r] for s in ("query", "candidate"))
        total = total + strength * p @ missed.square() @ q
    for side, table in tables.items():
        total = total + squares.norms[side] @ table.square().sum(1)
    return total
