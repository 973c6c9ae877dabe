"""Composition, and the accounting of errors along it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.compatibility import Aligner
from evergram.compatibility.chain import Chain
from evergram.compatibility.transforms import LinearTransform, ResidualMLPTransform
from evergram.errors import DataError, ShapeError, UnknownVersionError


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


def test_versions_that_are_not_there_are_refused() -> None:
    chain = Chain(linear(matrices([2, 3])), 2)
    with pytest.raises(UnknownVersionError, match="versions 0 to 1"):
        chain.matrix(2, 0)
    with pytest.raises(UnknownVersionError, match="lead back only"):
        chain.matrix(0, 1)


def test_an_array_that_is_no_tensor_is_refused() -> None:
    chain = Chain([LinearTransform.from_matrix(torch.eye(2, 3))], 2)
    for version in (0, 1):
        with pytest.raises(DataError, match=r"are a ndarray, .* give torch\.as_tensor"):
            chain.apply(np.zeros((4, 3)), 1, version)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="are a list"):
        chain.apply([[0.0] * 3], 1, 0)  # type: ignore[arg-type]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="version 2"):
        Chain(linear([torch.ones(2, 3), torch.ones(4, 5)]), 2)
    with pytest.raises(ShapeError, match="dim 2"):
        Chain(linear([torch.ones(2, 3)]), 2).apply(torch.ones(1, 2), 1, 0)
    with pytest.raises(ShapeError, match="takes 3"):
        LinearTransform(2, 3)(torch.ones(1, 2))


@pytest.mark.parametrize(("old", "new"), [(3, 5), (4, 4), (5, 3)])
def test_a_transform_starts_orthonormal(old: int, new: int, generator: torch.Generator) -> None:
    weight = LinearTransform(old, new, generator).weight.detach()
    small = weight @ weight.T if old <= new else weight.T @ weight
    torch.testing.assert_close(small, torch.eye(min(old, new)))


def test_integers_are_not_cut_short() -> None:
    with pytest.raises(DataError, match=r"of torch\.int64; they must be floats"):
        Chain(linear(matrices([2, 3])), 2).apply(torch.ones(1, 3, dtype=torch.long), 1, 0)


def test_what_is_no_transform_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"version 1 is of type Aligner; .* as_transform"):
        Chain([Aligner()], 2)  # type: ignore[list-item]


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
    with pytest.raises(UnknownVersionError, match="lead back only"):
        chain.steps(0, 1)
