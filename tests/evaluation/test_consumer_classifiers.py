"""Classifiers trained side by side are those that are trained one at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergram.evaluation.consumer_classifiers import (
    ConsumerClassifiers,
    ConsumerFit,
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


def test_one_learns_without_the_global_random_state() -> None:
    x, y = planted()
    before = torch.random.get_rng_state()
    first, reached = fit_consumers(*parts(), seeds=[1])
    second, _ = fit_consumers(*parts(), seeds=[1])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.score(ConsumerInputs.of(x)), second.score(ConsumerInputs.of(x)))
    assert first.auc(ConsumerInputs.of(x[400:]), y[400:])[0] > 0.95
    assert reached == first.auc(*parts()[1])


def test_the_classifiers_beside_it_change_nothing() -> None:
    x = ConsumerInputs.of(planted()[0])
    together, reached = fit_consumers(*parts(), seeds=[0, 1, 2], dropout=[0.0, 0.5, 0.25])
    separate, one = fit_consumers(*parts(), seeds=[1], dropout=0.5)
    torch.testing.assert_close(together.score(x)[1:2], separate.score(x), rtol=1e-4, atol=1e-4)
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


def test_patience_ends_the_training_at_the_best_epoch() -> None:
    (x, y), validation = parts()
    torch.manual_seed(0)
    noise = torch.rand(len(y)) < 0.5  # nothing to learn: the first epochs are as good as any
    patient = ConsumerFit(epochs=30, patience=30)
    hasty = ConsumerFit(epochs=30, patience=2)
    _, best = fit_consumers((x, noise), validation, seeds=[0], settings=patient)
    stopped, reached = fit_consumers((x, noise), validation, seeds=[0], settings=hasty)
    assert reached[0] <= best[0]
    assert stopped.auc(*validation) == reached
