"""SOGram, its counters, STORM, and the estimators that do not average."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

from evergram.gramian.averaging_rate import AveragingRate
from evergram.gramian.estimator import EntityBatch
from evergram.gramian.exact import ExactGramian
from evergram.gramian.host_buffers import HostBuffers
from evergram.gramian.kinds import SAGramSettings, SampledSettings, SOGramSettings
from evergram.gramian.sagram import SAGram
from evergram.gramian.sampled import SampledGramian
from evergram.gramian.sogram import SOGram
from evergram.gramian.storm import Storm


def batch(embeddings: Tensor, ids: Tensor) -> EntityBatch:
    n = len(ids)
    return EntityBatch(ids, torch.ones(n).to(embeddings), embeddings[ids], torch.zeros(n, 0))


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_start_is_corrected(decay: float) -> None:
    """One batch again and again: the estimate is that batch's from the first update on."""
    embeddings = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    estimator = SOGram(3, rate=0.01, decay=decay)
    for _ in range(5):
        estimator.update(batch(embeddings, torch.arange(4)))
        torch.testing.assert_close(estimator.gramian(), embeddings.T @ embeddings / 4)


def test_without_the_correction_it_is_short_of_its_start() -> None:
    """[G2] Algorithm 2: (1 − (1 − α)^t) of the batch's Gramian after t of the same batch."""
    embeddings = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    estimator = SOGram(3, rate=0.1, correct_start=False)
    for step in range(1, 6):
        estimator.update(batch(embeddings, torch.arange(4)))
        expected = (1 - 0.9**step) * (embeddings.T @ embeddings / 4)
        torch.testing.assert_close(estimator.gramian(), expected)


@pytest.mark.long
def test_it_is_unbiased_at_fixed_embeddings() -> None:
    draw = torch.Generator().manual_seed(1)
    embeddings = torch.randn(30, 2, generator=draw)
    exact = embeddings.T @ embeddings / 30
    total, runs = torch.zeros(2, 2), 3000
    for _ in range(runs):
        estimator = SOGram(2, rate=0.2)
        for _ in range(6):
            estimator.update(batch(embeddings, torch.randint(30, (4,), generator=draw)))
        total += estimator.gramian()
    # The standard error of one batch's entries is below 1.5/√(4·3000).
    torch.testing.assert_close(total / runs, exact, rtol=0, atol=0.06)


@pytest.mark.long
@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
def test_its_variance_is_that_of_proposition_5(rate: float) -> None:
    draw = torch.Generator().manual_seed(2)
    embeddings = torch.randn(50, 3, generator=draw)
    exact = embeddings.T @ embeddings / 50
    estimator = SOGram(3, rate=rate)
    one, averaged = [], []
    for step in range(20_000):
        rows = torch.randint(50, (5,), generator=draw)
        estimator.update(batch(embeddings, rows))
        if step > 500:
            single = embeddings[rows].T @ embeddings[rows] / 5
            one.append((single - exact).square().sum())
            averaged.append((estimator.gramian() - exact).square().sum())
    ratio = float(torch.stack(averaged).mean() / torch.stack(one).mean())
    assert ratio == pytest.approx(rate / (2 - rate), rel=0.15)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 1.0), st.integers(1, 60), st.floats(0.0, 0.2), st.integers(0, 10**6))
def test_its_bias_keeps_to_the_bound_of_proposition_5(
    rate: float, steps: int, speed: float, seed: int
) -> None:
    """Full batches, so that there is no noise: what is left is the lag, at most δ(1/α − 1)."""
    draw = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(6, 3, dtype=torch.float64, generator=draw)
    estimator = SOGram(3, rate=rate).double()
    ids, moved, last = torch.arange(6), 0.0, None
    exact = embeddings.T @ embeddings / 6
    for _ in range(steps):
        embeddings = embeddings + speed * torch.randn(6, 3, dtype=torch.float64, generator=draw)
        exact = embeddings.T @ embeddings / 6
        moved = max(moved, 0.0 if last is None else float((exact - last).norm()))
        last = exact
        estimator.update(batch(embeddings, ids))
    # The start is corrected, so that Prop. 5's second term is not there.
    assert float((estimator.gramian() - exact).norm()) <= moved * (1 / rate - 1) + 1e-9


@pytest.mark.long
def test_at_fixed_embeddings_it_is_unbiased_and_averages() -> None:
    draw = torch.Generator().manual_seed(0)
    total, runs = torch.zeros(DIM, DIM + K), 300
    for _ in range(runs):
        estimator = Storm(DIM, K, 0.05)
        for _ in range(40):
            estimator.update(rows(torch.randint(N, (4,), generator=draw), 1.0, 1.0))
        total += estimator.moment().dense
    torch.testing.assert_close(total / runs, naive_moment(), rtol=0, atol=0.1)


