"""The softmax within a batch, BPR and norms, against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.task_batches import batch_of, normal

from evergram.tasks.task import (
    BPR,
    Encoded,
    Softmax,
    StreamedFrequency,
    mean_squared_norm,
)


def test_softmax_masks_repeats_and_corrects_for_frequency() -> None:
    query, table = normal(4, 3), normal(3, 3, seed=1)
    ids = [2, 0, 2, 1]
    task = Softmax(3, temperature=0.5)
    # A past in which candidate 2 stood in every batch and 0 in one of two.
    for step in range(400):
        task.frequency.observe(torch.tensor([2, 0] if step % 2 else [2, 1]))
    loss = float(task(Encoded(query, table[ids]), batch_of(ids), {}))
    chance = task.frequency.log_chance(torch.arange(3)).exp()
    expected = 0.0
    for row, own in enumerate(ids):
        logits = {}
        for place, other in enumerate(ids):
            if place == row or other != own:
                logit = float(query[row] @ table[other]) / 0.5 - math.log(float(chance[other]))
                logits[place] = logit
        expected -= logits[row] - math.log(sum(math.exp(x) for x in logits.values()))
    assert loss == pytest.approx(expected / 4, rel=1e-5)


def test_frequencies_are_learned_from_the_stream() -> None:
    frequency = StreamedFrequency(3, rate=0.01)
    draw = torch.Generator().manual_seed(0)
    chances = torch.tensor([0.9, 0.3, 0.05])
    for _ in range(6000):
        met = torch.nonzero(torch.rand(3, generator=draw) < chances).flatten()
        frequency.observe(met.repeat(2))  # a repeat in one batch counts once
    learned = frequency.log_chance(torch.arange(3)).exp()
    torch.testing.assert_close(learned, chances, rtol=0.25, atol=0)


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.05])
def test_the_first_gaps_are_averaged_and_the_later_ones_forgotten(rate: float) -> None:
    """Algorithm 2 with a rate of 1/n at first: the gap is the mean of the first 1/rate gaps."""
    frequency = StreamedFrequency(1, rate=rate)
    gaps = torch.randint(1, 30, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    expected = 0.0
    for number, gap in enumerate(gaps, start=1):
        for _ in range(gap - 1):
            frequency.observe(torch.tensor([], dtype=torch.long))
        frequency.observe(torch.tensor([0]))
        expected += max(1 / number, rate) * (gap - expected)
        if number <= round(1 / rate):
            assert expected == pytest.approx(sum(gaps[:number]) / number)
        learned = float(frequency.log_chance(torch.tensor([0])))
        assert learned == pytest.approx(-math.log(expected), rel=1e-4)


def test_nothing_is_learned_in_evaluation_mode() -> None:
    task = Softmax(3).eval()
    before = {name: value.clone() for name, value in task.state_dict().items()}
    encoded, batch = Encoded(normal(2, 3), normal(2, 3, seed=1)), batch_of([0, 2])
    loss = task(encoded, batch, {})
    assert all(torch.equal(before[name], value) for name, value in task.state_dict().items())
    assert torch.equal(task(encoded, batch, {}), loss)


def test_bpr_is_the_chance_to_rank_the_pair_first() -> None:
    query, candidate, negative = normal(4, 3), normal(4, 3, seed=1), normal(4, 3, seed=2)
    loss = BPR()(Encoded(query, candidate, negative), batch_of([0, 1, 2, 3]), {})
    expected = 0.0
    for u, v, w in zip(query, candidate, negative, strict=True):
        expected -= math.log(1 / (1 + math.exp(-float(u @ v - u @ w))))
    assert float(loss) == pytest.approx(expected / 4)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=2),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_value_and_gradient_are_those_of_the_plain_formula(
    sizes: list[int], dim: int, weighted: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(*sizes, dim, dtype=torch.float64, generator=draw).requires_grad_()
    # A row of zeros, whose norm has no gradient.
    with torch.no_grad():
        rows[(0,) * len(sizes)] = 0
    weight = torch.randn(*sizes, dtype=torch.float64, generator=draw) if weighted else None
    plain = (rows.square().sum(-1) * (1 if weight is None else weight)).mean()
    mine = mean_squared_norm(rows, weight)
    torch.testing.assert_close(mine, plain)
    (gradient,) = torch.autograd.grad(3 * mine, rows)
    torch.testing.assert_close(gradient, torch.autograd.grad(3 * plain, rows)[0])
    assert torch.autograd.gradcheck(lambda x: mean_squared_norm(x, weight), (rows,))
