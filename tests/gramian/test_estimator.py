"""What every Gramian estimator does, the sums that they share, and how each kind averages."""

from __future__ import annotations

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
from tests.support.subclasses import concrete_subclasses
from torch import Tensor

import evergram.gramian
from evergram.gramian.estimator import (
    EntityBatch,
    ExactGramian,
    GramianEstimator,
    HostBuffers,
    SampledGramian,
    batch_moment,
    batch_noise,
    projected,
)
from evergram.gramian.kinds import (
    ESTIMATORS,
    BatchEstimatorSettings,
    EstimatorSettings,
    SAGramSettings,
    SOGramSettings,
)
from evergram.gramian.sagram import SAGram
from evergram.gramian.sogram import (
    FASTEST,
    NOISE_EVERY,
    RATES,
    SLOWEST,
    UNSEEN,
    WINDOW,
    AdaptiveSOGram,
    AveragingRate,
    SOGram,
    best_rate,
)

# Every kind as a recipe makes it by default, and the settings of ours that take another way.
SETTINGS: dict[str, EstimatorSettings] = {
    **{kind: settings() for kind, settings in ESTIMATORS.items()},
    "sagram, 1": SAGramSettings(beta="1"),
    "sogram, 0.05": SOGramSettings(rate=0.05),
}


# `GramianPenalty` makes this one for a loop that has no corpus; no recipe names them.
OF_THE_PENALTY = {"AdaptiveSOGram"}


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

    def test_a_moment_handed_out_never_changes(self, kind: str) -> None:
        estimator = make(kind)
        estimator.begin(population())
        estimator.update(rows(torch.arange(10)))
        earlier = estimator.moment()
        copy = earlier.dense.clone()
        estimator.begin(population(2.0))
        estimator.update(rows(torch.arange(5, 15), 2.0))
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
            first.update(rows(ids, 1 + step / 100))
        second.load_state_dict(first.state_dict())
        for estimator in (first, second):
            estimator.begin(population(1.7))
            for _ in range(40):
                estimator.update(rows(torch.arange(30, 40), 1.7))
        assert torch.equal(first.moment().dense, second.moment().dense)

    def test_its_gramian_is_symmetric_and_positive_semi_definite(self, kind: str) -> None:
        estimator = make(kind)
        draw = torch.Generator().manual_seed(4)
        estimator.begin(population())
        for step in range(30):
            ids = torch.randint(N, (3,), generator=draw)
            # Shrinking fast: what is subtracted outweighs what is added.
            estimator.update(rows(ids, 0.7**step))
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


def test_the_noise_of_a_batch_is_estimated_from_that_batch() -> None:
    draw = torch.Generator().manual_seed(2)
    moments, estimates = [], []
    for _ in range(4000):
        batch = rows(torch.randint(N, (16,), generator=draw))
        moment = batch_moment(batch)
        moments.append(moment)
        estimates.append(float(batch_noise(batch, moment)))
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
        estimator._sum_cache()
        estimator.update(rows(torch.randint(N, (4,), generator=draw)))
        total += estimator.moment().dense
    torch.testing.assert_close(total / runs, naive_moment(), rtol=0, atol=0.08)


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


def batch(embeddings: Tensor, ids: Tensor) -> EntityBatch:
    n = len(ids)
    return EntityBatch(ids, torch.ones(n).to(embeddings), embeddings[ids], torch.zeros(n, 0))


def test_the_start_is_corrected() -> None:
    """One batch again and again: the estimate is that batch's from the first update on."""
    embeddings = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    estimator = SOGram(3, rate=0.01)
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


def test_each_step_is_the_population_of_that_step_alone() -> None:
    estimator = ExactGramian(DIM, K)
    for scale in (5.0, 1.0):
        estimator.begin(population(scale))
        estimator.update(rows(torch.arange(3), 9.0))
    torch.testing.assert_close(estimator.moment().dense, naive_moment())


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
    for module in (SOGram(2), SAGram(2, share), rate):
        module.to("meta")
        for part in module.modules():
            assert isinstance(part, HostBuffers)
            for name, buffer in part.named_buffers(recurse=False):
                assert (buffer.device.type == "cpu") == (name in part.on_host), name
                assert not (name in part.on_host and buffer.ndim)


WIDTH, MANY, B = 6, 300, 32


def drawn_batch(embeddings: Tensor, draw: torch.Generator) -> EntityBatch:
    ids = torch.randint(len(embeddings), (B,), generator=draw)
    drawn = embeddings[ids]
    return EntityBatch(ids, torch.ones(B), drawn, drawn[:, :0])


