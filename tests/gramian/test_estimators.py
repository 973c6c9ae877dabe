"""What every estimator keeps to, whichever it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.subclasses import concrete_subclasses
from torch import Tensor

import evergram.gramian
from evergram.gramian.estimator import (
    EntityBatch,
    GramianEstimator,
    Population,
    batch_moment,
    batch_noise,
    exact_moment,
    projected,
)
from evergram.gramian.kinds import (
    ESTIMATORS,
    EstimatorSettings,
    SAGramSettings,
    SampledSettings,
    SOGramSettings,
    StormSettings,
)
from evergram.gramian.sagram import SAGram
from evergram.gramian.sampled import SampledGramian
from evergram.gramian.sogram import SOGram
from evergram.gramian.storm import Storm

DIM, N, K = 5, 40, 2


def world(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings [N, D], a measure [N] and factors [N, K]."""
    draw = torch.Generator().manual_seed(seed)
    share = torch.rand(N, generator=draw)
    factors = torch.randn(N, K, generator=draw)
    return torch.randn(N, DIM, generator=draw), share / share.sum(), factors


EMBEDDINGS, SHARE, FACTORS = world()
# Every kind as a recipe makes it by default, and the settings of ours that take another way.
SETTINGS: dict[str, EstimatorSettings] = {
    **{kind: settings() for kind, settings in ESTIMATORS.items()},
    "sampled, pairs": SampledSettings(form="pairs"),
    "sagram, 1": SAGramSettings(beta="1"),
    "sogram, 0.05": SOGramSettings(rate=0.05),
    "sogram, decay": SOGramSettings(rate=0.5, decay=0.6),
    "storm, 0.1": StormSettings(rate=0.1),
}


# `GramianPenalty` makes these for a loop that has no corpus; no recipe names them.
OF_THE_PENALTY = {"AdaptiveSOGram", "GrowingSAGram"}


def make(name: str) -> GramianEstimator:
    return SETTINGS[name].build(DIM, SHARE, FACTORS)


def population(scale: float = 1.0) -> Population:
    parts = (slice(0, 7), slice(7, None))
    return lambda: [(scale * EMBEDDINGS[p], SHARE[p], FACTORS[p]) for p in parts]


def rows(ids: Tensor, scale: float = 1.0, before: float | None = None) -> EntityBatch:
    """A batch drawn uniformly, standing for SHARE."""
    weights = SHARE[ids] * N
    past = None if before is None else before * EMBEDDINGS[ids]
    return EntityBatch(ids, weights, scale * EMBEDDINGS[ids], FACTORS[ids], past)


def naive(scale: float = 1.0) -> Tensor:
    total = torch.zeros(DIM, DIM + K)
    for i in range(N):
        u = scale * EMBEDDINGS[i]
        total += SHARE[i] * torch.outer(u, torch.cat([u, FACTORS[i]]))
    return total


def test_every_estimator_of_the_package_is_in_the_table() -> None:
    ours = concrete_subclasses(evergram.gramian, GramianEstimator)
    kinds = {each for each in ours if each.__name__ not in OF_THE_PENALTY}
    assert {type(make(kind)) for kind in ESTIMATORS} == kinds


