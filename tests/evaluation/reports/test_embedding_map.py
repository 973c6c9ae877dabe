"""A map shows the two largest principal components, and the name of each dot."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from evergram.errors import ShapeError
from evergram.evaluation import EmbeddingMap


def test_its_plane_has_the_largest_variance() -> None:
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(200, 6)) * np.array([5, 3, 1, 0.5, 0.2, 0.1])
    mapped = EmbeddingMap.of(vectors, list(range(200)))
    # Another algorithm: the eigenvalues of the covariance.
    values = np.linalg.eigvalsh(np.cov(vectors.T, bias=True))[::-1]
    assert mapped.share == pytest.approx(values[:2].sum() / values.sum())
    np.testing.assert_allclose(mapped.points.var(0), values[:2])
    assert mapped.points.mean(0) == pytest.approx([0, 0], abs=1e-9)


def test_each_dot_says_its_name_and_group_and_nothing_is_markup(tmp_path: Path) -> None:
    vectors = torch.eye(3)
    html = EmbeddingMap.of(vectors, ["<b>", "two", 3], groups=["x & y", "z", "z"])._repr_html_()
    titles = re.findall(r"<title>(.*?)</title>", html)
    assert titles == ["&lt;b&gt; (x &amp; y)", "two (z)", "3 (z)"]
    assert html.count("<circle") == 3
    assert html.count("<li>") == 2
    saved = EmbeddingMap.of(vectors, "abc").save(tmp_path / "map.html")
    assert saved.read_text().startswith("<!doctype html>")
    assert "<li>" not in saved.read_text()


def test_nine_groups_have_eight_colours_and_grey_for_the_smallest() -> None:
    groups = [f"g{i}" for i in range(9) for _ in range(9 - i)]
    mapped = EmbeddingMap.of(torch.randn(len(groups), 4), groups, groups)
    html = mapped._repr_html_()
    assert html.count("<li>") == 8
    assert html.count('fill="#9ca3af"') == 1


@pytest.mark.parametrize(
    ("vectors", "names", "sentence"),
    [
        (
            torch.ones(3),
            "abc",
            r"with N and D above 1, and these are \[3\]",
        ),
        (torch.full((3, 2), torch.nan), "abc", "without NaN"),
        (torch.ones(3, 2), "ab", "There are 2 names of 3 vectors"),
    ],
)
def test_what_is_no_matrix_of_named_rows_is_refused(
    vectors: torch.Tensor, names: str, sentence: str
) -> None:
    with pytest.raises(ShapeError, match=sentence):
        EmbeddingMap.of(vectors, names)


def test_equal_vectors_lie_on_one_point() -> None:
    mapped = EmbeddingMap.of(torch.ones(4, 3), "abcd")
    assert mapped.share == 0
    assert "nan" not in mapped._repr_html_()


def test_a_saved_map_is_a_page_with_a_heading_and_a_landmark(tmp_path: Path) -> None:
    page = EmbeddingMap.of(torch.ones(4, 3), "abcd").save(tmp_path / "map.html").read_text()
    assert page.count("<main>") == page.count("</main>") == 1
    assert page.index("<main>") < page.index("<h1>Embeddings</h1>") < page.index("<svg")
