"""Queries as means of their candidates, against loops over each query's set in float64."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder, Scene
from evergram.encoders.factory import build_encoder
from evergram.encoders.features import Schema
from evergram.encoders.graph.mean_of_candidates import MeanOfCandidates

Pairs = list[tuple[int, int]]
# Query 3 met one candidate, and 1 met candidate 1 twice.
PAIRS: Pairs = [(0, 0), (0, 1), (1, 1), (1, 2), (1, 1), (2, 0), (2, 2), (2, 3), (3, 3), (0, 4)]
MET = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=25)


def corpus_of(pairs: Pairs) -> Corpus:
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate}))


def encoder_of(data: Corpus, **options: Any) -> Encoder:
    draw = torch.Generator().manual_seed(0)
    schema = Schema.of(data, features=False)
    encoder = build_encoder("mean_of_candidates", {"dim": 3, **options}, schema, draw).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(generator=draw)
    return encoder


def table_of(encoder: Encoder) -> dict[int, Tensor]:
    """The row of each candidate by its id, normalised if the encoder normalises."""
    rows: Tensor = encoder.get_parameter("candidate.weight")
    if encoder.normalize:
        rows = functional.normalize(rows)
    keys = encoder.schema.ids("candidate").keys.to_pylist()
    return dict(zip(keys, rows, strict=False))


def mean_of(encoder: Encoder, candidates: set[int]) -> Tensor:
    table = table_of(encoder)
    rows = [table[b] for b in sorted(candidates) if b in table]
    total = torch.zeros(3, dtype=torch.float64)
    for row in rows:
        total = total + row / len(rows)
    return functional.normalize(total, dim=0) if encoder.normalize else total


def pairs_in(data: Corpus) -> Pairs:
    """The pairs by id, in the corpus's order."""
    sides = (data.queries, "query"), (data.candidates, "candidate")
    keys = [
        [side.vocabulary.keys[row].as_py() for row in data.column(name).tolist()]
        for side, name in sides
    ]
    return list(zip(*keys, strict=True))


def both_rows(encoder: Encoder, data: Corpus) -> tuple[Tensor, Tensor]:
    rows, without = encoder(encoder.read(data)).of_pairs(
        data.column("query"), data.column("candidate")
    )
    return rows, without


@settings(deadline=None, max_examples=40)
@given(MET, MET, st.booleans())
def test_rows_are_those_of_loops(trained: Pairs, read: Pairs, normalize: bool) -> None:
    """Of a corpus that has candidates which the encoder lacks, and pairs that repeat."""
    encoder = encoder_of(corpus_of(trained), normalize=normalize)
    data = corpus_of(read)
    vectors = encoder.embed_all(data)
    known = encoder.known("query", encoder.read(data)).tolist()
    for row, query in enumerate(data.queries.vocabulary.keys.to_pylist()):
        met = {b for a, b in read if a == query}
        torch.testing.assert_close(vectors["query"][row], mean_of(encoder, met).detach())
        assert known[row] == bool(met & set(table_of(encoder)))
    for row, candidate in enumerate(data.candidates.vocabulary.keys.to_pylist()):
        expected = table_of(encoder).get(candidate, torch.zeros(3, dtype=torch.float64))
        torch.testing.assert_close(vectors["candidate"][row], expected.detach())


@settings(deadline=None, max_examples=40)
@given(MET, st.booleans())
def test_a_pairs_own_candidate_is_not_in_its_query(pairs: Pairs, normalize: bool) -> None:
    data = corpus_of(pairs)
    encoder = encoder_of(data, normalize=normalize)
    whole, without = both_rows(encoder, data)
    for row, (query, candidate) in enumerate(pairs_in(data)):
        met = {b for a, b in pairs if a == query}
        torch.testing.assert_close(whole[row], mean_of(encoder, met))
        torch.testing.assert_close(without[row], mean_of(encoder, met - {candidate}))


@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_are_those_of_the_loops(normalize: bool) -> None:
    data = corpus_of(PAIRS)
    encoder = encoder_of(data, normalize=normalize)
    table = encoder.get_parameter("candidate.weight")
    draw = torch.Generator().manual_seed(4)
    targets = torch.randn(2, len(PAIRS), 3, generator=draw, dtype=torch.float64)
    sum(
        ((rows - target) ** 2).sum()
        for rows, target in zip(both_rows(encoder, data), targets, strict=True)
    ).backward()
    assert table.grad is not None
    assert table.grad.is_sparse
    got = table.grad.to_dense().clone()
    table.grad = None
    loss = torch.zeros((), dtype=torch.float64)
    for row, (query, candidate) in enumerate(pairs_in(data)):
        met = {b for a, b in PAIRS if a == query}
        loss = loss + ((mean_of(encoder, met) - targets[0, row]) ** 2).sum()
        loss = loss + ((mean_of(encoder, met - {candidate}) - targets[1, row]) ** 2).sum()
    (expected,) = torch.autograd.grad(loss, table)
    torch.testing.assert_close(got, expected)


def test_a_query_of_one_pair_has_nothing_without_it() -> None:
    """In float32, where a sum less its only term could leave rounding behind."""
    data = corpus_of(PAIRS)
    _, without = both_rows(encoder_of(data).float(), data)
    rows = dict(zip(pairs_in(data), without, strict=True))
    assert torch.equal(rows[3, 3], torch.zeros(3))
    assert rows[0, 0].abs().sum() > 0


def test_a_new_query_follows_what_it_met() -> None:
    """A published encoder keeps no query: those of another corpus are whom they met there."""
    data = corpus_of(PAIRS)
    encoder = encoder_of(data)
    assert [name for name, _ in encoder.named_parameters()] == ["candidate.weight"]
    grown = corpus_of([*PAIRS, (3, 0), (9, 2), (9, 4)])
    vectors = encoder.embed_all(grown)["query"]
    places = {key: i for i, key in enumerate(grown.queries.vocabulary.keys.to_pylist())}
    assert torch.allclose(vectors[places[9]], mean_of(encoder, {2, 4}))
    assert torch.allclose(vectors[places[3]], mean_of(encoder, {0, 3}))


def test_a_scene_without_interactions_is_refused() -> None:
    data = corpus_of(PAIRS)
    encoder = encoder_of(data)
    assert isinstance(encoder, MeanOfCandidates)
    embeddings = encoder(Scene(encoder.read(data).inputs))
    with pytest.raises(ValueError, match=r"has no graph; make it with `read` of the encoder"):
        embeddings.rows("query", torch.tensor([0]))
