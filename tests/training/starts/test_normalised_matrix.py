"""The normalised matrix, against its dense formula."""

from __future__ import annotations

import torch

from evergram.data.corpus import Corpus
from evergram.training.starts.normalised_matrix import NormalisedMatrix

PAIRS = [("a", 1), ("a", 2), ("b", 1), ("c", 3), ("a", 1), ("c", 1), ("d", 2), ("d", 1)]


def test_each_distinct_pair_is_divided_by_the_roots_of_its_degrees() -> None:
    corpus = Corpus.of(PAIRS)
    matrix = NormalisedMatrix.of(corpus, torch.float64)
    queries = {key: i for i, key in enumerate(corpus.queries.vocabulary.keys.to_pylist())}
    candidates = {key: i for i, key in enumerate(corpus.candidates.vocabulary.keys.to_pylist())}
    expected = torch.zeros(4, 3, dtype=torch.float64)
    for query, candidate in set(PAIRS):
        fans = (
            len({c for q, c in PAIRS if q == query}),
            len({q for q, c in PAIRS if c == candidate}),
        )
        value = 1 / ((fans[0] + 5) * (fans[1] + 5)) ** 0.5
        expected[queries[query], candidates[candidate]] = value
    torch.testing.assert_close(matrix.matrix.to_dense(), expected, rtol=1e-12, atol=0)
    assert torch.equal(matrix.transposed.to_dense(), matrix.matrix.to_dense().T)


def test_the_leading_pair_is_that_of_a_dense_decomposition() -> None:
    drawn = torch.randint(0, 12, (90, 2), generator=torch.Generator().manual_seed(3))
    matrix = NormalisedMatrix.of(Corpus.of([(a, b) for a, b in drawn.tolist()]), torch.float64)
    left, _, right = torch.linalg.svd(matrix.matrix.to_dense())
    for mine, theirs in zip(matrix.leading_pair(), (left[:, 0], right[0]), strict=True):
        torch.testing.assert_close(mine, theirs * theirs.sum().sign(), rtol=0, atol=1e-6)
