"""Neighbours of candidates against their definition, in plain Python."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from tests.support.task_batches import normal
from torch import Tensor

from evergram.tasks import candidate_neighbours
from evergram.tasks.candidate_neighbours import CandidateNeighbours

QUERIES, CANDIDATES = 6, 7
Pairs = list[tuple[int, int]]
pairs_of = st.lists(
    st.tuples(st.integers(0, QUERIES - 1), st.integers(0, CANDIDATES - 1)), max_size=40
)


def neighbours(pairs: Pairs, k: int) -> CandidateNeighbours:
    columns = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return CandidateNeighbours.of(columns[:, 0], columns[:, 1], QUERIES, CANDIDATES, k)


def dense(made: CandidateNeighbours) -> Tensor:
    shares: Tensor = made(torch.eye(CANDIDATES, dtype=torch.float64))
    return shares


def similarities(pairs: Pairs) -> list[list[float]]:
    """By sets: what each query that met both adds, over the root of the other's pairs."""
    met = {q: {b for a, b in pairs if a == q} for q in range(QUERIES)}
    counts = Counter(b for own in met.values() for b in own)
    return [
        [
            sum(len(own) ** -0.5 for own in met.values() if {b, c} <= own)
            / max(counts[c], 1) ** 0.5
            * (b != c)
            for c in range(CANDIDATES)
        ]
        for b in range(CANDIDATES)
    ]


@settings(deadline=None)
@drawn(pairs_of, st.integers(1, 9), st.sampled_from([1, 2 * CANDIDATES, 1 << 24]))
def test_the_nearest_share_by_similarity(pairs: Pairs, k: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_neighbours, "BLOCK", block)
        shares = dense(neighbours(pairs, k))
    for own, (row, alike) in enumerate(zip(shares.tolist(), similarities(pairs), strict=True)):
        best = sorted(alike, reverse=True)[: min(k, CANDIDATES - 1)]
        total = sum(best)
        if not total:
            assert row == [float(c == own) for c in range(CANDIDATES)]
            continue
        chosen = [c for c, share in enumerate(row) if share > 0]
        assert sum(s > 0 for s in best) == len(chosen)
        assert sum(row) == pytest.approx(1.0)
        # Of equals any may be chosen.
        assert sorted((alike[c] for c in chosen), reverse=True) == pytest.approx(
            [s for s in best if s > 0]
        )
        for c in chosen:
            assert row[c] == pytest.approx(alike[c] / total, rel=1e-5)


@settings(deadline=None)
@drawn(pairs_of, st.integers(1, 4))
def test_repeated_pairs_and_their_order_change_nothing(pairs: Pairs, k: int) -> None:
    assert torch.equal(dense(neighbours(pairs, k)), dense(neighbours(pairs[5:] + pairs, k)))


def test_the_gradient_is_the_transposes() -> None:
    made = neighbours([(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 0), (2, 5)], 2)
    rows = normal(CANDIDATES, 3).requires_grad_()
    torch.testing.assert_close(made(rows), dense(made) @ rows)
    assert torch.autograd.gradcheck(made, rows)
