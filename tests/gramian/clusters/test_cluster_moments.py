"""Streamed clusters against those of the whole table; how they begin, merge and split."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergram.gramian.cluster_moments import (
    ClusterMoments,
    centres,
    nearest,
    rebalanced,
    scatter,
    seeds,
)

K, DIM = 6, 4


def blobs(seed: int, size: int = 600, spread: float = 0.2) -> Tensor:
    """Rows around K points that are far from each other."""
    draw = torch.Generator().manual_seed(seed)
    middle = 10 * torch.eye(K, dtype=torch.float64)[:, :DIM]
    middle[DIM:, :2] = torch.tensor([[-10.0, 0.0], [0.0, -10.0]])
    of = torch.randint(K, (size,), generator=draw)
    return middle[of] + spread * torch.randn(size, DIM, dtype=torch.float64, generator=draw)


def stream(
    moments: ClusterMoments, rows: Tensor, steps: int, seed: int = 0, *, batch: int = 64
) -> None:
    """Learn from batches that draw even rows three times as often, with weights that undo it."""
    draw = torch.Generator().manual_seed(seed)
    chance = torch.ones(len(rows), dtype=torch.float64)
    chance[::2] = 3.0
    chance = chance / chance.sum()
    for _ in range(steps):
        ids = torch.multinomial(chance, batch, replacement=True, generator=draw)
        moments.learn_candidates(rows[ids], 1 / (len(rows) * chance[ids]))


def exact(rows: Tensor, of: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shares, centres and pooled covariance, cluster by cluster."""
    shares, centres, within = [], [], torch.zeros(DIM, DIM, dtype=torch.float64)
    for cluster in range(K):
        members = rows[of == cluster]
        shares.append(len(members) / len(rows))
        centres.append(members.mean(0))
        within += torch.cov(members.T, correction=0) * shares[-1]
    return torch.tensor(shares, dtype=torch.float64), torch.stack(centres), within


@pytest.mark.parametrize("seed", range(3))
def test_clusters_of_a_still_table_become_the_tables(seed: int) -> None:
    rows = blobs(seed)
    moments = ClusterMoments(K, DIM, 0.01, seed=seed, dtype=torch.float64)
    stream(moments, rows, 600, seed)
    clusters = moments.clusters()
    shares, centres, within = exact(rows, clusters.assign(rows))
    # Standard errors: about √(α/2B) of what a row varies by.
    torch.testing.assert_close(clusters.log_share.exp(), shares, rtol=0, atol=0.02)
    torch.testing.assert_close(clusters.centre, centres, rtol=0, atol=0.04)
    torch.testing.assert_close(clusters.within, within, rtol=0, atol=0.005)


def test_clusters_follow_a_catalogue_that_moves() -> None:
    """All rows of three blobs go elsewhere; clusters without rows are merged, others split."""
    rows = blobs(0)
    moments = ClusterMoments(K, DIM, 0.1, dtype=torch.float64)
    stream(moments, rows, 100)
    moved = rows[:, 0] + rows[:, 1] > 5
    rows[moved] = rows[moved] * torch.tensor([-1.0, 1.0, -3.0, 2.0], dtype=torch.float64) + 5
    stream(moments, rows, 400, seed=1)
    clusters = moments.clusters()
    assert len(torch.unique(clusters.assign(rows))) == K
    _, _, within = exact(rows, clusters.assign(rows))
    torch.testing.assert_close(clusters.within.trace(), within.trace(), rtol=0.2, atol=0)
    # Of one cluster it would be some hundred times as much.
    assert clusters.within.trace() < 0.05 * torch.cov(rows.T).trace()


def test_what_queries_push_by_is_an_average_over_batches() -> None:
    draw = torch.Generator().manual_seed(0)
    moments = ClusterMoments(K, DIM, 0.25, dtype=torch.float64)
    push, gramian, whole = torch.zeros(K, DIM), torch.zeros(DIM, DIM), 0.0
    for step in range(5):
        queries = torch.randn(8, DIM, dtype=torch.float64, generator=draw)
        shares = torch.rand(8, K, dtype=torch.float64, generator=draw).softmax(1)
        moments.learn_queries(shares, queries)
        weight = 0.75 ** (4 - step) * 0.25
        push = push + weight * torch.einsum("bk,bd->kd", shares, queries) / 8
        gramian = gramian + weight * torch.einsum("bi,bj->ij", queries, queries) / 8
        whole += weight
    clusters = moments.clusters()
    torch.testing.assert_close(clusters.push, push / whole)
    torch.testing.assert_close(clusters.gramian, gramian / whole)


def test_the_nearest_centre_is_that_of_least_distance() -> None:
    draw = torch.Generator().manual_seed(0)
    rows, centre = (torch.randn(n, DIM, dtype=torch.float64, generator=draw) for n in (50, 9))
    taken = torch.arange(9) != 4
    chosen = nearest(rows, centre, taken)
    for row, mine in zip(rows, chosen, strict=True):
        distances = [float((row - c).norm()) for c in centre]
        distances[4] = 1e9
        assert int(mine) == min(range(9), key=distances.__getitem__)


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


@pytest.mark.parametrize(("seed", "clusters"), [(0, 3), (1, 8), (2, 40)])
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
