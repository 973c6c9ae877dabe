"""Unit rows and their gradient are torch's, in fewer passes."""

from __future__ import annotations

import torch

from evergram.encoders.tables.unit_rows import unit_rows


def test_unit_rows_are_torchs_with_its_gradient() -> None:
    """Also of a row of zeros, and of a long one."""
    rows = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows[2] = 0
    rows[4] *= 1e6
    grad = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    results = []
    for function in (unit_rows, torch.nn.functional.normalize):
        inputs = rows.clone().requires_grad_()
        unit = function(inputs)
        unit.backward(grad)  # type: ignore[no-untyped-call]
        results.append((unit.detach(), inputs.grad))
    for own, theirs in zip(*results, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-12, atol=1e-12)
    inputs = rows[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(unit_rows, inputs)
