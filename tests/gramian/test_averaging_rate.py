"""The averaging rate: fixed, decaying, or the minimum of Proposition 5's bound."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evergram.gramian.averaging_rate import (
    FASTEST,
    NOISE_EVERY,
    SLOWEST,
    UNSEEN,
    WINDOW,
    AveragingRate,
    best_rate,
)
from evergram.gramian.estimator import EntityBatch
from evergram.gramian.sogram import SOGram
from evergram.gramian.storm import Storm

SHAPE = torch.Size((2, 2))


@pytest.mark.parametrize("rate", [0.0, 1.5, "fast"])
def test_a_rate_outside_its_range_is_refused(rate: float | str) -> None:
    with pytest.raises(ValueError, match=rf"rate is {rate}; it must lie in \(0, 1\] or be 'auto'"):
        AveragingRate(SHAPE, rate)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=rf"rate is {decay}; it must lie in \[0, 1\)"):
        AveragingRate(SHAPE, 0.5, decay)


def test_the_rate_of_step_t_is_alpha_times_t_to_the_minus_decay() -> None:
    rate = AveragingRate(SHAPE, 0.5, 0.5)
    rates = []
    for _ in range(4):
        rates.append(float(rate()))
        rate.skip()
    assert rates == pytest.approx([0.5, 0.5 / 2**0.5, 0.5 / 3**0.5, 0.25])


def test_an_automatic_rate_waits_for_two_windows() -> None:
    rate = AveragingRate(SHAPE, "auto", start=0.07)
    for _ in range(2 * WINDOW - 1):
        rate.observe(torch.ones(SHAPE), torch.tensor(1.0))
        assert float(rate()) == 0.07
    rate.observe(torch.ones(SHAPE), torch.tensor(1.0))
    # Nothing moved; but two windows of independent batches would not show a drift as large as this.
    unseen = UNSEEN * 2 / WINDOW**3
    assert float(rate()) == pytest.approx(float(best_rate(1.0, unseen)))
    for _ in range(WINDOW):
        rate.observe(torch.ones(SHAPE), torch.tensor(1.0))
    assert float(rate()) == pytest.approx(SLOWEST)  # the third shows that windows have no noise


def test_noise_is_read_of_one_batch_in_some_and_asked_for_there() -> None:
    often, seldom = (AveragingRate(SHAPE, "auto") for _ in range(2))
    draw = torch.Generator().manual_seed(0)
    asked = 0
    for _ in range(5 * WINDOW):
        moment, noise = torch.randn(SHAPE, generator=draw), torch.tensor(float(SHAPE.numel()))
        often.observe(moment, noise)
        asked += seldom.wants_noise
        seldom.observe(moment, noise if seldom.wants_noise else None)
    assert asked == 5 * WINDOW // NOISE_EVERY
    assert often() == seldom()
    with pytest.raises(ValueError, match="wants_noise"):
        seldom.observe(torch.ones(SHAPE), None)


class TestAutomaticRate:
    def settled(self, noise: float, drift: float, *, recursive: bool = False) -> float:
        """The rate after moments of known noise and drift."""
        draw = torch.Generator().manual_seed(0)
        shape = torch.Size((4, 4))
        rate = AveragingRate(shape, "auto", recursive=recursive)
        direction = torch.full(shape, 0.25)  # of norm 1
        for step in range(3000):
            moment = noise / 4 * torch.randn(shape, generator=draw) + drift * step * direction
            pairs = torch.tensor(drift**2) if recursive else None
            rate.observe(moment, torch.tensor(noise**2), pairs)
        return float(rate())

    @pytest.mark.parametrize(("noise", "drift"), [(1.0, 0.01), (1.0, 0.05), (3.0, 0.05)])
    def test_it_is_the_minimum_of_the_bound(self, noise: float, drift: float) -> None:
        assert self.settled(noise, drift) == pytest.approx(
            float(best_rate(noise**2, drift**2)), rel=0.25
        )

    def test_it_is_slow_where_nothing_moves_and_fast_where_all_does(self) -> None:
        assert self.settled(1.0, 0.0) < 0.05
        assert self.settled(0.0, 1.0) == pytest.approx(FASTEST)

    @pytest.mark.parametrize("drift", [0.02, 0.1])
    def test_with_pairs_it_is_their_ratio(self, drift: float) -> None:
        assert self.settled(1.0, drift, recursive=True) == pytest.approx(drift, rel=0.25)

    @given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
    def test_no_rate_on_a_finer_grid_is_much_better(
        self, variance: float, drift: float, pairs: float
    ) -> None:
        def error(a: float) -> float:
            recursive = (a * a * variance + (1 - a) ** 2 * pairs) / (1 - (1 - a) ** 2)
            plain = variance * a / (2 - a)
            assert pairs or recursive == pytest.approx(plain, rel=1e-9, abs=1e-300)
            return recursive + drift * (1 / a - 1) ** 2

        chosen = float(best_rate(variance, drift, pairs))
        assert SLOWEST - 1e-9 <= chosen <= FASTEST + 1e-9
        for i in range(500):
            a = SLOWEST * (FASTEST / SLOWEST) ** (i / 499)
            assert error(chosen) <= error(a) * 1.001 + 1e-12


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("speed", [0.0003, 0.01])
def test_a_drift_is_followed_however_batches_are_drawn(replacement: bool, speed: float) -> None:
    """An epoch without replacement gives windows hardly any noise; taken off as if batches were
    independent, it hid the drift, and the rate stayed at its slowest, with an error of 0.26."""
    draw = torch.Generator().manual_seed(0)
    dim, entities, size, rates = 6, 1024, 32, (0.02, 0.03, 0.05, 0.2, 0.3)
    rows = torch.randn(entities, dim, generator=draw) * torch.linspace(0.3, 2, dim)
    turn = torch.randn(dim, dim, generator=draw)
    turn = torch.linalg.matrix_exp(speed * (turn - turn.T))
    estimators = [SOGram(dim, 0, "auto"), *(SOGram(dim, 0, rate) for rate in rates)]
    errors = torch.zeros(len(estimators))
    steps, epoch = 20 * WINDOW, entities // size
    for step in range(steps):
        if step % epoch == 0:
            order = torch.randperm(entities, generator=draw)
            if replacement:
                order = torch.randint(entities, (entities,), generator=draw)
        rows = rows @ turn
        ids = order[(step % epoch) * size :][:size]
        batch = EntityBatch(ids, torch.ones(size), rows[ids], rows[ids, :0])
        exact = rows.T @ rows / entities
        for i, estimator in enumerate(estimators):
            estimator.update(batch)
            if step >= steps // 2:
                errors[i] += (estimator.gramian() - exact).norm() / exact.norm()
    assert float(errors[0]) < 1.15 * float(errors[1:].min())


@pytest.mark.parametrize("per_epoch", [1, 2, 4])
def test_the_first_batch_of_an_epoch_which_has_no_pair_says_nothing_of_drift(
    per_epoch: int,
) -> None:
    """Were it counted as a pair without a difference, α would all but vanish in short epochs."""
    draw = torch.Generator().manual_seed(0)
    rows, moves = torch.randn(400, 8, generator=draw), torch.randn(400, 8, generator=draw)
    estimators = {rate: Storm(8, 0, rate) for rate in ("auto", 0.1)}
    errors = dict.fromkeys(estimators, 0.0)
    before = rows
    for step in range(400):
        ids = torch.randint(400, (200,), generator=draw)
        own = None if step % per_epoch == 0 else before[ids]
        batch = EntityBatch(ids, torch.ones(200), rows[ids], torch.zeros(200, 0), own)
        exact = rows.T @ rows / 400
        for rate, estimator in estimators.items():
            estimator.update(batch)
            if step >= 300:
                errors[rate] += float((estimator.gramian() - exact).norm() / exact.norm()) / 100
        before, rows = rows, rows + 0.01 * moves
    assert errors["auto"] < 1.5 * errors[0.1]
