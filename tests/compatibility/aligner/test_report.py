"""The report of an aligner: figures of the held-out rows, or the reason why there are none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support.planted_maps import Floats, groups_of, planted_map

from evergram.compatibility import Aligner


def test_the_report_is_that_of_a_loop_over_held_out_rows() -> None:
    new, old, _ = planted_map(600, 4, 6, seed=3, noise=2.0)
    held = groups_of(new, 0.25)["held"]
    aligner = Aligner("affine", held_out=0.25).fit(new, old)
    mapped: Floats = aligner.transform(new[held])
    off = [float(np.square(m - y).sum()) for m, y in zip(mapped, old[held], strict=True)]
    power = [float(np.square(y).sum()) for y in old[held]]
    middle = old[held].mean(0)
    spread = [float(np.square(y - middle).sum()) for y in old[held]]
    wrong = [
        float(np.square(m - y).sum())
        for i, m in enumerate(mapped)
        for j, y in enumerate(old[held])
        if i != j
    ]
    report = aligner.report()
    assert (report.rows, report.held_out_rows) == (600, int(held.sum()))
    assert report.fitted_rows == 600 - report.held_out_rows
    assert report.relative_error == pytest.approx(math.sqrt(sum(off) / sum(power)), rel=1e-9)
    assert report.r2 == pytest.approx(1 - sum(off) / sum(spread), rel=1e-9)
    share = math.sqrt((sum(off) / len(off)) / (sum(wrong) / len(wrong)))
    assert report.share_of_chance == pytest.approx(share, rel=1e-9)
    assert report.better_than_chance is True
    assert report.reason is None
    # 7 numbers make a coordinate of an affine map from 6 dims; three rows for each.
    assert report.rows_needed == 21


def test_figures_of_too_few_rows_are_none_and_the_reason_says_why() -> None:
    new, old, _ = planted_map(60, 3, 5)
    report = Aligner().fit(new, old).report()
    assert report.held_out_rows < 20
    measured = (report.relative_error, report.r2, report.share_of_chance, report.deviations)
    assert measured == (None,) * 4
    assert not report.better_than_chance
    assert f"{report.held_out_rows} of 60 rows are held out" in (report.reason or "")
    assert "different" not in (report.reason or "")
    nothing = Aligner(held_out=0.0).fit(new, old).report()
    assert nothing.fitted_rows == 60
    assert not nothing.better_than_chance
    # Alike where they measure, though not everywhere.
    new, old, _ = planted_map(500, 3, 5)
    flat = np.where(groups_of(new, 0.1)["held"][:, None], 1.0, old)
    same = Aligner().fit(new, flat).report()
    assert same.r2 is None
    assert "are the same" in (same.reason or "")


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_repeat_are_too_few_to_measure_on(seed: int) -> None:
    """Twelve unrelated pairs, each forty times: were rows counted, chance would seem beaten."""
    draw = np.random.default_rng(seed)
    new, old = (np.repeat(draw.normal(size=(12, 3)), 40, axis=0) for _ in range(2))
    held = groups_of(new, 0.4)["held"]
    different = len(np.unique(new[held], axis=0))
    assert 1 < different < 12
    aligner = Aligner(held_out=0.4, ridge=0.1).fit(new, old)
    report = aligner.report()
    assert report.held_out_rows == held.sum() >= 20
    assert report.better_than_chance is None
    assert report.deviations is None
    assert f"are held out, with {different} different new vectors" in (report.reason or "")
    assert aligner.step_error().objects == different


def test_rows_that_repeat_leave_chance_as_it_is() -> None:
    new, old, _ = planted_map(600, 4, 6, seed=3, noise=2.0)
    once = Aligner(ridge=0.1).fit(new, old).report()
    again = Aligner(ridge=0.1).fit(np.repeat(new, 9, axis=0), np.repeat(old, 9, axis=0)).report()
    assert again.held_out_rows == 9 * once.held_out_rows
    assert again.deviations == pytest.approx(once.deviations, rel=1e-6)
    assert again.share_of_chance == pytest.approx(once.share_of_chance, rel=1e-6)
