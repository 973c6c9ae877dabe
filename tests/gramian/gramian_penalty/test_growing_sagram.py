"""A cache that fills as entities are met is the Gramian of those that were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evergram.gramian.estimator import EntityBatch
from evergram.gramian.gramian_penalty.growing_sagram import GrowingSAGram

DIM, N = 3, 20


def naive(last: dict[int, Tensor], shares: Tensor, factors: Tensor) -> Tensor:
    """Entity by entity, from a dictionary."""
    width = DIM + factors.shape[1]
    total, mass = torch.zeros(DIM, width, dtype=torch.float64), 0.0
    for entity, row in last.items():
        right = torch.cat([row, factors[entity]]).double()
        total += float(shares[entity]) * torch.outer(row.double(), right)
        mass += float(shares[entity])
    return total / mass


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, N - 1), min_size=1, max_size=6), min_size=1, max_size=8),
    st.sampled_from(["grows", "shares", "one factor", "table"]),
    st.integers(0, 10**6),
)
def test_the_estimate_is_the_gramian_of_the_entities_met(
    batches: list[list[int]], kind: str, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    shares = torch.rand(N, generator=draw) + 0.1 if kind == "shares" else torch.ones(N)
    factors = torch.zeros(N, 0)
    table_of_factors: Tensor | None = None
    if kind == "one factor":
        table_of_factors = torch.randn(1, 2, generator=draw)
        factors = table_of_factors.expand(N, -1)
    elif kind == "table":
        table_of_factors = factors = torch.randn(N, 2, generator=draw)
    starts_empty = kind in ("grows", "one factor")
    estimator = GrowingSAGram(DIM, shares[:0] if starts_empty else shares, table_of_factors)
    assert not bool(estimator.moment().dense.any())
    last: dict[int, Tensor] = {}
    for batch in batches:
        ids = torch.tensor(batch)
        table = torch.randn(N, DIM, generator=draw)
        estimator.after_step(EntityBatch(ids, torch.ones(len(ids)), table[ids], factors[ids]))
        last |= {entity: table[entity] for entity in batch}
        torch.testing.assert_close(
            estimator.moment().dense.double(), naive(last, shares, factors), rtol=1e-4, atol=1e-5
        )
    # Into a fresh one, and into one that has seen other things.
    for elsewhere in ([], [N - 1], [90]):
        if elsewhere == [90] and not starts_empty:
            continue
        other = GrowingSAGram(DIM, shares[:0] if starts_empty else shares, table_of_factors)
        if elsewhere:
            one = torch.ones(1, DIM)
            other.after_step(EntityBatch(torch.tensor(elsewhere), torch.ones(1), one, factors[:1]))
        other.load_state_dict(estimator.state_dict())
        assert torch.equal(other.moment().dense, estimator.moment().dense)
        table = torch.randn(N, DIM, generator=draw)
        for each in (other, estimator):
            each.update(EntityBatch(torch.arange(N), torch.ones(N), table, factors))
        torch.testing.assert_close(other.moment().dense, estimator.moment().dense)


def test_a_state_of_another_size_is_refused_where_entities_are_fixed() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        GrowingSAGram(DIM, torch.ones(4)).load_state_dict(
            GrowingSAGram(DIM, torch.ones(5)).state_dict()
        )
