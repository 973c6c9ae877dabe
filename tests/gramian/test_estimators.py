"""What every estimator keeps to, whichever it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import evergram.gramian.exact
import evergram.gramian.sogram  # noqa: F401
from evergram.gramian.estimator import GramianEstimator, Population, exact_gramian

DIM = 5
KINDS = GramianEstimator.__subclasses__()


def rows(seed: int = 0, n: int = 40) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    share = torch.rand(n, generator=draw)
    return torch.randn(n, DIM, generator=draw), share / share.sum()


def population(embeddings: Tensor, share: Tensor) -> Population:
    return lambda: [(embeddings[:7], share[:7]), (embeddings[7:], share[7:])]


def test_both_estimators_enrolled() -> None:
    assert {k.__name__ for k in KINDS} == {"ExactGramian", "SOGram"}


@pytest.mark.parametrize("kind", KINDS)
class TestEstimator:
    def test_the_whole_population_at_once_gives_the_gramian(
        self, kind: type[GramianEstimator]
    ) -> None:
        embeddings, share = rows()
        estimator = kind(DIM)
        estimator.begin(population(embeddings, share))
        estimator.update(embeddings, share * len(share))
        naive = sum(share[i] * torch.outer(embeddings[i], embeddings[i]) for i in range(40))
        torch.testing.assert_close(estimator.gramian(), naive, rtol=1e-5, atol=1e-6)

    def test_a_gramian_handed_out_never_changes(self, kind: type[GramianEstimator]) -> None:
        estimator = kind(DIM)
        embeddings, share = rows()
        estimator.begin(population(embeddings, share))
        estimator.update(embeddings, share)
        held = estimator.gramian()
        copy = held.clone()
        estimator.begin(population(2 * embeddings, share))
        estimator.update(2 * embeddings, share)
        assert torch.equal(held, copy)
        assert not torch.equal(estimator.gramian(), copy)
        assert not held.requires_grad

    def test_state_dict_is_all_there_is(self, kind: type[GramianEstimator]) -> None:
        first, second = kind(DIM), kind(DIM)
        embeddings, share = rows()
        for i in range(3):
            first.begin(population(embeddings, share))
            first.update(embeddings[i * 10 : i * 10 + 10], share[:10])
        second.load_state_dict(first.state_dict())
        for estimator in (first, second):
            estimator.update(embeddings[30:], share[30:])
        assert torch.equal(first.gramian(), second.gramian())


def test_an_empty_population_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        exact_gramian(list)
