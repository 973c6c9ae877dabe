"""The softmax over all candidates against its definition, pair by pair."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from tests.support.task_batches import batch_of, normal
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.tasks import softmax_all
from evergram.tasks.softmax_all import CandidateNeighbours, SoftmaxAll
from evergram.tasks.task import Encoded

QUERIES, PAIRS, PUSH = [5, 2, 5, 5, 0], [3, 1, 0, 1, 2], 1.3


def batch() -> Batch:
    return replace(batch_of(PAIRS), query=torch.tensor(QUERIES))


def encoded(users: Tensor, items: Tensor) -> Encoded:
    return Encoded(users[QUERIES], items[PAIRS], all_candidates=items)


def by_definition(users: Tensor, items: Tensor, tau: float) -> float:
    """Σ over pairs, each with its own partition function, in plain Python."""
    total = 0.0
    for a, b in zip(QUERIES, PAIRS, strict=True):
        scores = [float(users[a] @ v) for v in items]
        log_z = math.log(sum(math.exp(s / tau) for s in scores))
        total += PUSH * log_z - scores[b] / tau
    return total / len(QUERIES)


def test_the_loss_is_its_definition_and_gradients_are_those_of_finite_differences() -> None:
    users, items = normal(6, 3), normal(4, 3, seed=1)
    task = SoftmaxAll(0.7, push=PUSH)
    value = float(task(encoded(users, items), batch(), {}))
    assert value == pytest.approx(by_definition(users, items, 0.7), rel=1e-12)
    sides = users.requires_grad_(), items.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, v: task(encoded(u, v), batch(), {}), sides)


def with_neighbours(share: float) -> SoftmaxAll:
    nearest = torch.tensor([[1, 2], [3, 0], [0, 1], [2, 0]])
    shares = torch.tensor([[0.7, 0.3], [0.5, 0.5], [1.0, 0.0], [0.0, 0.0]])
    neighbours = CandidateNeighbours(nearest, shares)
    return SoftmaxAll(0.7, push=PUSH, neighbours=neighbours, neighbour_share=share)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_neighbours_have_their_share_of_the_pull(share: float) -> None:
    """Over the loss without: what a pair's own score loses, and its neighbours' scores gain."""
    users, items = normal(6, 3), normal(4, 3, seed=1)
    near = {0: {1: 0.7, 2: 0.3}, 1: {3: 0.5, 0: 0.5}, 2: {0: 1.0}, 3: {}}
    expected = by_definition(users, items, 0.7)
    for a, b in zip(QUERIES, PAIRS, strict=True):
        theirs = sum(part * float(users[a] @ items[c]) for c, part in near[b].items())
        own = float(users[a] @ items[b])
        expected += share * (own - theirs) / 0.7 / len(QUERIES)
    task = with_neighbours(share)
    assert float(task(encoded(users, items), batch(), {})) == pytest.approx(expected, rel=1e-6)
    sides = users.requires_grad_(), items.requires_grad_()
    assert torch.autograd.gradcheck(lambda u, v: task(encoded(u, v), batch(), {}), sides)


def test_a_batch_counts_by_its_share_of_pairs() -> None:
    users, items = normal(6, 3), normal(4, 3, seed=1)
    whole = SoftmaxAll()(encoded(users, items), batch(), {})
    share = replace(batch(), pair_share=torch.full((5,), 0.25))
    assert float(SoftmaxAll()(encoded(users, items), share, {})) == pytest.approx(float(whole) / 4)


SOME_QUERIES, CANDIDATES = 6, 7


Pairs = list[tuple[int, int]]


pairs_of = st.lists(
    st.tuples(st.integers(0, SOME_QUERIES - 1), st.integers(0, CANDIDATES - 1)), max_size=40
)


def neighbours(pairs: Pairs, k: int) -> CandidateNeighbours:
    columns = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return CandidateNeighbours.of(columns[:, 0], columns[:, 1], SOME_QUERIES, CANDIDATES, k)


def dense(made: CandidateNeighbours) -> Tensor:
    shares: Tensor = made(torch.eye(CANDIDATES, dtype=torch.float64))
    return shares


def similarities(pairs: Pairs) -> list[list[float]]:
    """By sets: what each query that met both adds, over the root of the other's pairs."""
    met = {q: {b for a, b in pairs if a == q} for q in range(SOME_QUERIES)}
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
        patch.setattr(softmax_all, "BLOCK", block)
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
