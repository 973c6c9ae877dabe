"""How clusters begin, merge and split: what stays, and what falls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergram.gramian.clusters.cluster_changes import centres, rebalanced, scatter, seeds


def points(seed: int, size: int = 400, dim: int = 5) -> tuple[Tensor, Tensor]:
    """Rows, unequal along the axes, and positive weights that add up to 1."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(size, dim, dtype=torch.float64, generator=draw) * torch.arange(1, dim + 1)
    weights = torch.rand(size, dtype=torch.float64, generator=draw) + 0.1
    return rows, weights / weights.sum()


def sums_of(rows: Tensor, weights: Tensor, of: Tensor, clusters: int) -> Tensor:
    """Σ ν, Σ ν v, Σ ν‖v‖², cluster by cluster."""
    result = torch.zeros(clusters, rows.shape[1] + 2, dtype=torch.float64)
    for row, weight, cluster in zip(rows, weights, of, strict=True):
        result[cluster, 0] += weight
        result[cluster, 1:-1] += weight * row
        result[cluster, -1] += weight * row @ row
    return result


def within(sums: Tensor, total: Tensor) -> Tensor:
    return total - (centres(sums) * sums[:, :1]).T @ centres(sums)


@pytest.mark.parametrize("clusters", [3, 8, 40])
@pytest.mark.parametrize("seed", range(3))
def test_merges_and_splits_keep_totals_and_lower_the_scatter(seed: int, clusters: int) -> None:
    rows, weights = points(seed)
    # Most rows are in the last cluster, and those of one count for nearly nothing.
    of = (torch.arange(len(rows)) % (20 * clusters)).clamp(max=clusters - 1)
    weights[of == 1] *= 1e-6
    sums = sums_of(rows, weights, of, clusters)
    change = rebalanced(sums, within(sums, (rows * weights[:, None]).T @ rows))
    assert change is not None
    assert bool(change.worth.any())
    after = change.sums(sums)
    torch.testing.assert_close(after.sum(0), sums.sum(0), rtol=1e-12, atol=1e-12)
    assert scatter(after).sum() < scatter(sums).sum()
    push = torch.randn(clusters, 5, dtype=torch.float64)
    torch.testing.assert_close(change.push(push).sum(0), push.sum(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_pooled_covariance_stays_positive(seed: int) -> None:
    rows, weights = points(seed)
    draw = torch.Generator().manual_seed(seed)
    of = torch.randint(32, (len(rows),), generator=draw)
    of[rows[:, 0] > 0] = 0
    sums = sums_of(rows, weights, of, 32)
    total = (rows * weights[:, None]).T @ rows
    for _ in range(20):
        change = rebalanced(sums, within(sums, total))
        assert change is not None
        sums = change.sums(sums)
        assert torch.linalg.eigvalsh(within(sums, total))[0] > -1e-12
        torch.testing.assert_close(scatter(sums).sum(), within(sums, total).trace())


def test_clusters_of_equal_rows_are_left_alone() -> None:
    rows = torch.eye(3, dtype=torch.float64).repeat(2, 1)
    sums = sums_of(rows, torch.full((6,), 1 / 6, dtype=torch.float64), torch.arange(6) % 3, 3)
    assert rebalanced(sums, torch.zeros(3, 3, dtype=torch.float64)) is None
    assert rebalanced(sums[:2], torch.eye(3, dtype=torch.float64)) is None


def test_centres_begin_as_different_rows_with_weight() -> None:
    rows, weights = points(0, size=40)
    rows[20:] = rows[:20]
    weights[7] = weights[27] = 0.0
    centre, taken = torch.zeros(30, 5, dtype=torch.float64), torch.zeros(30, dtype=torch.bool)
    draw = torch.Generator().manual_seed(5)
    begun = [0]
    for _ in range(4):
        centre, taken = seeds(centre, taken, rows, weights, draw)
        begun.append(int(taken.sum()))
    assert begun == [0, 10, 19, 19, 19]
    apart = torch.cdist(centre[taken], rows[:20])
    assert apart.amin(1).max() == 0
    assert torch.unique(apart.argmin(1)).numel() == 19
    assert 7 not in apart.argmin(1)


def test_centres_are_drawn_by_squared_distance() -> None:
    """Of rows at distance 1 and 3 from the centre, the far one is drawn nine times in ten."""
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    weights = torch.ones(3, dtype=torch.float64)
    centre, taken = torch.zeros(2, 2, dtype=torch.float64), torch.tensor([True, False])
    draw = torch.Generator().manual_seed(0)
    far = sum(int(seeds(centre, taken, rows, weights, draw)[0][1, 1] == 3) for _ in range(1000))
    assert 870 < far < 930