def errors(speed: float, steps: int = 400) -> tuple[float, list[float]]:
    """Return the mean error over the last quarter: of the adaptive rate, and of every fixed one."""
    draw = torch.Generator().manual_seed(0)
    embeddings = torch.randn(MANY, WIDTH, generator=draw)
    turn = torch.randn(WIDTH, WIDTH, generator=draw)
    turn = torch.linalg.matrix_exp(speed * (turn - turn.T))  # the spectrum stays, axes move
    stretch = torch.linspace(0.3, 2, WIDTH)
    axes = torch.eye(WIDTH)
    adaptive, fixed = AdaptiveSOGram(WIDTH), [SOGram(WIDTH, 0, rate) for rate in RATES]
    totals = torch.zeros(len(RATES) + 1)
    for step in range(steps):
        axes = axes @ turn
        now = embeddings * stretch @ axes
        drawn = drawn_batch(now, draw)
        for estimator in (adaptive, *fixed):
            estimator.update(drawn)
        if step >= 0.75 * steps:
            exact = now.T @ now / MANY
            estimates = torch.stack([e.gramian() for e in (adaptive, *fixed)])
            totals += (estimates - exact).flatten(1).norm(dim=1) / exact.norm()
    mean = totals / (0.25 * steps)
    return float(mean[0]), mean[1:].tolist()


@pytest.mark.parametrize("speed", [0.0, 0.002, 0.01, 0.05])
def test_the_chosen_rate_is_near_the_best_fixed_one(speed: float) -> None:
    adaptive, fixed = errors(speed)
    assert adaptive < 1.25 * min(fixed) + 0.01
    assert adaptive < 0.5 * max(fixed)


def test_a_slow_drift_in_a_short_training_is_not_missed() -> None:
    """Rate "auto" models the drift from windows of 32 batches, in which this one does not show."""
    adaptive, fixed = errors(0.004, steps=300)
    slowest = fixed[-1]
    assert slowest > 2 * min(fixed)
    assert adaptive < 1.25 * min(fixed) + 0.005


def test_embeddings_that_shrink_do_not_leave_the_choice_to_the_past() -> None:
    draw = torch.Generator().manual_seed(1)
    embeddings = torch.randn(MANY, WIDTH, generator=draw)
    estimator = AdaptiveSOGram(WIDTH)
    for step in range(400):  # shrinks tenfold, and then rests
        scale = 0.96 ** min(step, 60)
        estimator.update(drawn_batch(scale * embeddings, draw))
    exact = scale**2 * embeddings.T @ embeddings / MANY
    assert float((estimator.gramian() - exact).norm() / exact.norm()) < 0.1
    assert estimator.rate < 0.3


def test_batches_of_zeros_leave_it_finite() -> None:
    estimator = AdaptiveSOGram(2)
    zeros, ones = (torch.full((3, 2), value) for value in (0.0, 1.0))
    for drawn in (ones, zeros, zeros, ones):
        estimator.update(EntityBatch(torch.arange(3), torch.ones(3), drawn, drawn[:, :0]))
        assert bool(torch.isfinite(estimator.gramian()).all())


def test_the_rate_that_is_shown_is_that_of_the_estimate() -> None:
    draw = torch.Generator().manual_seed(0)
    embeddings = torch.randn(MANY, WIDTH, generator=draw)
    adaptive = AdaptiveSOGram(WIDTH)
    fixed = {rate: SOGram(WIDTH, 0, rate) for rate in RATES}
    for _ in range(50):
        drawn = drawn_batch(embeddings, draw)
        for estimator in (adaptive, *fixed.values()):
            estimator.update(drawn)
    torch.testing.assert_close(adaptive.gramian(), fixed[adaptive.rate].gramian())


SHAPE = torch.Size((2, 2))


@pytest.mark.parametrize("rate", [0.0, 1.5, "fast"])
def test_a_rate_outside_its_range_is_refused(rate: float | str) -> None:
    with pytest.raises(ValueError, match="it must be in"):
        AveragingRate(SHAPE, rate)


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
    def settled(self, noise: float, drift: float) -> float:
        """The rate after moments of known noise and drift."""
        draw = torch.Generator().manual_seed(0)
        shape = torch.Size((4, 4))
        rate = AveragingRate(shape, "auto")
        direction = torch.full(shape, 0.25)  # of norm 1
        for step in range(3000):
            moment = noise / 4 * torch.randn(shape, generator=draw) + drift * step * direction
            rate.observe(moment, torch.tensor(noise**2))
        return float(rate())

    @pytest.mark.parametrize(("noise", "drift"), [(1.0, 0.01), (1.0, 0.05), (3.0, 0.05)])
    def test_it_is_the_minimum_of_the_bound(self, noise: float, drift: float) -> None:
        assert self.settled(noise, drift) == pytest.approx(
            float(best_rate(noise**2, drift**2)), rel=0.25
        )

    def test_it_is_slow_where_nothing_moves_and_fast_where_all_does(self) -> None:
        assert self.settled(1.0, 0.0) < 0.05
        assert self.settled(0.0, 1.0) == pytest.approx(FASTEST)

    @given(st.floats(0, 1e6), st.floats(0, 1e6))
    def test_no_rate_on_a_finer_grid_is_much_better(self, variance: float, drift: float) -> None:
        def error(a: float) -> float:
            return variance * a / (2 - a) + drift * (1 / a - 1) ** 2

        chosen = float(best_rate(variance, drift))
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
