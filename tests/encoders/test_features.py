"""Entities of any corpus, read in the rows of an encoder's own vocabularies."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from tests.support.encoder_corpora import tagged_corpus

from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.features import SIDES, EntityInputs, Schema
from evergram.errors import DataError

SCHEMA = Schema(
    {"ids": Vocabulary(pa.array(["b", "a"])), "words": Vocabulary(pa.array(["x", "y"]))},
    {"query": {"id": "ids"}, "candidate": {"id": "ids", "tags": "words", "also": "words"}},
)


def test_ids_and_features_are_rows_of_the_vocabularies() -> None:
    candidates = Corpus.from_tables(
        pa.table({"query": ["?"] * 3, "candidate": ["a", "c", "b"]}),
        candidate_features=pa.table(
            {"id": ["a", "c", "b"], "tags": [["y", "unknown", "x"], [], ["unknown"]]}
        ),
    ).candidates
    inputs = SCHEMA.read("candidate", candidates)
    assert inputs.ids.tolist() == [1, -1, 0]
    indices, offsets = inputs.bags["tags"]
    assert indices.tolist() == [1, 0]
    assert offsets.tolist() == [0, 2, 2, 2]
    # A feature that the corpus lacks has empty bags.
    assert inputs.bags["also"][1].tolist() == [0, 0, 0, 0]
    assert SCHEMA.read("query", candidates).bags == {}


def test_an_entity_is_known_by_its_id_or_by_a_feature() -> None:
    bag = torch.tensor([1]), torch.tensor([0, 0, 1, 1])
    inputs = EntityInputs(torch.tensor([0, -1, -1]), {"tags": bag})
    assert inputs.is_known.tolist() == [True, True, False]
    taken = inputs.take(torch.tensor([2, 1, 1]))
    assert len(taken) == 3
    assert taken.is_known.tolist() == [False, True, True]
    assert taken.bags["tags"][0].tolist() == [1, 1]


def test_sides_share_a_vocabulary_if_the_corpus_shares_its_ids() -> None:
    pairs = pa.table({"query": ["a"], "candidate": ["b"]})
    apart, shared = (
        Schema.of(Corpus.from_tables(pairs, shared_ids=each), features=True)
        for each in (False, True)
    )
    assert [apart.inputs[side]["id"] for side in SIDES] == ["query.id", "candidate.id"]
    assert [shared.inputs[side]["id"] for side in SIDES] == ["id", "id"]
    assert len(shared.ids("query")) == 2
    assert "feature.tags" in Schema.of(tagged_corpus(), features=True).vocabularies
    assert "feature.tags" not in Schema.of(tagged_corpus(), features=False).vocabularies


def test_features_that_would_share_a_table_are_refused() -> None:
    features = pa.table({"id": [1, 2], "genre.main": ["a", "b"], "genre/main": ["x", "y"]})
    pairs = pa.table({"query": [1, 2], "candidate": [1, 2]})
    corpus = Corpus.from_tables(pairs, candidate_features=features)
    with pytest.raises(DataError, match=r"genre\.main and genre/main would share one table"):
        Schema.of(corpus, features=True)
    assert len(Schema.of(corpus, features=False).vocabularies) == 2


def test_inputs_in_the_order_of_their_vocabulary_are_read_without_a_mask() -> None:
    corpus = tagged_corpus()
    own = Schema.of(corpus, features=True).read("candidate", corpus.candidates)
    assert own.in_order
    assert own.has_all_ids
    rows = torch.tensor([1, 0, 1])
    taken = own.take(rows)
    assert taken.ids.tolist() == own.ids[rows].tolist()
    assert taken.has_all_ids
    assert not taken.in_order
    # An id outside the vocabulary, and ids in another order.
    pairs = pa.table({"query": ["?"] * 3, "candidate": ["a", "c", "b"]})
    other = SCHEMA.read("candidate", Corpus.from_tables(pairs).candidates)
    assert not other.has_all_ids
    assert other.take(rows).ids.tolist() == [-1, 1, -1]
    turned = SCHEMA.read("candidate", Corpus.from_tables(pairs.take([0, 2])).candidates)
    assert turned.has_all_ids
    assert not turned.in_order
    assert turned.take(torch.tensor([1, 0])).ids.tolist() == [0, 1]
