"""Rows that tables start from: random vectors, smoothed over the interactions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.encoder_corpora import default_encoder

from evergram.data.corpus import Corpus
from evergram.encoders.factorization import Factorization
from evergram.encoders.graph.smoothed_rows import SHRINKAGE, smoothed_rows, start_smoothed


def corpus_of(pairs: list[tuple[int, int]]) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate}))


def drawn_corpus(queries: int = 30, candidates: int = 20, seed: int = 0) -> Corpus:
    draw = np.random.default_rng(seed)
    met = draw.random((queries, candidates)) < 0.3
    met[:, 0] = True  # a popular one, so that everybody has a pair
    return corpus_of([(int(a), int(b)) for a, b in np.argwhere(met)])


def dense(corpus: Corpus) -> np.ndarray:
    matrix = np.zeros((len(corpus.queries), len(corpus.candidates)))
    matrix[corpus.column("query").numpy(), corpus.column("candidate").numpy()] = 1
    return matrix


def test_rows_are_those_of_dense_products() -> None:
    """Projections as matrices, and the normalised matrix in float64, in another order."""
    corpus = drawn_corpus()
    rows = smoothed_rows(corpus, 5, torch.Generator().manual_seed(3))
    met = dense(corpus)
    degrees = met.sum(1), met.sum(0)
    normalised = met / np.sqrt(np.outer(degrees[0] + SHRINKAGE, degrees[1] + SHRINKAGE))
    left, right = (np.eye(len(d)) - np.outer(np.sqrt(d), np.sqrt(d)) / d.sum() for d in degrees)
    drawn = torch.randn(met.shape[1], 5, generator=torch.Generator().manual_seed(3)).numpy()
    down, up = left @ normalised, right @ normalised.T
    expected = {"query": down @ up @ down @ drawn, "candidate": up @ down @ up @ down @ drawn}
    for side, values in expected.items():
        unit = values / np.linalg.norm(values, axis=1, keepdims=True)
        assert rows[side].numpy() == pytest.approx(unit, abs=2e-5)


def test_entities_with_the_same_neighbours_start_together_and_others_do_not() -> None:
    corpus = corpus_of([(a, b) for a in range(40) for b in range(20) if a % 2 == b % 2])
    rows = smoothed_rows(corpus, 32, torch.Generator().manual_seed(0))
    scores = rows["query"] @ rows["candidate"].T
    same = torch.from_numpy(dense(corpus)) > 0
    assert float(scores[same].min()) > 0.9
    assert float(scores[~same].max()) < 0


def test_repeated_interactions_count_once() -> None:
    pairs = [(0, 0), (0, 1), (1, 1), (2, 0), (2, 2), (1, 2)]
    once, twice = (
        smoothed_rows(corpus_of(p), 4, torch.Generator().manual_seed(1))
        for p in (pairs, [*pairs, (1, 1), (1, 1)])
    )
    assert all(torch.equal(once[side], twice[side]) for side in once)


def test_tables_keep_the_length_of_their_rows_and_rows_of_nobody_stay() -> None:
    corpus = corpus_of([(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)])
    whole = corpus_of([(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)])
    encoder = default_encoder(Factorization, whole)
    before = encoder.get_parameter("candidate.weight").detach().clone()
    start_smoothed(encoder, corpus, seed=0)
    after = encoder.get_parameter("candidate.weight").detach()
    others = slice(0, 3)  # by first appearance
    assert torch.equal(after[3], before[3])
    length = before.square().sum(1).mean().sqrt()
    assert after[others].norm(dim=1).numpy() == pytest.approx(float(length), rel=1e-5)
    again = default_encoder(Factorization, whole)
    start_smoothed(again, corpus, seed=0)
    assert torch.equal(again.get_parameter("candidate.weight"), after)
