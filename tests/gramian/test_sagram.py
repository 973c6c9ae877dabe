"""SAGram: the sum over its cache, its bias, its growth, and its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.gramian_population import (
    DIM,
    EMBEDDINGS,
    FACTORS,
    SHARE,
    K,
    N,
    naive_moment,
    population,
    rows,
)
from torch import Tensor

from evergram.errors import TrainingError
from evergram.gramian.estimator import EntityBatch
from evergram.gramian.sagram import SAGram


def cache_moment(estimator: SAGram) -> Tensor:
    u = estimator.cache.double()
    right = torch.cat([u, FACTORS.double()], dim=1)
    return (u * SHARE.double()[:, None]).T @ right


@pytest.mark.parametrize("beta", ["1/n", "1"])
def test_the_sum_is_that_of_the_cache_after_batches_with_duplicates(beta: str) -> None:
    estimator = SAGram(DIM, SHARE, FACTORS, beta)
    estimator.begin(population())
    draw = torch.Generator().manual_seed(0)
    now = EMBEDDINGS.clone()
    for _ in range(300):
        now = now + 0.1 * torch.randn(N, DIM, generator=draw)
        ids = torch.randint(N, (12,), generator=draw) // 3  # many twice
        weights, cache = torch.ones(12), estimator.cache.clone()
        estimator.update(EntityBatch(ids, weights, now[ids], FACTORS[ids]))
        assert torch.equal(estimator.cache, cache)
        estimator.after_step(EntityBatch(ids, weights, now[ids], FACTORS[ids]))
        assert torch.equal(estimator.cache[ids], now[ids])
    torch.testing.assert_close(estimator.total, cache_moment(estimator), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(estimator.moment().dense.double(), estimator.total)


@pytest.mark.long
def test_of_an_entity_with_two_embeddings_the_last_one_is_kept() -> None:
    estimator, ids = SAGram(DIM, SHARE, FACTORS), torch.tensor([1, 0, 1, 0, 1])
    estimator.begin(population())
    rows = torch.arange(5.0)[:, None].expand(5, DIM)
    estimator.after_step(EntityBatch(ids, torch.ones(5), rows, FACTORS[ids]))
    assert estimator.cache[:2, 0].tolist() == [3, 4]


def test_beta_1_is_unbiased_before_it_is_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves, G and H: the papers' λ in the lines of H would not be."""
    monkeypatch.setattr("evergram.gramian.sagram.projected", lambda m: m)
    draw = torch.Generator().manual_seed(1)
    stale = EMBEDDINGS + torch.randn(N, DIM, generator=draw)
    total, runs = torch.zeros(DIM, DIM + K), 6000
    for _ in range(runs):
        estimator = SAGram(DIM, SHARE, FACTORS, "1")
        estimator.cache.copy_(stale)
        estimator.filled.fill_(True)
        estimator._sum_anew()
        estimator.update(rows(torch.randint(N, (4,), generator=draw)))
        total += estimator.moment().dense
    torch.testing.assert_close(total / runs, naive_moment(), rtol=0, atol=0.08)


def test_new_entities_join_the_cache_and_its_sum() -> None:
    old = 30
    share = SHARE[:old] / SHARE[:old].sum()
    estimator = SAGram(DIM, share, FACTORS[:old])
    estimator.begin(lambda: [(EMBEDDINGS[:old], share, FACTORS[:old])])
    estimator.grow(SHARE, FACTORS, EMBEDDINGS[old:])
    torch.testing.assert_close(estimator.moment().dense, naive_moment(), rtol=1e-5, atol=1e-6)
    estimator.after_step(rows(torch.tensor([35, 2, 35]), 2.0))
    torch.testing.assert_close(estimator.total, cache_moment(estimator), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="needs 41 shares, not 40"):
        estimator.grow(SHARE, FACTORS, EMBEDDINGS[:1])


def test_a_cache_on_disk_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "work" / "cache.bin"
    in_memory, mapped = (SAGram(DIM, SHARE, FACTORS, "1", file=f) for f in (None, file))
    for estimator in (in_memory, mapped):
        estimator.begin(population())
        estimator.after_step(rows(torch.tensor([1, 2, 1]), 3.0))
        estimator.to(torch.float32)
    assert torch.equal(in_memory.moment().dense, mapped.moment().dense)
    assert file.stat().st_size == 4 * N * DIM
    on_disk = torch.from_file(str(file), size=N * DIM).view(N, DIM)
    assert torch.equal(on_disk, in_memory.cache)


def test_rounding_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergram.gramian.sagram.REFRESH", 3)
    estimator = SAGram(DIM, SHARE, FACTORS)
    estimator.begin(population())
    estimator.total += 1.0  # as if rounding had added up
    for _ in range(3):
        estimator.after_step(rows(torch.arange(4)))
    torch.testing.assert_close(estimator.moment().dense, naive_moment(), rtol=1e-5, atol=1e-6)


def test_an_unknown_beta_and_a_population_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="'1/n' or '1'"):
        SAGram(DIM, SHARE, beta="2")
    with pytest.raises(ValueError, match="population has 7 entities, the measure 40"):
        SAGram(DIM, SHARE).begin(lambda: [(EMBEDDINGS[:7], SHARE[:7], FACTORS[:7])])


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file where the folder should be")
    with pytest.raises(TrainingError, match=r"800 bytes, cannot be written to .*make room"):
        SAGram(DIM, SHARE, file=tmp_path / "work" / "cache.bin")
