"""Figures."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from reproduction.experiment import Line, Panel
from reproduction.report.drawing import COLOURS, draw, fingerprint

PANEL = Panel(
    "validation",
    "CPU seconds",
    "MAP@10",
    [
        Line("SOGram", [1, 2, 3], [[0.1, 0.2, 0.3], [0.1, 0.3, 0.4], [0.2, 0.2, 0.5]]),
        Line("sampling", [1, 2, 3], [[0.1, 0.1, 0.1]], dashed=True),
    ],
)


def texts(svg: str) -> set[str]:
    return {node.text or "" for node in ElementTree.fromstring(svg).iter() if node.text}


def test_axes_and_lines_are_labelled() -> None:
    svg = draw([PANEL, replace(PANEL, title="training")])
    assert {"validation", "training", "CPU seconds", "MAP@10", "SOGram", "sampling"} <= texts(svg)


def test_baselines_are_dashed_and_bands_are_where_seeds_are() -> None:
    svg = draw([PANEL])
    assert "stroke-dasharray: 4.81" in svg  # the dashes of one line width
    assert svg.count("fill-opacity") + svg.count("opacity: 0.15") >= 1
    single = replace(PANEL, lines=[Line("SOGram", [1, 2], [[0.1, 0.2]])])
    assert "0.15" not in draw([single])


def test_a_histogram_is_drawn_by_its_edges() -> None:
    steps = replace(PANEL, lines=[Line("epoch 1", [0, 1, 2], [[0.5, 0.5]], steps=True)])
    assert "epoch 1" in texts(draw([steps]))


def test_the_same_panels_give_the_same_picture() -> None:
    assert draw([PANEL]) == draw([PANEL])
    assert draw([]) == ""


def test_the_fingerprint_is_of_all_that_is_drawn() -> None:
    line = PANEL.lines[0]
    changed = [
        replace(PANEL, title="x"),
        replace(PANEL, log_y=True),
        replace(PANEL, lines=[replace(line, dashed=True), PANEL.lines[1]]),
        replace(PANEL, lines=[replace(line, values=[[0.1, 0.2, 0.31]]), PANEL.lines[1]]),
    ]
    hashes = {fingerprint([panel]) for panel in [PANEL, *changed]}
    assert len(hashes) == 5


@pytest.mark.parametrize("count", [1, 4, 7])
def test_any_number_of_panels_fits(count: int) -> None:
    assert draw([PANEL] * count).count('id="axes_') >= count


def test_colours_differ_in_lightness_for_readers_without_hues() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return float(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2)

    assert len({round(lightness(colour), 2) for colour in COLOURS}) >= len(COLOURS) - 1
