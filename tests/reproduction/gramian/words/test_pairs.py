"""The corpus of words: subsampling and repeats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reproduction.gramian.words.counts import count_words
from reproduction.gramian.words.pairs import corpus_of, subsampled

from evergram import Corpus

COUNTS = count_words([list("abacabad"), list("dabbaca")], vocabulary=4, window=3)


def repeats(corpus: Corpus) -> np.ndarray:
    """How often each pair is in a corpus, [V, V]."""
    made = np.zeros((4, 4))
    keys = [side.vocabulary.keys.to_pylist() for side in (corpus.queries, corpus.candidates)]
    pairs = zip(corpus.column("query").tolist(), corpus.column("candidate").tolist(), strict=True)
    for query, candidate in pairs:
        made[keys[0][query], keys[1][candidate]] += 1
    return made


def test_a_pair_is_repeated_in_proportion_to_its_count() -> None:
    expected = np.zeros((4, 4))
    expected[COUNTS.query, COUNTS.candidate] = COUNTS.count / COUNTS.count.sum() * 100
    made = [repeats(corpus_of(COUNTS, rows=100, seed=seed)) for seed in range(400)]
    for one in made:
        assert np.abs(one - expected).max() < 1
    # The mean of 400 such roundings: a standard error of at most 0.5 / 20.
    assert np.abs(np.mean(made, axis=0) - expected).max() < 0.1


def test_the_same_seed_gives_the_same_corpus() -> None:
    one, two, other = (corpus_of(COUNTS, rows=50, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.column("query"), two.column("query"))
    assert not np.array_equal(repeats(one), repeats(other))


def test_frequent_words_are_thinned_out() -> None:
    share = COUNTS.frequency / COUNTS.tokens
    thinned = subsampled(COUNTS, 0.2)
    kept = [min(1.0, (0.2 / f) ** 0.5) for f in share]
    assert kept[0] < kept[1] < 1.0 == kept[-1]
    for a, b, before, after in zip(
        COUNTS.query, COUNTS.candidate, COUNTS.count, thinned.count, strict=True
    ):
        assert after == pytest.approx(before * kept[a] * kept[b])
    assert subsampled(COUNTS, 0) is COUNTS
