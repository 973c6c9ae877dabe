"""The log-partition in tiles against the dense one, its gradients against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.task_batches import normal
from tests.support.tensor_bytes import TensorBytes
from torch import Tensor
from torch.nn import functional

from evergram.errors import DataError
from evergram.tasks import softmax_all
from evergram.tasks.kinds import SoftmaxAllSettings
from evergram.tasks.softmax_all import check_share, limit_shares, log_partition_sum


def dense(query: Tensor, candidates: Tensor, temperature: float) -> Tensor:
    """All scores at once, by torch's own gradient."""
    return torch.logsumexp(query @ candidates.T / temperature, 1)


WEIGHT = torch.tensor([1.0, 2.0, 0.3], dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.floats(0.05, 3))
def test_value_and_gradients_are_the_dense_softmaxs(scores: int, temperature: float) -> None:
    results = []
    for tiled in (False, True):
        query = normal(3, 4).requires_grad_()
        candidates = normal(7, 4, seed=1).requires_grad_()
        if tiled:
            value = log_partition_sum(query, candidates, WEIGHT, temperature, tile_scores=scores)
        else:
            value = (WEIGHT * dense(query, candidates, temperature)).sum()
        (1.7 * value).backward()  # type: ignore[no-untyped-call]
        results.append((value.detach(), query.grad, candidates.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-11, atol=1e-12)


def test_large_scores_do_not_overflow() -> None:
    query, candidates = 1e3 * normal(2, 3).float(), normal(5, 3, seed=1).float()
    weight = torch.tensor([1.0, 0.5])
    value = log_partition_sum(query.requires_grad_(), candidates, weight, 0.01, tile_scores=5)
    value.backward()  # type: ignore[no-untyped-call]
    expected = weight.double() @ dense(query.detach().double(), candidates.double(), 0.01)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_no_more_scores_are_at_once_than_a_tile_has() -> None:
    query, candidates = normal(5, 2).requires_grad_(), normal(50, 2, seed=1)
    weight = torch.ones(5, dtype=torch.float64)
    with TensorBytes() as made:
        log_partition_sum(query, candidates, weight, 1, tile_scores=100).backward()  # type: ignore[no-untyped-call]
    assert made.largest <= 8 * 100


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


def by_bisection(weights: list[float], limit: float) -> tuple[list[float], float]:
    """Return p and A, with the Z that halving an interval finds."""
    low, high = -300.0, 50.0
    for _ in range(400):
        z = math.exp((low + high) / 2)
        if sum(e / (z + e / limit) for e in weights) > 1:
            low = (low + high) / 2
        else:
            high = (low + high) / 2
    z = math.exp(low)
    shares = [e / (z + e / limit) for e in weights]
    return shares, low + limit * sum(math.log1p(e / (limit * z)) for e in weights) - 1


def limited(weights: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Return p, divided by its sum, and A."""
    shares = weights.clone()
    value, total = limit_shares(shares, limit, torch.empty_like(shares))
    return shares / total[:, None], value


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.floats(1.02, 20), st.floats(0.1, 12), st.integers(0, 10**6))
def test_shares_and_value_are_those_of_bisection(
    size: int, times: float, width: float, seed: int
) -> None:
    """Limits from just above 1/N, at which all shares are near it, to no limit at all."""
    logits = width * normal(4, size, seed=seed)
    weights = (logits - logits.amax(1, keepdim=True)).exp()
    shares, value = limited(weights, times / size)
    assert float(shares.max()) <= times / size * (1 + 1e-6)
    for row, own, a in zip(weights.tolist(), shares, value.tolist(), strict=True):
        expected, maximum = by_bisection(row, times / size)
        torch.testing.assert_close(
            own, torch.tensor(expected, dtype=own.dtype), rtol=1e-5, atol=1e-7
        )
        assert a == pytest.approx(maximum, rel=1e-6, abs=1e-6)


def test_the_value_is_the_largest_of_scores_and_entropy() -> None:
    logits, limit = 2 * normal(1, 9), 0.3
    top = logits.amax(1, keepdim=True)
    shares, value = limited((logits - top).exp(), limit)

    def objective(p: Tensor) -> float:
        rest = limit - p
        entropy = -1 - (torch.xlogy(p, p) + torch.xlogy(rest, rest / limit)).sum()
        return float((p * (logits - top)[0]).sum() + entropy)

    assert objective(shares[0]) == pytest.approx(float(value), abs=1e-9)
    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        others = torch.rand(9, dtype=torch.float64, generator=draw)
        others = others / others.sum()
        if float(others.max()) <= limit:
            assert objective(others) <= float(value)


def test_without_an_effect_it_is_the_softmax() -> None:
    logits = normal(3, 8)
    weights = (logits - logits.amax(1, keepdim=True)).exp()
    shares, value = limited(weights, 1e9)
    torch.testing.assert_close(shares, torch.softmax(logits, 1))
    log_z = torch.logsumexp(logits, 1) - logits.amax(1)
    torch.testing.assert_close(value, log_z, rtol=1e-6, atol=1e-6)


def test_shares_are_near_the_mean_of_sampled_softmaxes() -> None:
    """Of samples that have each candidate with probability q."""
    size, limit, draws = 2000, 0.05, 6000
    draw = torch.Generator().manual_seed(0)
    weights = (2.0 * torch.randn(size, dtype=torch.float64, generator=draw)).exp()
    mean = torch.zeros(size, dtype=torch.float64)
    for _ in range(draws):
        drawn = weights * (torch.rand(size, generator=draw) < limit)
        mean += drawn / drawn.sum() / draws
    shares = limited((weights / weights.max())[None], limit)[0][0]
    plain = weights / weights.sum()
    top = weights.topk(20).indices
    errors = [float((p[top] / mean[top] - 1).abs().mean()) for p in (shares, plain)]
    assert errors[0] < 0.1
    assert errors[1] > 0.2


def test_rows_that_have_converged_stay_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row with most of its mass at the limit takes five iterations; the others three."""
    monkeypatch.setattr(softmax_all, "MOST_ITERATIONS", 5)
    logits = torch.cat([3 * normal(256, 4000, seed=1), 30 * normal(1, 4000, seed=2)]).float()
    weights = (logits - logits.amax(1, keepdim=True)).exp()
    _, total = limit_shares(weights.clone(), 0.005, torch.empty_like(weights))
    assert float((total - 1).abs().max()) < 1e-3


@pytest.mark.parametrize("share", [None, 0.9, 0.3, 0.16])
def test_gradients_are_those_of_finite_differences(share: float | None) -> None:
    query, candidates = normal(3, 4).requires_grad_(), normal(7, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda u, v: log_partition_sum(u, v, WEIGHT, 0.4, largest_share=share, tile_scores=14),
        (query, candidates),
    )


def test_shares_that_make_no_whole_are_refused() -> None:
    check_share(0.26, 4)
    with pytest.raises(
        DataError, match=r"0.25, so the shares of 4 candidates .* above 1/4 .* such as 0.5"
    ):
        check_share(0.25, 4)
    with pytest.raises(DataError, match=r"above 1/2 and below 1, such as 0.75"):
        check_share(0.4, 2)
    check_share(0.75, 2)
    for share in (0.0, 1.0, -0.1):
        with pytest.raises(ValueError, match="largest_share"):
            SoftmaxAllSettings(largest_share=share)


def test_the_limit_holds_where_most_weights_underflow() -> None:
    unit = torch.nn.functional.normalize
    query, candidates = unit(normal(4, 8)), unit(normal(2000, 8, seed=1))
    scores = (query @ candidates.T / 0.006).float()
    weights = (scores - scores.amax(1, keepdim=True)).exp()
    assert int((weights > 0).sum(1).min()) < 1000
    _, total = limit_shares(weights, 0.001, torch.empty_like(weights))
    shares = weights / total[:, None]
    torch.testing.assert_close(total, torch.ones(4), atol=1e-3, rtol=0)
    assert float(shares.max()) < 0.001 * 1.001
