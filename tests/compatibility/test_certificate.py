"""The bound holds, the estimate is exact for uncorrelated errors, and the terms are Eq. (9)'s."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.planted_maps import planted_map
from torch import Tensor

from evergram.compatibility import Aligner
from evergram.compatibility.certificate import LEAST_OBJECTS, StepError, certify, uncertified
from evergram.compatibility.chain import Chain
from evergram.compatibility.chance import compared_with_chance
from evergram.compatibility.closed_forms import SecondMoments, degenerate_side
from evergram.compatibility.row_groups import CHOOSING, pair_groups, vector_hashes
from evergram.compatibility.transforms import LinearTransform, ResidualMLPTransform
from evergram.errors import DataError, ShapeError, UnknownVersionError
from evergram.evaluation.version_distance import VectorPairs, chance_reading


def lineage(
    newest: int, seed: int, objects: int = 50
) -> tuple[Chain, list[torch.Tensor], dict[int, StepError]]:
    """A chain, the embeddings of every version, and what was stored at each publication."""
    draw = torch.Generator().manual_seed(seed)
    dims = [int(torch.randint(1, 6, (), generator=draw)) for _ in range(newest + 1)]
    z = [torch.randn(objects, d, generator=draw, dtype=torch.float64) for d in dims]
    steps = [
        LinearTransform.from_matrix(torch.randn(a, b, generator=draw, dtype=torch.float64))
        for a, b in itertools.pairwise(dims)
    ]
    chain = Chain(steps, dims[0])
    errors = {i: StepError.of(chain.apply(z[i], i, i - 1), z[i - 1]) for i in range(1, newest + 1)}
    return chain, z, errors


def rms(delta: torch.Tensor) -> float:
    return math.sqrt(float(delta.square().sum(1).mean()))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_the_true_error_is_within_the_bound(newest: int, seed: int) -> None:
    chain, z, errors = lineage(newest, seed)
    for target in range(newest):
        certificate = certify(chain, errors, newest, target)
        assert certificate is not None
        true = rms(chain.apply(z[newest], newest, target) - z[target])
        assert true <= certificate.bound * (1 + 1e-9)
        assert certificate.estimate <= certificate.bound * (1 + 1e-9)
        if target == newest - 1:
            assert certificate.bound == pytest.approx(true) == pytest.approx(certificate.estimate)
        assert certificate.relative == pytest.approx(certificate.estimate / rms(z[target]))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 10**6))
def test_terms_are_what_each_step_contributes(newest: int, seed: int) -> None:
    """By the objects themselves, where the certificate used Σ alone."""
    chain, z, errors = lineage(newest, seed)
    certificate = certify(chain, errors, newest, 0)
    assert certificate is not None
    for i, term in certificate.terms.items():
        delta = chain.apply(z[i], i, i - 1) - z[i - 1]
        assert term == pytest.approx(rms(chain.apply(delta, i - 1, 0)))
    largest = max(
        float((chain.matrix(newest, 0) @ x).norm() / x.norm())
        for x in torch.randn(200, chain.dim(newest), dtype=torch.float64)
    )
    assert largest <= certificate.amplification * (1 + 1e-9)


def test_uncorrelated_errors_add_up_in_squares() -> None:
    draw = torch.Generator().manual_seed(0)
    steps = [torch.randn(4, 4, generator=draw, dtype=torch.float64) / 2 for _ in range(3)]
    newest = torch.randn(200_000, 4, generator=draw, dtype=torch.float64)
    chain = Chain([LinearTransform.from_matrix(s) for s in steps], 4)
    z = [newest]
    for step in reversed(steps):
        noise = 0.1 * torch.randn(len(newest), 4, generator=draw, dtype=torch.float64)
        z.insert(0, z[0] @ step.T + noise)
    errors = {i: StepError.of(chain.apply(z[i], i, i - 1), z[i - 1]) for i in (1, 2, 3)}
    certificate = certify(chain, errors, 3, 0)
    assert certificate is not None
    true = rms(chain.apply(z[3], 3, 0) - z[0])
    assert certificate.estimate == pytest.approx(true, rel=0.01)
    assert certificate.bound > 1.2 * true


def test_nothing_is_claimed_where_nothing_is_known() -> None:
    chain, _, errors = lineage(3, 1)
    assert certify(chain, {k: v for k, v in errors.items() if k != 2}, 3, 0) is None
    assert certify(chain, {k: v for k, v in errors.items() if k != 2}, 3, 2) is not None
    bent = Chain([LinearTransform(2, 3), ResidualMLPTransform(3, 3)], 2)
    sigma = {i: StepError.of(torch.ones(4, d), torch.zeros(4, d)) for i, d in ((1, 2), (2, 3))}
    assert certify(bent, sigma, 2, 0) is None
    same = certify(chain, errors, 3, 3)
    assert same is not None
    assert same.bound == 0.0
    with pytest.raises(ShapeError, match="same objects"):
        StepError.of(torch.ones(2, 3), torch.ones(3, 3))


def test_a_step_measured_on_few_objects_has_no_certificate() -> None:
    """Nor has any chain through it; a step that is the identity needs no measure."""
    chain, _, errors = lineage(3, 1)
    few = {**errors, 2: replace(errors[2], objects=LEAST_OBJECTS - 1)}
    assert certify(chain, few, 2, 1) is None
    assert certify(chain, few, 3, 0) is None
    assert certify(chain, few, 3, 2) == certify(chain, errors, 3, 2)
    assert uncertified(chain, few, 3, 0) == [
        f"the transform of version 2 was measured on {LEAST_OBJECTS - 1} objects, and "
        f"{LEAST_OBJECTS} are needed"
    ]
    enough = {**errors, 2: replace(errors[2], objects=LEAST_OBJECTS)}
    assert certify(chain, enough, 3, 0) is not None
    dim = chain.dim(3)
    identity = StepError(torch.zeros(dim, dim, dtype=torch.float64), 0, math.nan)
    longer = chain.extended(LinearTransform.from_matrix(torch.eye(dim)))
    assert certify(longer, {**errors, 4: identity}, 4, 0) is not None
    assert uncertified(longer, errors, 4, 2) == ["version 4 was published without a measured error"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_error_of_numbers_that_are_not_finite_is_not_known(value: float) -> None:
    vectors = torch.ones(100, 3)
    broken = vectors.clone()
    broken[7, 1] = value
    assert StepError.of(vectors, vectors).is_known
    assert not StepError.of(vectors, broken).is_known
    assert not StepError.of(broken, vectors).is_known


def matrices(dims: list[int], seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [
        torch.randn(old, new, generator=draw, dtype=torch.float64)
        for old, new in itertools.pairwise(dims)
    ]


def linear(steps: list[torch.Tensor]) -> list[LinearTransform]:
    return [LinearTransform.from_matrix(step) for step in steps]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.integers(0, 10**6))
def test_one_step_back_at_a_time_is_the_same_as_all_at_once(dims: list[int], seed: int) -> None:
    steps = matrices(dims, seed)
    chain = Chain(linear(steps), dims[0])
    newest = len(steps)
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(4, dims[-1], generator=draw, dtype=torch.float64)
    walked = z
    for version in range(newest, -1, -1):
        torch.testing.assert_close(chain.apply(z, newest, version), walked)
        assert chain.dim(version) == dims[version]
        for middle in range(version, newest + 1):
            torch.testing.assert_close(
                chain.apply(chain.apply(z, newest, middle), middle, version), walked
            )
        if version:
            walked = walked @ steps[version - 1].T
    assert chain.apply(z, newest, newest) is z


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_errors_add_up_along_the_chain(newest: int, seed: int) -> None:
    """[BC] Eq. (9): δ_k^j = δ_{j+1} + Σ_{i≥j+2} W_{i-1}^j δ_i."""
    dims = list(range(2, newest + 3))
    steps = matrices(dims, seed)
    chain = Chain(linear(steps), dims[0])
    draw = torch.Generator().manual_seed(seed + 1)
    z = [torch.randn(d, generator=draw, dtype=torch.float64) for d in dims]
    delta = {i: steps[i - 1] @ z[i] - z[i - 1] for i in range(1, newest + 1)}
    for j in range(newest):
        total = delta[j + 1].clone()
        for i in range(j + 2, newest + 1):
            total += chain.matrix(i - 1, j) @ delta[i]
        direct = chain.apply(z[newest], newest, j) - z[j]
        torch.testing.assert_close(direct, total, rtol=1e-6, atol=1e-6)


def test_versions_arrays_and_shapes_that_do_not_fit_are_refused() -> None:
    chain = Chain(linear(matrices([2, 3])), 2)
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: chain.matrix(2, 0), UnknownVersionError, "versions 0 to 1"),
        (lambda: chain.matrix(0, 1), UnknownVersionError, "earlier"),
        (lambda: chain.apply(np.zeros((4, 3)), 1, 0), DataError, "ndarray"),  # type: ignore[arg-type]
        (lambda: chain.apply(np.zeros((4, 3)), 1, 1), DataError, "ndarray"),  # type: ignore[arg-type]
        (lambda: chain.apply([[0.0] * 3], 1, 0), DataError, "list"),  # type: ignore[arg-type]
        (lambda: Chain(linear(matrices([2, 3]) + matrices([4, 5])), 2), ShapeError, "version 2"),
        (lambda: chain.apply(torch.ones(1, 2), 1, 0), ShapeError, "dim 2"),
        (lambda: LinearTransform(2, 3)(torch.ones(1, 2)), ShapeError, "takes 3"),
    ]
    for call, error, named in refused:
        with pytest.raises(error, match=named):
            call()


@pytest.mark.parametrize(("old", "new"), [(3, 5), (4, 4), (5, 3)])
def test_a_transform_starts_orthonormal(old: int, new: int, generator: torch.Generator) -> None:
    weight = LinearTransform(old, new, generator).weight.detach()
    small = weight @ weight.T if old <= new else weight.T @ weight
    torch.testing.assert_close(small, torch.eye(min(old, new)))


def test_steps_are_the_way_in_order_with_affine_ones_as_one() -> None:
    draw = torch.Generator().manual_seed(0)
    bent = ResidualMLPTransform(3, 4, draw, hidden=5)
    torch.nn.init.normal_(bent.outer.weight, generator=draw)
    maps = [torch.randn(*shape, generator=draw) for shape in ((2, 3), (4, 4), (4, 5))]
    before, middle, newest = linear(maps)
    chain = Chain([before, bent, middle, newest], dim=2)
    first, second, third = chain.steps(4, 0)
    assert second is bent
    assert isinstance(first, tuple)
    assert isinstance(third, tuple)
    torch.testing.assert_close(first[0].float(), maps[1] @ maps[2])
    torch.testing.assert_close(third[0].float(), maps[0])
    z = torch.randn(6, 5, generator=draw)
    with torch.no_grad():
        expected = before(bent(middle(newest(z))))
    torch.testing.assert_close(chain.apply(z, 4, 0), expected)
    (itself,) = chain.steps(4, 4)
    assert isinstance(itself, tuple)
    assert itself[0].equal(torch.eye(5, dtype=torch.float64))
    with pytest.raises(UnknownVersionError, match="map to earlier versions only"):
        chain.steps(0, 1)


ROWS = 30


def randn(seed: int, *shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def moments(old: Tensor, new: Tensor) -> SecondMoments:
    sums = SecondMoments(old.shape[1], new.shape[1])
    sums.add(old, new)
    return sums


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_chance_is_the_error_over_permutations_of_the_objects(seed: int) -> None:
    new, weight, offset = randn(seed, ROWS, 5), randn(seed + 10, 4, 5) / 3, randn(seed + 20, 4)
    old = new @ weight.T + randn(seed + 30, ROWS, 4) + 1
    chance = compared_with_chance(moments(old, new), weight, offset)
    mapped = new @ weight.T + offset
    own = float((mapped - old).square().sum(1).mean())
    pairs = torch.cdist(mapped, old).square()
    others = float(pairs.sum() - pairs.diag().sum()) / (ROWS * (ROWS - 1))
    power = float(old.square().sum(1).mean())
    assert chance.relative_error == pytest.approx(math.sqrt(others / power))
    assert chance.ratio == pytest.approx(math.sqrt(own / others))
    draw = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(ROWS, generator=draw) for _ in range(20_000)])
    mixed = pairs[torch.arange(ROWS), orders].mean(1)
    assert chance.deviations == pytest.approx(float((mixed.mean() - own) / mixed.std()), rel=0.05)


def test_constant_and_random_vectors_are_no_better_than_chance() -> None:
    old = randn(0, ROWS, 4) + 3
    nothing = compared_with_chance(moments(old, torch.ones(ROWS, 2).double()), randn(1, 4, 2))
    assert nothing.ratio == pytest.approx(1)
    assert nothing.deviations == 0
    for seed in range(50):
        new = randn(seed + 100, ROWS, 3)
        weight = torch.linalg.lstsq(new[:15], old[:15]).solution.T
        assert abs(compared_with_chance(moments(old[15:], new[15:]), weight).deviations) < 4.5


def test_objects_that_are_there_several_times_count_once() -> None:
    new, weight = randn(0, ROWS, 5), randn(1, 4, 5)
    old = new @ weight.T + randn(2, ROWS, 4)
    once = compared_with_chance(moments(old, new), weight)
    repeated = moments(old.repeat(40, 1), new.repeat(40, 1))
    again = compared_with_chance(repeated, weight, objects=ROWS)
    assert again.deviations == pytest.approx(once.deviations)
    assert again.ratio == pytest.approx(once.ratio)
    assert again.relative_error == pytest.approx(once.relative_error)
    assert compared_with_chance(repeated, weight).deviations > 6 * once.deviations


def test_the_reading_of_chance_is_that_of_mixed_up_objects() -> None:
    old, new, weight = randn(0, ROWS, 4) + 2, randn(1, ROWS, 4) + 2, torch.eye(4)
    chance = compared_with_chance(moments(old, new), weight)
    reading = chance_reading((weight, None), chance, VectorPairs(old.float(), new.float()), 40)
    cosines = torch.nn.functional.cosine_similarity(new[:, None], old[None], dim=2)
    off = (cosines.sum() - cosines.diag().sum()) / (ROWS * (ROWS - 1))
    assert reading["cosine"] == pytest.approx(float(off), abs=1e-5)
    assert reading["relative_error"] == chance.relative_error
    assert reading["overlap@10"] == reading["overlap@10_own_queries"] == 0.25


def test_an_aligner_refuses_degenerate_vectors_of_either_side() -> None:
    new, old, _ = planted_map(200, 3, 5)
    line = np.outer(np.arange(200.0), np.ones(5))
    mostly_zero = np.where(np.arange(200)[:, None] < 120, 0.0, new)
    cases = [
        (new * 0, old, "The new vectors cannot be aligned: 200 of 200 are zero"),
        (mostly_zero, old, "The new vectors cannot be aligned: 120 of 200 are zero"),
        (new, old * 0 + 1, "The old vectors cannot be aligned: all of them are the same"),
        (line, old, "The new vectors cannot be aligned: all of them lie on one line"),
    ]
    for one, other, message in cases:
        aligner = Aligner().fit(one, other)
        for use in (aligner.report, aligner.as_transform, lambda a=aligner: a.transform(new)):
            with pytest.raises(DataError, match=message):
                use()


def test_vectors_of_one_dim_are_not_a_line() -> None:
    moments = SecondMoments(1, 1)
    values = torch.arange(5.0)[:, None]
    moments.add(values, values)
    assert degenerate_side(moments, (0, 0)) is None
    assert degenerate_side(moments, (0, 0), 0.5) is None
    assert degenerate_side(moments, (1, 0), 0.2) is None
    assert degenerate_side(moments, (1, 0)) == ("old", "1 of 5 are zero; at most 5% may be")


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_a_hash_is_of_the_row_alone(dim: int, seed: int) -> None:
    rows = torch.randn(50, dim, generator=torch.Generator().manual_seed(seed))
    hashes = vector_hashes(rows.double())
    order = torch.randperm(50)
    assert torch.equal(vector_hashes(rows[order].double()), hashes[order])
    assert int(hashes.min()) >= 0
    assert int(hashes.max()) < 2**32
    assert len(set(hashes.tolist())) == 50


def test_the_hashes_never_change() -> None:
    """A saved aligner goes on with it, so no row may change its group."""
    rows = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0], [0.1, 0.2]], dtype=torch.float64)
    assert vector_hashes(rows).tolist() == [1789990018, 1789990018, 1090463486, 439451484]


def test_groups_have_their_shares_whatever_the_vectors_look_like() -> None:
    draw = torch.Generator().manual_seed(0)
    number = 40_000
    of_kinds = {
        "gaussian": torch.randn(number, 16, generator=draw),
        "half": torch.randn(number, 16, generator=draw).half(),
        "counted": torch.arange(number).double()[:, None],
        "binary": torch.arange(number)[:, None] >> torch.arange(16) & 1,
        "one place": torch.eye(200).repeat_interleave(200, 0)
        * torch.arange(1, number + 1)[:, None],
    }
    for name, rows in of_kinds.items():
        groups = pair_groups(vector_hashes(rows.double()), 0.2)
        for mask, share in ((groups.held, 0.2), (groups.chosen, 0.8 * CHOOSING)):
            # Five standard deviations of a binomial.
            allowed = 5 * (share * (1 - share) / number) ** 0.5
            assert abs(float(mask.double().mean()) - share) < allowed, name
        together = torch.stack([groups.seen, groups.chosen, groups.held]).sum(0)
        assert bool((together == 1).all())
