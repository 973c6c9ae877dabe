"""Charts in SVG: their points are where their values are."""

from __future__ import annotations

import re

import pytest

from evergram.evaluation.reports.svg_charts import Axes, Line, chart, ticks


def test_points_are_in_proportion_to_values() -> None:
    text = chart(Axes("t", "a <b>", "x", marked=(2, "here")), [Line("l", [(0, 0), (1, 1), (2, 4)])])
    points = [tuple(map(float, p)) for p in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', text)]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y2 == pytest.approx(4 * (y0 - y1), abs=0.4)
    assert f'class="chosen" x1="{x2}"' in text
    assert 'role="img" aria-label="a &lt;b&gt;"' in text


def test_what_cannot_be_drawn_is_left_out_and_nothing_left_says_so() -> None:
    axes = Axes("t", "a", "x", logarithmic=True)
    assert "not measured" in chart(axes, [Line("l", [(1, 0.0), (2, float("nan"))])])
    assert chart(axes, [Line("l", [(1, 0.0), (2, 1.0), (3, 0.5)])]).count("<circle") == 2


def test_ticks_are_round_and_within() -> None:
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert ticks(0.37, 0.384) == pytest.approx([0.37, 0.375, 0.38])
    assert ticks(3, 3) == [3]
