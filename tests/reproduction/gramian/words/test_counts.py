"""Counts of words near each other, against a loop over all windows."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reproduction.gramian.words.counts import Counts, count_words

from evergram.errors import DataError
from reproduction.gramian.words import counts as module

PARAGRAPHS = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=12), max_size=6)


def slow_counts(
    paragraphs: list[list[str]], vocabulary: int, window: int
) -> tuple[list[str], dict[tuple[str, str], float]]:
    """The vocabulary, and the count of each pair, window by window."""
    text = [word for paragraph in paragraphs for word in paragraph]
    frequency = Counter(text)
    words = sorted(frequency, key=lambda w: (-frequency[w], text.index(w)))[:vocabulary]
    pairs: dict[tuple[str, str], float] = defaultdict(float)
    for paragraph in paragraphs:
        for i, word in enumerate(paragraph):
            # word2vec's window of every size, each as likely as the others.
            for size in range(1, window + 1):
                around = paragraph[max(0, i - size) : i] + paragraph[i + 1 : i + 1 + size]
                for context in around:
                    if word in words and context in words:
                        pairs[word, context] += 1 / window
    return words, pairs


def as_dict(counts: Counts) -> dict[tuple[str, str], float]:
    keys = zip(counts.query, counts.candidate, strict=True)
    pairs = [(counts.words[a], counts.words[b]) for a, b in keys]
    assert len(set(pairs)) == len(pairs)
    return dict(zip(pairs, counts.count.tolist(), strict=True))


@given(PARAGRAPHS, st.integers(1, 8), st.integers(1, 5))
def test_counts_are_those_of_all_windows(
    paragraphs: list[list[str]], vocabulary: int, window: int
) -> None:
    words, pairs = slow_counts(paragraphs, vocabulary, window)
    if not pairs:
        with pytest.raises(DataError, match=r"no two words|no word"):
            count_words(paragraphs, vocabulary=vocabulary, window=window)
        return
    counts = count_words(paragraphs, vocabulary=vocabulary, window=window)
    assert list(counts.words) == words
    assert as_dict(counts) == pytest.approx(pairs)
    text = [word for paragraph in paragraphs for word in paragraph]
    assert counts.tokens == len(text)
    assert counts.frequency.tolist() == [text.count(word) for word in words]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    paragraphs = [[f"w{'abcdefghij'[i]}" for i in draw.integers(10, size=30)] for _ in range(8)]
    whole = count_words(paragraphs, vocabulary=9, window=4)
    monkeypatch.setattr(module, "CELLS", 20)
    monkeypatch.setattr(module, "PLACES", 7)
    parts = count_words(paragraphs, vocabulary=9, window=4)
    for name in ("query", "candidate", "count", "frequency"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))


def test_counts_are_the_same_in_both_directions() -> None:
    counts = as_dict(count_words([list("abcab"), list("ca")], vocabulary=3, window=2))
    assert counts == {(b, a): count for (a, b), count in counts.items()}
    # b and c at distance 1 once, and at 2 once; a and b at 1 twice, and at 2 once.
    assert counts["b", "c"] == 1.5
    assert counts["a", "b"] == 2.5
