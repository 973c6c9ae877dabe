"""Fitting an aligner: the rows that are fitted to, and those that choose the ridge."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.planted_maps import groups_of, planted_map, ridge_by_rows, weight_of

from evergram.compatibility import Aligner
from evergram.compatibility.closed_form_solvers import RIDGES
from evergram.errors import DataError


@pytest.mark.parametrize("seed", range(3))
def test_the_ridge_is_the_one_that_errs_least_on_rows_not_fitted_to(seed: int) -> None:
    """Every ridge is tried by least squares, and its error summed row by row."""
    new, old, _ = planted_map(60, 4, 20, seed, noise=6.0)
    rows = groups_of(new, 0.1)
    seen, chosen = rows["seen"], rows["chosen"]
    unit = float(np.square(new[seen]).sum(1).mean()) / 20
    errors = {}
    for share in RIDGES:
        weight = ridge_by_rows(new[seen], old[seen], share * unit)
        errors[share * unit] = sum(
            float(np.square(weight @ z - y).sum())
            for z, y in zip(new[chosen], old[chosen], strict=True)
        )
    best = min(errors, key=lambda rho: errors[rho])
    aligner = Aligner().fit(new, old)
    assert aligner.report().ridge == pytest.approx(best, rel=1e-9)
    assert best > 0
    expected = ridge_by_rows(new[~rows["held"]], old[~rows["held"]], best)
    np.testing.assert_allclose(weight_of(aligner)[:, :20], expected, rtol=1e-6, atol=1e-8)


def test_held_out_rows_change_nothing_of_the_map() -> None:
    new, old, _ = planted_map(300, 3, 5, noise=0.5)
    held = groups_of(new, 0.1)["held"]
    nonsense = np.where(held[:, None], 1000.0, old)
    one, other = Aligner().fit(new, old), Aligner().fit(new, nonsense)
    assert np.array_equal(one.transform(new), other.transform(new))
    assert one.report().r2 != other.report().r2


def test_too_few_rows_are_refused_when_the_map_is_wanted() -> None:
    new, old, _ = planted_map(40, 3, 5)
    with pytest.raises(DataError, match=r"call fit\(new, old\) first"):
        Aligner().transform(new)
    with pytest.raises(DataError, match="Of 1 rows"):
        Aligner().fit(new[:1], old[:1]).transform(new)
    chosen = groups_of(new, 0.1)["chosen"]
    few = np.flatnonzero(~chosen)[:5]
    aligner = Aligner().fit(new[few], old[few])
    with pytest.raises(
        DataError, match="and 0 would choose the ridge; give more rows, or a number"
    ):
        aligner.transform(new)
    assert Aligner(ridge=0.1).fit(new[few], old[few]).transform(new).shape == (40, 3)
    assert Aligner("orthogonal").fit(new[few], old[few]).transform(new).shape == (40, 3)


def test_too_few_rows_are_told_to_hold_fewer_out_only_where_some_are() -> None:
    new, old, _ = planted_map(1, 3, 5)
    with pytest.raises(DataError, match=r"Of 1 rows 0 are held .* 1 to fit to; give more rows\.$"):
        Aligner(held_out=0).fit(new, old).report()
    new, old, _ = planted_map(6, 3, 5)
    with pytest.raises(DataError, match=r"to fit to; give more rows, or a lower held_out\.$"):
        Aligner(held_out=0.9).fit(new, old).report()
