"""Features of pages: n-grams of titles, and categories."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from evergram.data.wikipedia.page_features import distinct, page_features, title_ngrams


def test_title_ngrams() -> None:
    titles = pa.array(["_The_the_THE", "2006年_(film)", "!!!", "", "हिन्दी भाषा"])
    assert [set(bag) for bag in title_ngrams(titles).to_pylist()] == [
        {"the", "the the"},
        {"2006年", "film", "2006年 film"},
        set(),
        set(),
        {"हिन्दी", "भाषा", "हिन्दी भाषा"},
    ]
    assert title_ngrams(pa.array([], pa.string())).to_pylist() == []


def test_rare_ngrams_and_categories_are_left_out() -> None:
    table = page_features(
        pa.array([10, 20, 30]),
        pa.array(["red fish", "blue fish", "fish"]),
        np.array([0, 2, 1, 2, 2]),
        pa.array(["colours", "animals", "colours", "animals", "rivers"]),
        min_pages=2,
    )
    assert table["id"].to_pylist() == [10, 20, 30]
    assert table["title"].to_pylist() == [["fish"]] * 3
    # A page that is twice in a category counts once.
    assert table["category"].to_pylist() == [["colours"], ["colours"], []]


def test_distinct_codes_are_in_order() -> None:
    assert distinct(np.array([3, 1, 3, 2, 1])).tolist() == [1, 2, 3]
    assert distinct(np.array([], np.int64)).tolist() == []
