"""Second moments against sums, and closed forms against other algorithms: rows, descent, luck."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.support.several_processes import ended, start
from tests.support.thread_processes import in_threads
from torch import Tensor

from evergram.compatibility import AlignmentLoss, Chain, fit_by_gradient
from evergram.compatibility.alignment_loss import GradientFit, history_metric
from evergram.compatibility.closed_forms import (
    FOR_RIDGE,
    KINDS,
    PANEL,
    SecondMoments,
    Spectrum,
    affine,
    choose_ridge,
    fit_closed_form,
    moments_by_use,
    pairs_needed,
    polar,
    procrustes,
    reduced_rank,
    ridge,
)
from evergram.compatibility.transforms import LinearTransform, TruncateTransform
from evergram.errors import DataError, ShapeError

SEEDS = st.integers(0, 10**6)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs(seed: int, rows: int, old_dim: int, new_dim: int) -> tuple[Tensor, Tensor]:
    new = randn(seed, rows, new_dim) + 0.7
    return new @ randn(seed + 1, new_dim, old_dim) + randn(seed + 2, rows, old_dim) - 0.4, new


def moments_of(old: Tensor, new: Tensor) -> SecondMoments:
    moments = SecondMoments(old.shape[1], new.shape[1])
    moments.add(old, new)
    return moments


def metric_of(seed: int, dim: int) -> Tensor:
    """S of a history of two steps."""
    return history_metric([randn(seed, 3, 2), randn(seed + 1, 2, dim)], 3)


def with_ridge(old: Tensor, new: Tensor, rho: float) -> Tensor:
    """Least squares on the rows themselves; a ridge is D more rows, √(nρ) I against zeros."""
    more = (len(new) * rho) ** 0.5 * torch.eye(new.shape[1], dtype=torch.float64)
    rows = torch.cat([new, more])
    wanted = torch.cat([old, torch.zeros(len(more), old.shape[1], dtype=torch.float64)])
    solution: Tensor = torch.linalg.lstsq(rows, wanted).solution
    return solution.T


def random_orthonormal(seed: int, old_dim: int, new_dim: int) -> Tensor:
    return polar(randn(seed, old_dim, new_dim))


@pytest.mark.parametrize("rho", [0.0, 0.01, 3.0])
@pytest.mark.parametrize(("old_dim", "new_dim"), [(3, 5), (5, 3), (4, 4)])
def test_ridge_is_least_squares_on_the_rows(old_dim: int, new_dim: int, rho: float) -> None:
    old, new = pairs(0, 40, old_dim, new_dim)
    weight = ridge(Spectrum.of(moments_of(old, new)), rho)
    torch.testing.assert_close(weight, with_ridge(old, new, rho), rtol=1e-8, atol=1e-10)


def test_affine_is_least_squares_with_a_column_of_ones() -> None:
    old, new = pairs(0, 40, 3, 5)
    moments = moments_of(old, new)
    weight, offset = affine(moments, ridge(Spectrum.of(moments, centred=True)))
    wide = torch.cat([new, torch.ones(40, 1, dtype=torch.float64)], dim=1)
    expected = torch.linalg.lstsq(wide, old).solution.T
    torch.testing.assert_close(weight, expected[:, :-1], rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(offset, expected[:, -1], rtol=1e-8, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_single_and_multi_step_share_their_minimiser_without_ridge(seed: int) -> None:
    """Since S ≻ 0 it drops out of S W C = S C_{k-1,k}; with ridge it does not."""
    old, new = pairs(seed, 30, 4, 5)
    moments, metric = moments_of(old, new), metric_of(seed + 9, 4)
    single, multi = Spectrum.of(moments), Spectrum.of(moments, metric)
    torch.testing.assert_close(ridge(multi), ridge(single), rtol=1e-7, atol=1e-8)
    apart = (ridge(multi, 1.0) - ridge(single, 1.0)).norm() / ridge(single, 1.0).norm()
    assert apart > 1e-3


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_multi_step_ridge_is_where_descent_ends(rho: float) -> None:
    """The loss of [BC] Eq. (10) row by row, by autograd and L-BFGS, to its minimum."""
    old, new = pairs(4, 30, 4, 3)
    steps = [randn(1, 3, 2), randn(2, 2, 4)]
    metric = history_metric(steps, 3)
    solved = ridge(Spectrum.of(moments_of(old, new), metric), rho)
    weight = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        delta = new @ weight.T - old
        once = delta @ steps[1].T
        twice = once @ steps[0].T
        squared = sum(d.square().sum(1).mean() for d in (delta, once, twice))
        return squared + rho * weight.square().sum()

    optimizer = torch.optim.LBFGS(
        [weight], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return float(value.detach())

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(solved, weight.detach(), rtol=1e-5, atol=1e-6)
    # The normal equations of method.md.
    new_new, cross, _ = moments_of(old, new).second()
    torch.testing.assert_close(metric @ solved @ new_new + rho * solved, metric @ cross)


class TestSingular:
    """Trap 11: C_kk without an inverse."""

    def test_fewer_rows_than_dims_give_the_solution_of_least_norm(self) -> None:
        old, new = pairs(0, 4, 3, 9)
        weight = ridge(Spectrum.of(moments_of(old, new)))
        torch.testing.assert_close(weight, (torch.linalg.pinv(new) @ old).T, rtol=1e-6, atol=1e-8)

    def test_constant_and_repeated_columns(self) -> None:
        old, new = pairs(0, 40, 3, 5)
        new[:, 1], new[:, 3] = 1000.1, new[:, 0]
        moments = moments_of(old, new)
        uncentred = ridge(Spectrum.of(moments))
        torch.testing.assert_close(
            uncentred, (torch.linalg.pinv(new) @ old).T, rtol=1e-4, atol=1e-6
        )
        # About the means the constant column is nothing but rounding, and must count for nothing.
        weight, _ = affine(moments, ridge(Spectrum.of(moments, centred=True)))
        assert float(weight[:, 1].abs().max()) * 1e3 < 1e-8
        error = moments.error(*affine(moments, weight))
        ones = torch.cat([new[:, [0, 2, 4]], torch.ones(40, 1, dtype=torch.float64)], dim=1)
        best = ones @ torch.linalg.lstsq(ones, old).solution - old
        assert error == pytest.approx(float(best.square().sum(1).mean()), rel=1e-6)

    def test_all_zeros_are_mapped_to_zero(self) -> None:
        spectrum = Spectrum.of(moments_of(torch.zeros(5, 2), torch.zeros(5, 3)))
        assert ridge(spectrum).tolist() == [[0.0] * 3] * 2

    @settings(max_examples=20, deadline=None)
    @given(SEEDS)
    def test_the_ridge_is_judged_on_pairs_it_was_not_fitted_to(self, seed: int) -> None:
        """Twelve noisy pairs of ten dims: what fits them best is far off on others."""
        planted = randn(seed + 5, 4, 10)

        def some(number: int, rows: int) -> tuple[Tensor, Tensor]:
            new = randn(seed + number, rows, 10)
            return new @ planted.T + 3 * randn(seed + number + 1, rows, 4), new

        seen, held = moments_of(*some(10, 12)), moments_of(*some(20, 500))
        spectrum = Spectrum.of(seen)
        rho = choose_ridge(lambda r: (ridge(spectrum, r), None), spectrum.unit, held)
        chosen, none = ridge(spectrum, rho), ridge(spectrum)
        assert rho > 0
        assert seen.error(none) < seen.error(chosen)
        assert held.error(chosen) < held.error(none)

    def test_without_noise_no_ridge_is_wanted(self) -> None:
        new, planted = randn(0, 60, 5), randn(1, 3, 5)
        old = new @ planted.T
        spectrum = Spectrum.of(moments_of(old[:40], new[:40]))
        held = moments_of(old[40:], new[40:])
        assert choose_ridge(lambda r: (ridge(spectrum, r), None), spectrum.unit, held) == 0


class TestProcrustes:
    @pytest.mark.long
    @settings(max_examples=25, deadline=None)
    @given(SEEDS, st.sampled_from([(4, 4), (5, 3), (3, 5)]), st.booleans(), st.booleans())
    def test_no_random_orthonormal_matrix_is_better(
        self, seed: int, dims: tuple[int, int], scaled: bool, multi: bool
    ) -> None:
        old_dim, new_dim = dims
        turn = random_orthonormal(seed, old_dim, new_dim)
        new = randn(seed + 1, 40, new_dim) * torch.linspace(0.5, 2, new_dim, dtype=torch.float64)
        old = 1.5 * new @ turn.T + 0.5 * randn(seed + 2, 40, old_dim)
        moments = moments_of(old, new)
        metric = metric_of(seed + 7, old_dim) if multi else None
        best_turn, scale = procrustes(moments, metric, scaled=scaled, rounds=2000, tolerance=1e-12)
        small = best_turn.T if new_dim < old_dim else best_turn
        eye = torch.eye(len(small), dtype=torch.float64)
        torch.testing.assert_close(small @ small.T, eye, rtol=0, atol=1e-10)
        assert scaled or scale == 1.0
        best = moments.error(scale * best_turn, metric=metric)
        for i in range(30):
            # Anywhere, and near the best.
            far = random_orthonormal(seed + 100 + i, old_dim, new_dim)
            near = polar(best_turn + 0.05 * randn(seed + 200 + i, old_dim, new_dim))
            for other in (far, near):
                assert best <= moments.error(scale * other, metric=metric) + 1e-6 * moments.power
        if scaled:
            for factor in (0.99, 1.01):
                assert best <= moments.error(factor * scale * best_turn, metric=metric)

    def test_a_planted_turn_is_found(self) -> None:
        turn, new = random_orthonormal(0, 6, 6), randn(1, 50, 6)
        fitted, scale = procrustes(moments_of(2.5 * new @ turn.T, new), scaled=True)
        torch.testing.assert_close(fitted, turn, rtol=0, atol=1e-10)
        assert scale == pytest.approx(2.5)

    @pytest.mark.parametrize("old_dim", [6, 8])
    def test_a_planted_turn_is_found_under_a_metric(self, old_dim: int) -> None:
        """The rounds alone, from S C, stop early where directions differ much in size."""
        turn = random_orthonormal(0, old_dim, 6)
        new = randn(1, 50, 6) * torch.logspace(1, -2, 6, dtype=torch.float64)
        fitted, _ = procrustes(moments_of(new @ turn.T, new), metric_of(2, old_dim))
        torch.testing.assert_close(fitted, turn, rtol=0, atol=1e-8)

    def test_into_fewer_dims_the_rounds_improve_on_the_first(self) -> None:
        turn = random_orthonormal(3, 3, 6)
        new = randn(4, 60, 6) * torch.tensor([3, 2, 1, 1, 0.5, 0.2], dtype=torch.float64)
        moments = moments_of(new @ turn.T, new)
        first, _ = procrustes(moments, rounds=0)
        last, _ = procrustes(moments, rounds=5000, tolerance=1e-14)
        assert moments.error(first) > 0.1 * moments.power
        assert moments.error(last) < 1e-6 * moments.power
        torch.testing.assert_close(last, turn, rtol=0, atol=0.01)

    def test_an_undetermined_direction_is_filled_up(self) -> None:
        filled, _ = procrustes(moments_of(torch.zeros(5, 3), randn(0, 5, 3)))
        torch.testing.assert_close(filled @ filled.T, torch.eye(3, dtype=torch.float64))


class TestReducedRank:
    @pytest.mark.long
    @settings(max_examples=15, deadline=None)
    @given(SEEDS, st.integers(1, 3), st.sampled_from([0.0, 0.2]), st.booleans())
    def test_alternation_ends_there(self, seed: int, rank: int, rho: float, multi: bool) -> None:
        """L for fixed R and R for fixed L, in turn, each by solving its normal equations."""
        old, new = pairs(seed, 60, 4, 5)
        moments = moments_of(old, new)
        metric = metric_of(seed + 7, 4) if multi else torch.eye(4, dtype=torch.float64)
        new_new, cross, _ = moments.second()
        ridged = new_new + rho * torch.eye(5, dtype=torch.float64)

        def loss(weight: Tensor) -> float:
            extra = rho * float(((metric @ weight) * weight).sum())
            return moments.error(weight, metric=metric) + extra

        left, right = reduced_rank(Spectrum.of(moments, metric), rank, rho)
        assert left.shape == (4, rank)
        assert right.shape == (rank, 5)
        reached = []
        for begin in range(3):
            factor = randn(seed + 50 + begin, rank, 5)
            for _ in range(300):
                other = torch.linalg.solve(factor @ ridged @ factor.T, factor @ cross.T).T
                inner = torch.linalg.solve(other.T @ metric @ other, other.T @ metric @ cross)
                factor = torch.linalg.solve(ridged, inner.T).T
            reached.append(loss(other @ factor))
        assert loss(left @ right) <= min(reached) * (1 + 1e-9)
        assert min(reached) == pytest.approx(loss(left @ right), rel=1e-3)

    def test_at_full_rank_it_is_ridge(self) -> None:
        spectrum = Spectrum.of(moments_of(*pairs(0, 30, 3, 5)))
        left, right = reduced_rank(spectrum, 3, 0.3)
        torch.testing.assert_close(left @ right, ridge(spectrum, 0.3))

    def test_under_a_rank_the_metric_matters_even_without_ridge(self) -> None:
        """method.md: single- and multi-step losses differ with ridge, rank or orthogonality."""
        moments = moments_of(*pairs(0, 30, 4, 5))
        weights = []
        for spectrum in (Spectrum.of(moments), Spectrum.of(moments, metric_of(3, 4))):
            left, right = reduced_rank(spectrum, 2)
            weights.append(left @ right)
        assert float((weights[0] - weights[1]).norm()) > 1e-2 * float(weights[0].norm())

    def test_singular_moments(self) -> None:
        old, new = pairs(0, 4, 3, 9)
        left, right = reduced_rank(Spectrum.of(moments_of(old, new)), 3)
        expected = (torch.linalg.pinv(new) @ old).T
        torch.testing.assert_close(left @ right, expected, rtol=1e-6, atol=1e-8)


def noisy(seed: int, rows: int) -> tuple[SecondMoments, Tensor, Tensor]:
    """Pairs of one planted map from 8 to 5 dims, and an offset."""
    new = randn(seed, rows, 8) + 0.5
    old = new @ randn(1000, 8, 5) + 2 + 2 * randn(seed + 1, rows, 5)
    moments = SecondMoments(5, 8)
    moments.add(old, new)
    return moments, old, new


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_transform_is_what_was_fitted(kind: str, scaled: bool) -> None:
    moments, _, new = noisy(0, 60)
    fitted = fit_closed_form(kind, moments, noisy(2, 30)[0], rank=3, scaled=scaled)
    expected = "linear" if kind == "orthogonal" and scaled else kind
    assert fitted.transform.kind == expected
    assert (fitted.offset is not None) == (kind == "affine")
    offset = torch.zeros(5) if fitted.offset is None else fitted.offset
    with torch.no_grad():
        mapped = fitted.transform(new.float())
    torch.testing.assert_close(mapped.double(), new @ fitted.weight.T + offset, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "affine", "low_rank"])
def test_the_ridge_is_chosen_on_the_held_and_then_all_are_fitted_to(kind: str) -> None:
    few, more = noisy(0, 12)[0], noisy(2, 200)[0]
    both = SecondMoments(5, 8)
    both.merge(few)
    both.merge(more)
    free = fit_closed_form(kind, few, rank=3)
    chosen = fit_closed_form(kind, few, more, rank=3)
    assert free.ridge == 0 < chosen.ridge
    assert few.count == 12  # neither was changed
    assert more.count == 200
    # Twelve pairs alone are far worse than all.
    assert both.error(chosen.weight, chosen.offset) < 0.7 * both.error(free.weight, free.offset)


def test_pairs_are_three_for_each_number_of_a_coordinate() -> None:
    # From 384 to 300 dims: 384 numbers each; with an offset one more.
    assert pairs_needed("linear", 300, 384) == 1152
    assert pairs_needed("affine", 300, 384) == 1155
    # 300 · 384 − 300 · 301 / 2 free numbers of 300 orthonormal rows, over 300 coordinates.
    assert pairs_needed("orthogonal", 300, 384) == 701
    # 16 · (300 + 384 − 16) / 300 = 35.6
    assert pairs_needed("low_rank", 300, 384, 16) == 107


def test_a_tolerance_gives_a_smaller_map_for_a_little_error() -> None:
    """One direction hardly varies and hardly helps: it is stretched a lot, or left alone."""
    draw = torch.Generator().manual_seed(0)
    new = torch.randn(400, 4, generator=draw, dtype=torch.float64)
    old = new[:, :3].clone()
    old[:, 0] += 0.05 * new[:, 3] + 0.3 * torch.randn(400, generator=draw, dtype=torch.float64)
    new[:, 3] *= 1e-3
    seen, held = SecondMoments(3, 4), SecondMoments(3, 4)
    seen.add(old[:300], new[:300])
    held.add(old[300:], new[300:])
    exact = fit_closed_form("linear", seen, held)
    small = fit_closed_form("linear", seen, held, tolerance=0.1)
    assert float(torch.linalg.matrix_norm(exact.weight, 2)) > 10
    assert float(torch.linalg.matrix_norm(small.weight, 2)) < 2
    assert held.error(small.weight, None) < 1.2 * held.error(exact.weight, None)


@pytest.mark.parametrize(("rows", "size"), [(5, 3), (101, 2), (1, 4)])
def test_processes_share_the_pairs_of_each_use(rows: int, size: int) -> None:
    new, old = randn(5, rows, 3), randn(6, rows, 2)
    tenth = torch.arange(rows) % FOR_RIDGE == 0
    direct = SecondMoments(2, 3), SecondMoments(2, 3)
    for moments, mask in zip(direct, (~tenth, tenth), strict=True):
        moments.add(old[mask], new[mask])
    for result in in_threads(size, lambda p: moments_by_use(new, old, p))[0]:
        for moments, expected in zip(result, direct, strict=True):
            assert moments.count == expected.count
            torch.testing.assert_close(
                moments._symmetric(), expected._symmetric(), rtol=1e-12, atol=1e-12
            )


@pytest.mark.long
def test_processes_solve_what_one_does(tmp_path: Path) -> None:
    """To 1e-10 in float64, in real processes."""
    solved = {}
    for count in (1, 2, 3):
        out = tmp_path / f"{count}.safetensors"
        for code, output in ended(start(count, "-m", "tests.support.shared_moments", str(out))):
            assert code == 0, output
        solved[count] = load_file(out)
    assert solved[1].keys() >= {*KINDS, "affine offset", "held", "seen"}
    for count in (2, 3):
        assert solved[count].keys() == solved[1].keys()
        for name, value in solved[1].items():
            assert value.dtype == torch.float64
            torch.testing.assert_close(solved[count][name], value, rtol=1e-10, atol=1e-10)


FIT = GradientFit(rate=0.03, epochs=60, batch_size=50, seed=3)


def gradient_pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """New [200, 4] and old [200, 3] vectors of a noisy linear map."""
    draw = torch.Generator().manual_seed(0)
    new = torch.randn(200, 4, generator=draw)
    old = new @ torch.randn(4, 3, generator=draw) + 0.1 * torch.randn(200, 3, generator=draw)
    return new, old


def test_a_linear_transform_ends_at_least_squares() -> None:
    new, old = gradient_pairs()
    transform = LinearTransform(3, 4)
    fit_by_gradient(transform, new, old, AlignmentLoss(Chain([], 3)), FIT)
    best = torch.linalg.lstsq(new.double(), old.double()).solution.T
    torch.testing.assert_close(transform.weight.detach().double(), best, rtol=0, atol=0.02)


def test_the_seed_alone_decides_the_order_of_the_pairs() -> None:
    weights = []
    for seed in (3, 3, 4):
        transform = LinearTransform(3, 4)
        settings = GradientFit(rate=0.03, epochs=2, batch_size=50, seed=seed)
        fit_by_gradient(transform, *gradient_pairs(), AlignmentLoss(Chain([], 3)), settings)
        weights.append(transform.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_without_parameters_or_pairs_nothing_changes() -> None:
    new, old = gradient_pairs()
    loss = AlignmentLoss(Chain([], 3))
    truncate, linear = TruncateTransform(3, 4), LinearTransform(3, 4)
    fit_by_gradient(truncate, new, old, loss, FIT)
    fit_by_gradient(linear, new[:0], old[:0], loss, FIT)
    assert torch.equal(truncate.weight, torch.eye(3, 4))
    assert torch.equal(linear.weight, torch.eye(3, 4))


def same(one: SecondMoments, other: SecondMoments, rtol: float = 1e-10) -> None:
    assert one.count == other.count
    torch.testing.assert_close(one.mean_old, other.mean_old, rtol=rtol, atol=1e-12)
    torch.testing.assert_close(one.mean_new, other.mean_new, rtol=rtol, atol=1e-12)
    for mine, yours in zip(one.second(), other.second(), strict=True):
        torch.testing.assert_close(mine, yours, rtol=rtol, atol=1e-11)


# Dims on both sides of a panel's edge.
@pytest.mark.parametrize(("old_dim", "new_dim"), [(3, 5), (4, 1), (PANEL - 1, 3), (2, PANEL + 9)])
def test_moments_are_the_sums_written_out(old_dim: int, new_dim: int) -> None:
    old, new = pairs(0, 7, old_dim, new_dim)
    moments = moments_of(old, new)
    assert moments.count == 7
    new_new, cross, old_old = moments.second()
    torch.testing.assert_close(new_new, sum(z[:, None] * z for z in new) / 7)
    torch.testing.assert_close(
        cross, sum(y[:, None] * z for y, z in zip(old, new, strict=True)) / 7
    )
    torch.testing.assert_close(old_old, sum(y[:, None] * y for y in old) / 7)
    torch.testing.assert_close(moments.mean_old, old.mean(0))
    torch.testing.assert_close(moments.mean_new, new.mean(0))
    about = moments.second(centred=True)
    both = torch.cat([new, old], dim=1).T.cov(correction=0)
    torch.testing.assert_close(about[0], both[:new_dim, :new_dim])
    torch.testing.assert_close(about[1], both[new_dim:, :new_dim])
    torch.testing.assert_close(about[2], both[new_dim:, new_dim:])
    assert moments.power == pytest.approx(float(old.square().sum(1).mean()))


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_shards_add_up(seed: int, sizes: list[int]) -> None:
    old, new = pairs(seed, sum(sizes) + 1, 3, 4)
    whole = moments_of(old, new)
    merged = moments_of(old[-1:], new[-1:])
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        merged.merge(moments_of(old[part], new[part]))
        start += size
    same(merged, whole)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.booleans())
def test_errors_need_no_vectors(seed: int, with_offset: bool) -> None:
    old, new = pairs(seed, 9, 3, 4)
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    offset = torch.randn(3, generator=draw, dtype=torch.float64) if with_offset else None
    root = torch.randn(3, 3, generator=draw, dtype=torch.float64)
    metric = torch.eye(3, dtype=torch.float64) + root.T @ root
    delta = torch.stack(
        [weight @ z + (0 if offset is None else offset) - y for y, z in zip(old, new, strict=True)]
    )
    moments = moments_of(old, new)
    sigma = torch.stack([d[:, None] * d for d in delta]).mean(0)
    torch.testing.assert_close(moments.sigma(weight, offset), sigma, rtol=1e-9, atol=1e-9)
    assert moments.error(weight, offset) == pytest.approx(float(delta.square().sum(1).mean()))
    weighed = torch.stack([d @ metric @ d for d in delta]).mean()
    assert moments.error(weight, offset, metric) == pytest.approx(float(weighed))


@pytest.mark.parametrize("metric", [None, torch.eye(3)])
def test_the_error_of_a_map_that_is_no_number_is_no_number(metric: Tensor | None) -> None:
    """An error of 0 would be the best of all."""
    moments = SecondMoments(3, 2)
    moments.add(torch.randn(9, 3), torch.randn(9, 2))
    weight = torch.zeros(3, 2)
    assert moments.error(weight, metric=metric) > 0
    weight[1, 1] = float("nan")
    assert math.isnan(moments.error(weight, metric=metric))


def test_floats_of_any_size_are_summed_in_float64() -> None:
    # 1 + 2⁻³⁰ is not a float32.
    moments = SecondMoments(1, 1)
    moments.add(torch.ones(1, 1), torch.ones(1, 1))
    small = torch.full((1, 1), 2.0**-15)
    moments.add(small, small)
    assert float(moments.second()[0]) * 2 - 1 == 2.0**-30


@pytest.mark.parametrize("merged", [False, True])
def test_a_long_file_loses_nothing_beside_its_means(merged: bool) -> None:
    """Two thousand blocks; what is added to a large sum is rounded, always the same way here."""
    draw = torch.Generator().manual_seed(0)
    moments, spread = SecondMoments(1, 2), []
    for _ in range(2000):
        new = torch.full((50, 2), 1000.1, dtype=torch.float64)
        spread.append(1e-3 * torch.randn(50, generator=draw, dtype=torch.float64))
        new[:, 0] += spread[-1]
        if merged:
            moments.merge(moments_of(new[:, :1], new))
        else:
            moments.add(new[:, :1], new)
    covariance = moments.second(centred=True)[0]
    expected = float(torch.cat(spread).var(correction=0))  # 1e-6, where the squares are 1e6
    assert float(covariance[0, 0]) == pytest.approx(expected, rel=1e-3)
    assert abs(float(covariance[1, 1])) < 1e-8


def test_pairs_and_matrices_that_do_not_fit_are_refused() -> None:
    old, new = pairs(0, 4, 2, 3)
    moments = moments_of(old, new)
    with pytest.raises(ShapeError, match="same b objects"):
        moments.add(old[:3], new)
    with pytest.raises(ShapeError, match=r"\[b, 2\]"):
        moments.add(new, new)
    with pytest.raises(ShapeError, match="merged"):
        moments.merge(SecondMoments(3, 2))
    with pytest.raises(ShapeError, match="need \\[2, 3\\]"):
        moments.sigma(torch.eye(2))
    with pytest.raises(DataError, match="no pairs"):
        SecondMoments(2, 2).second()


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, 30), st.integers(1, 4))
def test_processes_sum_what_each_has_added(seed: int, rows: int, size: int) -> None:
    old, new = pairs(seed, rows, 3, 2)
    mine = [slice(rank, None, size) for rank in range(size)]
    results, _ = in_threads(
        size, lambda p: moments_of(old[mine[p.rank]], new[mine[p.rank]]).summed(p)
    )
    for summed in results:
        same(summed, moments_of(old, new))
        assert torch.equal(summed.second()[1], results[0].second()[1])
