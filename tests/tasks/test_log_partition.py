"""The log-partition in tiles against the dense one, its gradients against finite differences."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.task_batches import normal
from torch import Tensor

from evergram.tasks import log_partition as module
from evergram.tasks.log_partition import log_partition

EXCLUDED = torch.tensor([0, 2, 2, 1, 2]), torch.tensor([6, 1, 0, 3, 1])


def dense(
    query: Tensor, candidates: Tensor, temperature: float, excluded: tuple[Tensor, Tensor] | None
) -> Tensor:
    """All scores at once, by torch's own gradient."""
    logits = query @ candidates.T / temperature
    if excluded is not None:
        mask = torch.zeros(logits.shape, dtype=torch.bool)
        mask[excluded] = True
        logits = logits.masked_fill(mask, -torch.inf)
    return torch.logsumexp(logits, 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.floats(0.05, 3), st.booleans())
def test_value_and_gradients_are_the_dense_softmaxs(
    scores: int, temperature: float, masked: bool
) -> None:
    excluded = EXCLUDED if masked else None
    results = []
    for function in (dense, log_partition):
        query = normal(3, 4).requires_grad_()
        candidates = normal(7, 4, seed=1).requires_grad_()
        tiles = (scores,) if function is log_partition else ()
        value = function(query, candidates, temperature, excluded, *tiles)
        (value * torch.tensor([1.0, -2.0, 0.3])).sum().backward()  # type: ignore[no-untyped-call]
        results.append((value.detach(), query.grad, candidates.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("excluded", [None, EXCLUDED])
def test_gradients_are_those_of_finite_differences(excluded: tuple[Tensor, Tensor] | None) -> None:
    query, candidates = normal(3, 4).requires_grad_(), normal(7, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda u, v: log_partition(u, v, 0.4, excluded, 6), (query, candidates)
    )


def test_large_scores_do_not_overflow() -> None:
    query, candidates = 1e3 * normal(2, 3).float(), normal(5, 3, seed=1).float()
    value = log_partition(query.requires_grad_(), candidates, 0.01, None, 4)
    value.sum().backward()  # type: ignore[no-untyped-call]
    expected = dense(query.detach().double(), candidates.double(), 0.01, None)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_a_query_that_excludes_all_has_no_gradient() -> None:
    query, candidates = normal(2, 3).requires_grad_(), normal(3, 3, seed=1).requires_grad_()
    value = log_partition(query, candidates, 1, (torch.tensor([0, 0, 0]), torch.arange(3)), 2)
    assert value[0] == -torch.inf
    value.sum().backward()  # type: ignore[no-untyped-call]
    assert query.grad is not None
    assert candidates.grad is not None
    assert query.grad[0].tolist() == [0, 0, 0]
    alone = candidates.detach().clone().requires_grad_()
    dense(query[1:].detach(), alone, 1, None).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(candidates.grad, alone.grad)


def test_no_more_scores_are_at_once_than_a_tile_has(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    tiles = module._tiles

    def watched(*args: object) -> object:
        for place, logits in tiles(*args):  # type: ignore[arg-type]
            widths.append(logits.numel())
            yield place, logits

    monkeypatch.setattr(module, "_tiles", watched)
    query, candidates = normal(4, 2).requires_grad_(), normal(50, 2, seed=1)
    log_partition(query, candidates, 1, None, 12).sum().backward()  # type: ignore[no-untyped-call]
    assert max(widths) == 12
    assert sum(widths) == 2 * 4 * 50  # each score once forth and once back