def test_it_follows_what_moves_where_an_average_lags() -> None:
    draw = torch.Generator().manual_seed(1)
    storm, average = Storm(DIM, K, 0.05), SOGram(DIM, K, 0.05)
    errors = torch.zeros(2)
    for step in range(200):
        now, past = 1 + 0.05 * step, 1 + 0.05 * (step - 1)
        batch = rows(torch.randint(N, (20,), generator=draw), now, past if step else None)
        for i, estimator in enumerate((storm, average)):
            estimator.update(batch)
            if step >= 100:
                exact = naive_moment(now)
                errors[i] += (estimator.moment().dense - exact).norm() / exact.norm()
    assert errors[0] < 0.5 * errors[1]


def test_a_batch_without_a_past_is_averaged_as_sogram_does() -> None:
    """As the first batch of an epoch, whose rows were not encoded before the last step."""
    storm = Storm(DIM, K, 0.25)
    storm.update(rows(torch.arange(10)))
    first = storm.moment().dense
    storm.update(rows(torch.arange(10, 20), 2.0))
    other = Storm(DIM, K)
    other.update(rows(torch.arange(10, 20), 2.0))
    torch.testing.assert_close(storm.moment().dense, 0.75 * first + 0.25 * other.moment().dense)


def test_each_step_is_the_population_of_that_step_alone() -> None:
    estimator = ExactGramian(DIM, K)
    for scale in (5.0, 1.0):
        estimator.begin(population(scale))
        estimator.update(rows(torch.arange(3), 9.0))
    torch.testing.assert_close(estimator.moment().dense, naive_moment())


def test_a_batch_smaller_than_the_dim_is_kept_as_rows() -> None:
    for size, pairs in ((DIM - 1, True), (DIM, False)):
        estimator = SampledGramian(DIM, K)
        estimator.update(rows(torch.arange(size)))
        assert (estimator.moment().matrix is None) == pairs


@pytest.mark.parametrize("size", [3, 12])
def test_matrix_and_rows_give_the_same_products(size: int) -> None:
    forms = [SampledGramian(DIM, K, form) for form in ("gramian", "pairs")]
    for estimator in forms:
        estimator.update(rows(torch.arange(20)))
        estimator.update(rows(torch.arange(size)))  # only the last batch counts
    matrix, pairs = (estimator.moment() for estimator in forms)
    assert matrix.matrix is not None
    assert pairs.matrix is None
    torch.testing.assert_close(pairs.push(EMBEDDINGS), matrix.push(EMBEDDINGS))
    torch.testing.assert_close(pairs.pull(FACTORS), matrix.pull(FACTORS))
    torch.testing.assert_close(pairs.dense, matrix.dense)


def test_counters_stay_and_all_else_moves() -> None:
    rate = AveragingRate(torch.Size([2, 2]), "auto")
    share = torch.full((3,), 1 / 3)
    for module in (SOGram(2), Storm(2), SAGram(2, share), rate):
        module.to("meta")
        for part in module.modules():
            assert isinstance(part, HostBuffers)
            for name, buffer in part.named_buffers(recurse=False):
                assert (buffer.device.type == "cpu") == (name in part.on_host), name
                assert not (name in part.on_host and buffer.ndim)


def test_counters_are_part_of_the_state() -> None:
    one, other = (AveragingRate(torch.Size([1, 1]), 0.5, decay=0.5) for _ in range(2))
    one.skip()
    one.skip()
    other.to(torch.float64).load_state_dict(one.state_dict())
    assert int(other.steps) == 2
    assert float(other()) == float(one()) == pytest.approx(0.5 * 3**-0.5)


def test_a_cache_larger_than_the_memory_is_kept_on_disk(tmp_path: Path) -> None:
    file = tmp_path / "cache.bin"
    size = 4 * len(SHARE) * DIM / 2**20  # MiB
    for memory, kept in ((2 * size, None), (size / 2, file)):
        estimator = SAGramSettings(memory=memory).build(DIM, SHARE, FACTORS, file)
        assert isinstance(estimator, SAGram)
        assert estimator.file == kept
        assert file.exists() == (kept is not None)


def test_settings_reach_the_estimator() -> None:
    sogram = SOGramSettings(rate=0.5, decay=0.25).build(DIM, SHARE, FACTORS)
    assert isinstance(sogram, SOGram)
    assert (float(sogram.rate()), sogram.rate.decay) == (0.5, 0.25)
    sampled = SampledSettings(form="pairs").build(DIM, SHARE, FACTORS)
    assert isinstance(sampled, SampledGramian)
    assert sampled.form == "pairs"
    # β is text, and a recipe may write the number 1.
    assert SAGramSettings.model_validate({"beta": 1}).beta == "1"
