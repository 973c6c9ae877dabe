"""Make ranking targets of held-out pairs, with the pairs that a model has seen masked."""

from __future__ import annotations

from evergram.data.corpus import Corpus
from evergram.data.split import RowPairs, Split, known_pairs
from evergram.evaluation.ranking import Relevance


def relevance_of(corpus: Corpus, pairs: RowPairs) -> Relevance:
    """Return held-out pairs as targets, with the training pairs masked."""
    return Relevance.of(pairs.query, pairs.candidate, *corpus.pairs_of(pairs.query))


def test_relevance(split: Split) -> Relevance:
    """Return the test pairs as targets, with the pairs of training and of selection masked."""
    known = known_pairs(split)
    return Relevance.of(split.test.query, split.test.candidate, known.query, known.candidate)