@pytest.mark.parametrize("kind", SETTINGS)
class TestEstimator:
    def test_the_whole_population_at_once_gives_the_moment(self, kind: str) -> None:
        estimator = make(kind)
        estimator.begin(population())
        estimator.update(rows(torch.arange(N)))
        torch.testing.assert_close(estimator.moment().dense, naive(), rtol=1e-5, atol=1e-6)
        assert estimator.gramian().shape == (DIM, DIM)
        assert estimator.moment().cross.shape == (DIM, K)

    @pytest.mark.parametrize("before", [1.0, None])
    def test_a_moment_handed_out_never_changes(self, kind: str, before: float | None) -> None:
        estimator = make(kind)
        estimator.begin(population())
        estimator.update(rows(torch.arange(10)))
        held = estimator.moment()
        copy = held.dense.clone()
        estimator.begin(population(2.0))
        estimator.update(rows(torch.arange(5, 15), 2.0, before))
        assert torch.equal(held.dense, copy)
        assert not torch.equal(estimator.moment().dense, copy)
        assert not held.dense.requires_grad

    def test_multiplying_by_it_is_multiplying_by_its_matrix(self, kind: str) -> None:
        estimator = make(kind)
        estimator.begin(population())
        estimator.update(rows(torch.arange(3)))
        found, u = estimator.moment(), EMBEDDINGS[:4]
        torch.testing.assert_close(found.push(u), u @ found.gramian, rtol=1e-5, atol=1e-6)
        for width in (1, K):
            pulled = FACTORS[:4, :width] @ found.cross[:, :width].T
            torch.testing.assert_close(
                found.pull(FACTORS[:4, :width]), pulled, rtol=1e-5, atol=1e-6
            )

    def test_state_dict_is_all_there_is(self, kind: str) -> None:
        first, second = make(kind), make(kind)
        draw = torch.Generator().manual_seed(3)
        first.begin(population())
        for step in range(70):  # more than two windows of the automatic rate
            ids = torch.randint(N, (8,), generator=draw)
            first.update(rows(ids, 1 + step / 100, 1 + (step - 1) / 100))
        second.load_state_dict(first.state_dict())
        for estimator in (first, second):
            estimator.begin(population(1.7))
            for _ in range(40):
                estimator.update(rows(torch.arange(30, 40), 1.7, 1.69))
        assert torch.equal(first.moment().dense, second.moment().dense)

    def test_its_gramian_is_symmetric_and_positive_semi_definite(self, kind: str) -> None:
        estimator = make(kind)
        draw = torch.Generator().manual_seed(4)
        estimator.begin(population())
        for step in range(30):
            ids = torch.randint(N, (3,), generator=draw)
            # Shrinking fast: what is subtracted outweighs what is added.
            estimator.update(rows(ids, 0.7**step, 0.7 ** (step - 1)))
            found = estimator.gramian()
            torch.testing.assert_close(found, found.T, rtol=1e-4, atol=1e-6)
            assert float(torch.linalg.eigvalsh(found)[0]) > -1e-5

    def test_it_tells_its_size(self, kind: str) -> None:
        assert make(kind).state_bytes >= 4 * DIM * (DIM + K)

    def test_it_says_whether_it_learns_from_batches(self, kind: str) -> None:
        estimator = make(kind)
        estimator.begin(population())
        before = estimator.moment().dense
        estimator.update(rows(torch.arange(10), 3.0))
        learned = not torch.equal(estimator.moment().dense, before)
        assert learned == SETTINGS[kind].learns_from_batches
        assert learned != estimator.exact


def test_averages_hold_one_matrix_and_sagram_every_embedding() -> None:
    for kind in ("sogram, 0.05", "storm, 0.1", "exact"):
        assert make(kind).state_bytes < 4 * DIM * (DIM + K) + 64
    assert make("sagram").state_bytes >= 4 * N * DIM


def test_an_empty_population_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        exact_moment(list)


def test_projection_keeps_what_is_positive_and_the_factors() -> None:
    matrix = naive()
    torch.testing.assert_close(projected(matrix), matrix)
    bent = matrix.clone()
    values, vectors = torch.linalg.eigh(bent[:, :DIM])
    values[0] = -1.0
    bent[:, :DIM] = (vectors * values) @ vectors.T
    found = projected(bent)
    values[0] = 0.0
    torch.testing.assert_close(found[:, :DIM], (vectors * values) @ vectors.T, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[:, DIM:], bent[:, DIM:])


def test_pairs_are_chosen_below_the_dim() -> None:
    for size, pairs in ((DIM - 1, True), (DIM, False)):
        estimator = SampledGramian(DIM, K)
        estimator.update(rows(torch.arange(size)))
        assert (estimator.moment().matrix is None) == pairs


