"""The log-partition in tiles against the dense one, its gradients against finite differences."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.largest_tensor import LargestTensor
from tests.support.task_batches import normal
from torch import Tensor
from torch.nn import functional

from evergram.tasks.partition import bfloat16_products
from evergram.tasks.partition.bfloat16_products import warn_without_bfloat16
from evergram.tasks.partition.log_partition import log_partition_sum

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


WEIGHT = torch.tensor([1.0, 2.0, 0.3], dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.floats(0.05, 3), st.booleans())
def test_value_and_gradients_are_the_dense_softmaxs(
    scores: int, temperature: float, masked: bool
) -> None:
    excluded = EXCLUDED if masked else None
    results = []
    for tiled in (False, True):
        query = normal(3, 4).requires_grad_()
        candidates = normal(7, 4, seed=1).requires_grad_()
        if tiled:
            value = log_partition_sum(
                query, candidates, WEIGHT, temperature, excluded, tile_scores=scores
            )
        else:
            value = (WEIGHT * dense(query, candidates, temperature, excluded)).sum()
        (1.7 * value).backward()  # type: ignore[no-untyped-call]
        results.append((value.detach(), query.grad, candidates.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("excluded", [None, EXCLUDED])
def test_gradients_are_those_of_finite_differences(excluded: tuple[Tensor, Tensor] | None) -> None:
    query, candidates = normal(3, 4).requires_grad_(), normal(7, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda u, v: log_partition_sum(u, v, WEIGHT, 0.4, excluded, tile_scores=14),
        (query, candidates),
    )


def test_large_scores_do_not_overflow() -> None:
    query, candidates = 1e3 * normal(2, 3).float(), normal(5, 3, seed=1).float()
    weight = torch.tensor([1.0, 0.5])
    value = log_partition_sum(query.requires_grad_(), candidates, weight, 0.01, tile_scores=5)
    value.backward()  # type: ignore[no-untyped-call]
    expected = weight.double() @ dense(query.detach().double(), candidates.double(), 0.01, None)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_a_query_that_excludes_all_adds_nothing_and_has_no_gradient() -> None:
    query, candidates = normal(2, 3).requires_grad_(), normal(3, 3, seed=1).requires_grad_()
    every = torch.tensor([0, 0, 0]), torch.arange(3)
    value = log_partition_sum(query, candidates, WEIGHT[:2], 1, every, tile_scores=3)
    value.backward()  # type: ignore[no-untyped-call]
    assert query.grad is not None
    assert candidates.grad is not None
    assert query.grad[0].tolist() == [0, 0, 0]
    alone = candidates.detach().clone().requires_grad_()
    other = WEIGHT[1] * dense(query[1:].detach(), alone, 1, None).sum()
    other.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(value, other)
    torch.testing.assert_close(candidates.grad, alone.grad)


def test_no_more_scores_are_at_once_than_a_tile_has() -> None:
    query, candidates = normal(5, 2).requires_grad_(), normal(50, 2, seed=1)
    weight = torch.ones(5, dtype=torch.float64)
    with LargestTensor() as largest:
        log_partition_sum(query, candidates, weight, 1, tile_scores=100).backward()  # type: ignore[no-untyped-call]
    assert largest.bytes <= 8 * 100


def test_lower_products_are_near_and_leave_the_setting_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    found = []
    for lower in (False, True):
        query = functional.normalize(normal(60, 64).float()).requires_grad_()
        candidates = functional.normalize(normal(500, 64, seed=1).float()).requires_grad_()
        weight = torch.ones(60)
        value = log_partition_sum(query, candidates, weight, 0.1, lower_products=lower)
        value.backward()  # type: ignore[no-untyped-call]
        found.append((value.detach(), query.grad, candidates.grad))
        assert torch.get_float32_matmul_precision() == before
    for exact, lower in zip(*found, strict=True):
        # 8 bits of mantissa: of rows of unit norm, relative to the largest.
        assert (exact - lower).abs().max() < 2**-6 * exact.abs().max()


@pytest.fixture(autouse=True)
def not_warned_yet() -> Iterator[None]:
    warn_without_bfloat16.cache_clear()
    yield
    warn_without_bfloat16.cache_clear()


@pytest.mark.parametrize("can", [False, True])
def test_products_that_stay_float32_are_a_warning_once(
    can: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bfloat16_products, "multiplies_bfloat16", lambda device: can)
    rows = torch.eye(3)
    with caplog.at_level(logging.WARNING):
        log_partition_sum(rows, rows, torch.ones(3), 1.0)
        assert not caplog.records
        for _ in range(2):
            log_partition_sum(rows, rows, torch.ones(3), 1.0, lower_products=True)
    assert len(caplog.records) == (0 if can else 1)
    if not can:
        assert "task.products = 'bfloat16' changes nothing here: this processor" in caplog.text
