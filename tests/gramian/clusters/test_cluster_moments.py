"""Streamed clusters against those of the whole table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evergram.gramian.clusters.cluster_moments import ClusterMoments, nearest

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


@pytest.mark.parametrize("rate", [0.1, "auto"])
def test_the_same_seed_gives_the_same_clusters_and_state_is_of_no_candidate(
    rate: float | str,
) -> None:
    states = []
    for size in (600, 600, 60_000):
        moments = ClusterMoments(K, DIM, rate, dtype=torch.float64)
        stream(moments, blobs(0, size), 80)
        states.append(moments.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
        assert value.shape == states[2][name].shape, name


def test_an_automatic_rate_is_chosen_by_noise_and_drift() -> None:
    still, moving = (ClusterMoments(K, DIM, "auto", dtype=torch.float64) for _ in range(2))
    rows = blobs(0, spread=1.0)
    stream(still, rows, 320)
    for step in range(320):
        stream(moving, rows + 0.2 * step, 1, seed=step)
    assert float(still.candidate_rate()) < 0.5 * float(moving.candidate_rate())


def test_the_nearest_centre_is_that_of_least_distance() -> None:
    draw = torch.Generator().manual_seed(0)
    rows, centre = (torch.randn(n, DIM, dtype=torch.float64, generator=draw) for n in (50, 9))
    taken = torch.arange(9) != 4
    chosen = nearest(rows, centre, taken)
    for row, mine in zip(rows, chosen, strict=True):
        distances = [float((row - c).norm()) for c in centre]
        distances[4] = 1e9
        assert int(mine) == min(range(9), key=distances.__getitem__)