class TestSAGram:
    def mean(self, estimator: SAGram) -> Tensor:
        u = estimator.cache.double()
        right = torch.cat([u, FACTORS.double()], dim=1)
        return (u * SHARE.double()[:, None]).T @ right

    @pytest.mark.parametrize("beta", ["1/n", "1"])
    def test_the_sum_is_that_of_the_cache_after_batches_with_duplicates(self, beta: str) -> None:
        estimator = SAGram(DIM, SHARE, FACTORS, beta)
        estimator.begin(population())
        draw = torch.Generator().manual_seed(0)
        now = EMBEDDINGS.clone()
        for _ in range(300):
            now = now + 0.1 * torch.randn(N, DIM, generator=draw)
            ids = torch.randint(N, (12,), generator=draw) // 3  # many twice
            weights = torch.ones(12)
            estimator.update(EntityBatch(ids, weights, now[ids], FACTORS[ids]))
        torch.testing.assert_close(estimator.total, self.mean(estimator), rtol=1e-4, atol=1e-5)
        if beta == "1/n":
            torch.testing.assert_close(estimator.moment().dense.double(), estimator.total)

    @pytest.mark.long
    def test_beta_1_is_unbiased_before_it_is_projected(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
        torch.testing.assert_close(total / runs, naive(), rtol=0, atol=0.08)

    def test_growth(self) -> None:
        old = 30
        share = SHARE[:old] / SHARE[:old].sum()
        estimator = SAGram(DIM, share, FACTORS[:old])
        estimator.begin(lambda: [(EMBEDDINGS[:old], share, FACTORS[:old])])
        estimator.grow(SHARE, FACTORS, EMBEDDINGS[old:])
        torch.testing.assert_close(estimator.moment().dense, naive(), rtol=1e-5, atol=1e-6)
        estimator.update(rows(torch.tensor([35, 2, 35]), 2.0))
        torch.testing.assert_close(estimator.total, self.mean(estimator), rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="needs 41 shares, not 40"):
            estimator.grow(SHARE, FACTORS, EMBEDDINGS[:1])

    def test_a_cache_on_disk_is_the_same(self, tmp_path: Path) -> None:
        file = tmp_path / "work" / "cache.bin"
        found = [SAGram(DIM, SHARE, FACTORS, "1", file=f) for f in (None, file)]
        for estimator in found:
            estimator.begin(population())
            estimator.update(rows(torch.tensor([1, 2, 1]), 3.0))
            estimator.to(torch.float32)
        assert torch.equal(found[0].moment().dense, found[1].moment().dense)
        assert file.stat().st_size == 4 * N * DIM
        on_disk = torch.from_file(str(file), size=N * DIM).view(N, DIM)
        assert torch.equal(on_disk, found[0].cache)

    def test_rounding_is_taken_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("evergram.gramian.sagram.REFRESH", 3)
        estimator = SAGram(DIM, SHARE, FACTORS)
        estimator.begin(population())
        estimator.total += 1.0  # as if rounding had added up
        for _ in range(3):
            estimator.update(rows(torch.arange(4)))
        torch.testing.assert_close(estimator.moment().dense, naive(), rtol=1e-5, atol=1e-6)

    def test_what_is_refused(self) -> None:
        with pytest.raises(ValueError, match="'1/n' or '1'"):
            SAGram(DIM, SHARE, beta="2")
        with pytest.raises(ValueError, match="population has 7 entities, the measure 40"):
            SAGram(DIM, SHARE).begin(lambda: [(EMBEDDINGS[:7], SHARE[:7], FACTORS[:7])])


class TestStorm:
    @pytest.mark.long
    def test_at_fixed_embeddings_it_is_unbiased_and_averages(self) -> None:
        draw = torch.Generator().manual_seed(0)
        total, runs = torch.zeros(DIM, DIM + K), 300
        for _ in range(runs):
            estimator = Storm(DIM, K, 0.05)
            for _ in range(40):
                estimator.update(rows(torch.randint(N, (4,), generator=draw), 1.0, 1.0))
            total += estimator.moment().dense
        torch.testing.assert_close(total / runs, naive(), rtol=0, atol=0.1)

    def test_it_follows_what_moves_where_an_average_lags(self) -> None:
        draw = torch.Generator().manual_seed(1)
        storm, average = Storm(DIM, K, 0.05), SOGram(DIM, K, 0.05)
        errors = torch.zeros(2)
        for step in range(200):
            now, past = 1 + 0.05 * step, 1 + 0.05 * (step - 1)
            batch = rows(torch.randint(N, (20,), generator=draw), now, past if step else None)
            for i, estimator in enumerate((storm, average)):
                estimator.update(batch)
                if step >= 100:
                    errors[i] += (estimator.moment().dense - naive(now)).norm() / naive(now).norm()
        assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("pairs", [False, True])
def test_the_noise_of_a_batch_is_told_from_the_batch_alone(pairs: bool) -> None:
    draw = torch.Generator().manual_seed(2)
    moments, told = [], []
    for _ in range(4000):
        batch = rows(torch.randint(N, (16,), generator=draw))
        if pairs:
            before = 0.9 * batch.embeddings + 0.1 * EMBEDDINGS[0]
            batch = EntityBatch(batch.ids, batch.weights, batch.embeddings, batch.factors, before)
            moment = batch_moment(batch) - batch_moment(batch, before)
        else:
            moment = batch_moment(batch)
        moments.append(moment)
        told.append(float(batch_noise(batch, moment, pairs=pairs)))
    every = torch.stack(moments)
    variance = float((every - every.mean(0)).square().sum((1, 2)).mean())
    assert sum(told) / len(told) == pytest.approx(variance, rel=0.05)
