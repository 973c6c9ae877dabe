"""Classifiers that are trained side by side are what each would be alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evergram.errors import DataError
from evergram.evaluation.auc import roc_auc
from evergram.evaluation.consumer_classifiers import (
    ConsumerClassifiers,
    ConsumerInputs,
    choose_consumer,
    fit_consumers,
)


def planted(size: int = 500) -> tuple[Tensor, Tensor]:
    embeddings = torch.randn(size, 6, generator=torch.Generator().manual_seed(0))
    return embeddings, embeddings[:, 0] + embeddings[:, 1] > 0


def parts() -> tuple[tuple[ConsumerInputs, Tensor], tuple[ConsumerInputs, Tensor]]:
    x, y = planted()
    return (ConsumerInputs.of(x[:300]), y[:300]), (ConsumerInputs.of(x[300:400]), y[300:400])


def test_auc_counts_pairs_and_ties_are_half() -> None:
    score = np.array([0.1, 0.4, 0.4, 0.8])
    label = np.array([False, False, True, True])
    # Pairs won: (.4,.1) (.8,.1) (.8,.4), tied (.4,.4): 3.5 of 4.
    assert roc_auc(score, label) == pytest.approx(3.5 / 4)
    with pytest.raises(DataError, match="positive and negative"):
        roc_auc(score, np.ones(4, dtype=bool))


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_auc_equals_the_count_over_all_pairs(found: list[tuple[int, bool]]) -> None:
    positive = [s for s, y in found if y]
    negative = [s for s, y in found if not y]
    if not positive or not negative:
        return
    won = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    scores = np.array([s for s, _ in found], dtype=np.float32)
    labels = np.array([y for _, y in found])
    assert roc_auc(scores, labels) == pytest.approx(won / len(positive) / len(negative))


def test_one_learns_and_leaves_the_random_state_alone() -> None:
    x, y = planted()
    before = torch.random.get_rng_state()
    first, reached = fit_consumers(*parts(), seeds=[1])
    second, _ = fit_consumers(*parts(), seeds=[1])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.score(ConsumerInputs.of(x)), second.score(ConsumerInputs.of(x)))
    assert first.auc(ConsumerInputs.of(x[400:]), y[400:])[0] > 0.95
    assert reached == first.auc(*parts()[1])


def test_who_is_trained_beside_it_changes_nothing() -> None:
    x = ConsumerInputs.of(planted()[0])
    together, reached = fit_consumers(*parts(), seeds=[0, 1, 2], dropout=[0.0, 0.5, 0.25])
    alone, one = fit_consumers(*parts(), seeds=[1], dropout=0.5)
    torch.testing.assert_close(together.score(x)[1:2], alone.score(x), rtol=1e-4, atol=1e-4)
    assert reached[1] == pytest.approx(one[0], abs=1e-3)
    assert not torch.allclose(together.score(x)[0], together.score(x)[2])


def test_the_batched_products_are_those_of_an_mlp() -> None:
    x = planted(10)[0]
    consumers = ConsumerClassifiers(6, 5, [0.0, 0.0], [0, 1])
    consumers.mean, consumers.scale = x.mean(0), x.std(0, correction=0)
    for m in range(2):
        hidden = ((x - x.mean(0)) / x.std(0, correction=0)) @ consumers.first[m]
        hidden = (hidden + consumers.first_bias[m]).relu()
        expected = (hidden @ consumers.second[m] + consumers.second_bias[m]).squeeze(-1)
        torch.testing.assert_close(consumers.score(ConsumerInputs.of(x))[m], expected)


def test_inputs_of_two_tables_are_laid_beside_each_other() -> None:
    draw = torch.Generator().manual_seed(0)
    tables = (torch.randn(4, 2, generator=draw), torch.randn(5, 3, generator=draw))
    rows = (torch.tensor([0, 3, 3]), torch.tensor([4, 0, 1]))
    inputs = ConsumerInputs(tables, rows)
    whole = torch.cat([tables[0][rows[0]], tables[1][rows[1]]], dim=1)
    assert torch.equal(inputs.take(torch.arange(3)), whole)
    assert inputs.take(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 5)
    mean, scale = inputs.moments()
    torch.testing.assert_close(mean, whole.mean(0))
    variance = whole.var(0, correction=0)
    expected = torch.cat([variance[:2].mean().expand(2), variance[2:].mean().expand(3)]).sqrt()
    torch.testing.assert_close(scale, expected)


def test_width_and_dropout_are_chosen_on_validation() -> None:
    x = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
    y = x[:, 0] * x[:, 1] > 0  # a single hidden unit cannot tell
    sets = (ConsumerInputs.of(x[:400]), y[:400]), (ConsumerInputs.of(x[400:]), y[400:])
    hidden, dropout = choose_consumer(*sets, hidden=[1, 32], dropout=[0.0, 0.9])
    assert (hidden, dropout) == (32, 0.0)
