"""The pages of a dump: their articles, and names and ids that lead to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dumps import PAGES, new_dump, old_dump, write_table

from evergram.data.wikipedia.dump_files import DumpFiles
from evergram.data.wikipedia.dump_pages import (
    MISSING,
    OUTSIDE,
    Keys,
    Pages,
    at,
    read_pages,
    read_targets,
)
from evergram.errors import DataError


def pages_of(folder: Path, namespace: int = 0) -> Pages:
    dump = DumpFiles(folder, None)
    return read_pages(dump, dump.open("page"), dump.open("redirect"), namespace)


@given(
    keys=st.lists(st.integers(-5, 40), unique=True), asked=st.lists(st.none() | st.integers(-9, 45))
)
def test_keys_are_at_their_places(keys: list[int], asked: list[int | None]) -> None:
    expected = [keys.index(a) if a in keys else -1 for a in asked if a is not None]
    numbers = pa.array([a for a in asked if a is not None], pa.int64())
    assert Keys(pa.array(keys, pa.int64())).places(numbers).tolist() == expected
    texts = Keys(pa.array([str(key) for key in keys], pa.string()))
    assert texts.places(numbers.cast(pa.string())).tolist() == expected


def test_redirects_lead_to_articles(tmp_path: Path) -> None:
    pages = pages_of(old_dump(tmp_path))
    ids = pages.ids.keys.to_pylist()
    assert ids == [page[0] for page in PAGES if page[1] == 0]
    ends = {i: ids[end] for i, end in zip(ids, pages.article, strict=True) if end != MISSING}
    # 3 and 4 lead to 2; 5 and 6 to each other, 7 to another wiki, 8 to nothing.
    assert ends == {1: 1, 2: 2, 3: 2, 4: 2, 10: 10}


def test_long_chains_end_at_their_article_and_loops_nowhere(tmp_path: Path) -> None:
    chain = range(1, 31)
    rows = [(i, 0, f"P{i}", int(i < 30)) for i in chain]
    write_table(tmp_path, "page", "page_id page_namespace page_title page_is_redirect", rows)
    columns = "rd_from rd_namespace rd_title"
    write_table(tmp_path, "redirect", columns, [(i, 0, f"P{i + 1}") for i in chain if i < 30])
    assert pages_of(tmp_path).article.tolist() == [29] * 30
    write_table(tmp_path, "redirect", columns, [(i, 0, f"P{i % 5 + 1}") for i in chain if i < 30])
    assert pages_of(tmp_path).article.tolist() == [MISSING] * 29 + [29]


def test_names_and_ids_of_other_pages(tmp_path: Path) -> None:
    pages = pages_of(old_dump(tmp_path))
    names = pa.array(["April", "Nowhere", "April"]), pa.array([0, 0, 1])
    assert pages.by_title(names[1], names[0]).tolist() == [0, MISSING, OUTSIDE]
    # A redirect and a page that there is not are no articles.
    assert pages.articles(pa.array([10, 3, 99])).tolist() == [8, MISSING, MISSING]


def test_targets_lead_to_pages_and_categories(tmp_path: Path) -> None:
    dump = DumpFiles(new_dump(tmp_path), None)
    pages = read_pages(dump, dump.open("page"), dump.open("redirect"), 0)
    targets = read_targets(dump, dump.open("linktarget"), pages)
    assert len(targets.pages) == len(targets.ids.keys) == 12
    assert set(targets.categories.to_pylist()) == {"Months", "Months_of_spring", "People"}
    named = {page[2]: place for place, page in enumerate(p for p in PAGES if p[1] == 0)}
    assert {p for p in targets.pages.tolist() if p >= 0} <= set(named.values())
    assert sorted(p for p in targets.pages.tolist() if p < 0) == [OUTSIDE] * 4 + [MISSING]


def test_a_namespace_without_pages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no page of namespace 7; it has pages of 0, 1"):
        pages_of(old_dump(tmp_path), 7)


def test_no_place_has_the_other_value() -> None:
    assert at(np.array([5, 6]), np.array([1, -1, 0, -3]), -7).tolist() == [6, -7, 5, -7]
