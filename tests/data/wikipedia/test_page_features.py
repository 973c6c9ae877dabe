"""The n-grams of titles."""

from __future__ import annotations

import pyarrow as pa

from evergram.data.wikipedia.page_features import title_ngrams


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
