"""The bound holds, the estimate is exact for uncorrelated errors, and the terms are Eq. (9)'s."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.compatibility.certificate import LEAST_OBJECTS, StepError, certify, uncertified
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform, ResidualMLPTransform
from evergram.errors import ShapeError


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


def test_no_objects_is_no_error_and_says_so() -> None:
    error = StepError.of(torch.zeros(0, 3), torch.zeros(0, 3))
    assert (error.objects, error.rms) == (0, 0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_error_of_numbers_that_are_not_finite_is_not_known(value: float) -> None:
    vectors = torch.ones(100, 3)
    broken = vectors.clone()
    broken[7, 1] = value
    assert StepError.of(vectors, vectors).is_known
    assert not StepError.of(vectors, broken).is_known
    assert not StepError.of(broken, vectors).is_known
