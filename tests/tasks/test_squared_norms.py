"""The mean of squared norms against autograd's own, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.tasks.squared_norms import mean_squared_norm


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=2),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_value_and_gradient_are_those_of_the_plain_formula(
    sizes: list[int], dim: int, weighted: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(*sizes, dim, dtype=torch.float64, generator=draw).requires_grad_()
    # A row of zeros, whose norm has no gradient.
    with torch.no_grad():
        rows[(0,) * len(sizes)] = 0
    weight = torch.randn(*sizes, dtype=torch.float64, generator=draw) if weighted else None
    plain = (rows.square().sum(-1) * (1 if weight is None else weight)).mean()
    mine = mean_squared_norm(rows, weight)
    torch.testing.assert_close(mine, plain)
    (gradient,) = torch.autograd.grad(3 * mine, rows)
    torch.testing.assert_close(gradient, torch.autograd.grad(3 * plain, rows)[0])
    assert torch.autograd.gradcheck(lambda x: mean_squared_norm(x, weight), (rows,))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_gradient_has_the_type_of_the_rows(kind: torch.dtype) -> None:
    rows = torch.ones(4, 2, dtype=kind, requires_grad=True)
    mean_squared_norm(rows, torch.ones(4, dtype=torch.float64)).backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    assert (rows.grad.dtype, rows.grad.tolist()) == (kind, [[0.5] * 2] * 4)
