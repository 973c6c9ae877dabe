"""The transform of a closed form, its ridge, and the pairs that a fit needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.several_processes import ended, start
from tests.support.thread_processes import in_threads
from torch import Tensor

from evergram.compatibility.closed_form_fit import (
    FOR_RIDGE,
    KINDS,
    fit_closed_form,
    moments_by_use,
    pairs_needed,
)
from evergram.compatibility.second_moments import SecondMoments
from evergram.errors import ShapeError


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def test_another_kind_is_refused() -> None:
    with pytest.raises(ShapeError, match="'residual_mlp' has no closed form"):
        fit_closed_form("residual_mlp", noisy(0, 12)[0])


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
            state = moments.state_dict()["sum"]
            torch.testing.assert_close(state, expected.state_dict()["sum"], rtol=1e-12, atol=1e-12)


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
