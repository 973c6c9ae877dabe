"""The behaviour that every Gramian estimator has, and the sums that they share."""

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
from tests.support.subclasses import concrete_subclasses
from torch import Tensor

import evergram.gramian
from evergram.errors import TrainingError
from evergram.gramian.estimator import (
    EntityBatch,
    GramianEstimator,
    batch_moment,
    batch_noise,
    exact_moment,
    projected,
)
from evergram.gramian.kinds import (
    ESTIMATORS,
    BatchEstimatorSettings,
    EstimatorSettings,
    SAGramSettings,
    SampledSettings,
    SOGramSettings,
    StormSettings,
)
from evergram.gramian.sagram import SAGram

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
        torch.testing.assert_close(estimator.moment().dense, naive_moment(), rtol=1e-5, atol=1e-6)
        assert estimator.gramian().shape == (DIM, DIM)
        assert estimator.moment().cross.shape == (DIM, K)

    @pytest.mark.parametrize("before", [1.0, None])
    def test_a_moment_handed_out_never_changes(self, kind: str, before: float | None) -> None:
        estimator = make(kind)
        estimator.begin(population())
        estimator.update(rows(torch.arange(10)))
        earlier = estimator.moment()
        copy = earlier.dense.clone()
        estimator.begin(population(2.0))
        estimator.update(rows(torch.arange(5, 15), 2.0, before))
        assert torch.equal(earlier.dense, copy)
        assert not torch.equal(estimator.moment().dense, copy)
        assert not earlier.dense.requires_grad

    def test_multiplying_by_it_is_multiplying_by_its_matrix(self, kind: str) -> None:
        estimator = make(kind)
        estimator.begin(population())
        estimator.update(rows(torch.arange(3)))
        moment, u = estimator.moment(), EMBEDDINGS[:4]
        torch.testing.assert_close(moment.push(u), u @ moment.gramian, rtol=1e-5, atol=1e-6)
        for width in (1, K):
            pulled = FACTORS[:4, :width] @ moment.cross[:, :width].T
            torch.testing.assert_close(
                moment.pull(FACTORS[:4, :width]), pulled, rtol=1e-5, atol=1e-6
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
            gramian = estimator.gramian()
            torch.testing.assert_close(gramian, gramian.T, rtol=1e-4, atol=1e-6)
            assert float(torch.linalg.eigvalsh(gramian)[0]) > -1e-5

    def test_its_settings_say_whether_it_learns_from_batches(self, kind: str) -> None:
        estimator = make(kind)
        estimator.begin(population())
        before = estimator.moment().dense
        estimator.update(rows(torch.arange(10), 3.0))
        learned = not torch.equal(estimator.moment().dense, before)
        assert learned == isinstance(SETTINGS[kind], BatchEstimatorSettings)
        assert learned != estimator.exact


def test_an_empty_population_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        exact_moment(list)


def test_projection_keeps_what_is_positive_and_the_factors() -> None:
    matrix = naive_moment()
    torch.testing.assert_close(projected(matrix), matrix)
    bent = matrix.clone()
    values, vectors = torch.linalg.eigh(bent[:, :DIM])
    values[0] = -1.0
    bent[:, :DIM] = (vectors * values) @ vectors.T
    psd = projected(bent)
    values[0] = 0.0
    torch.testing.assert_close(psd[:, :DIM], (vectors * values) @ vectors.T, rtol=1e-4, atol=1e-5)
    assert torch.equal(psd[:, DIM:], bent[:, DIM:])


@pytest.mark.parametrize("pairs", [False, True])
def test_the_noise_of_a_batch_is_estimated_from_that_batch(pairs: bool) -> None:
    draw = torch.Generator().manual_seed(2)
    moments, estimates = [], []
    for _ in range(4000):
        batch = rows(torch.randint(N, (16,), generator=draw))
        if pairs:
            before = 0.9 * batch.embeddings + 0.1 * EMBEDDINGS[0]
            batch = EntityBatch(batch.ids, batch.weights, batch.embeddings, batch.factors, before)
            moment = batch_moment(batch) - batch_moment(batch, before)
        else:
            moment = batch_moment(batch)
        moments.append(moment)
        estimates.append(float(batch_noise(batch, moment, pairs=pairs)))
    every = torch.stack(moments)
    variance = float((every - every.mean(0)).square().sum((1, 2)).mean())
    assert sum(estimates) / len(estimates) == pytest.approx(variance, rel=0.05)


def test_the_moment_of_a_batch_that_is_shared_unequally_is_the_whole_ones() -> None:
    draw = torch.Generator().manual_seed(0)
    u, weights = torch.randn(10, 3, generator=draw).double(), torch.rand(10, generator=draw)
    ids, none = torch.arange(10), u[:, :0]
    whole = batch_moment(EntityBatch(ids, weights, u, none))
    part = slice(0, 3), slice(3, 10)
    first, second = (
        batch_moment(EntityBatch(ids[s], weights[s], u[s], none[s], whole_size=10)) for s in part
    )
    torch.testing.assert_close(first + second, whole)


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
