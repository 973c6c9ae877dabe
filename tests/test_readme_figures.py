"""Each figure that the README says was measured is in a table of the page that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PART = (ROOT / "README.md").read_text().split("## What was measured\n")[1].split("\n## ")[0]
BULLETS = [" ".join(bullet.split()) for bullet in PART.split("\n- ")[1:]]
NUMBER = re.compile(r"\d+\.\d+")


def figures(bullet: str) -> list[str]:
    """Return the numbers of a bullet, without those of its links and settings."""
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", bullet)
    return NUMBER.findall(prose)


def cells(bullet: str) -> list[str]:
    """Return the numbers in the tables of the pages that a bullet links to."""
    pages = {target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", bullet)}
    assert pages, bullet
    lines = [line for page in pages for line in (ROOT / page).read_text().splitlines()]
    return [number for line in lines if line.startswith("|") for number in NUMBER.findall(line)]


def is_rounded(figure: str, cell: str) -> bool:
    """Return whether a figure is a cell's number with as many digits or fewer."""
    return f"{float(cell):.{len(figure.split('.')[1])}f}" == figure


@pytest.mark.parametrize("bullet", BULLETS, ids=[b.split("**")[1] for b in BULLETS])
def test_a_figure_of_the_readme_is_in_a_table_of_its_page(bullet: str) -> None:
    numbers = cells(bullet)
    missing = [f for f in figures(bullet) if not any(is_rounded(f, cell) for cell in numbers)]
    assert not missing, "write what the tables of the page say"


def test_there_are_figures_in_each() -> None:
    assert len(BULLETS) >= 5
    assert all(figures(bullet) for bullet in BULLETS)


def test_another_figure_is_noticed() -> None:
    assert not is_rounded("0.19", "0.1849")
    assert is_rounded("0.19", "0.1851")
    assert figures("0.5 [x](docs/a-0.7.md) `--worth 0.01` and 4.65 ± 3.05 %") == [
        *("0.5", "4.65", "3.05")
    ]
