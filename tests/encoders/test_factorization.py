"""One free vector for each id, and zero for an unknown one."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from tests.support.encoder_corpora import default_encoder, tagged_corpus

from evergram.data.corpus import Corpus
from evergram.encoders.factorization import Factorization
from evergram.encoders.features import Schema


def test_an_embedding_is_the_row_of_its_id_and_features_do_not_count() -> None:
    data, grown = tagged_corpus(), tagged_corpus("new z x")
    encoder = default_encoder(Factorization, data)
    assert isinstance(encoder, Factorization)
    vectors = encoder.embed_all(grown)["candidate"]
    assert torch.equal(vectors[1:], encoder.candidate.weight[[2, 0]])
    assert not bool(vectors[0].any())
    assert encoder.known("candidate", encoder.read(grown)).tolist() == [False, True, True]


def test_the_rows_start_with_the_deviation_of_scale() -> None:
    data = Corpus.from_tables(pa.table({"query": range(2000), "candidate": range(2000)}))
    schema, draw = Schema.of(data, features=False), torch.Generator().manual_seed(0)
    encoder = Factorization(schema, 8, scale=0.3, generator=draw)
    assert float(encoder.query.weight.detach().std()) == pytest.approx(0.3, rel=0.05)
    assert encoder.keyed() == {"query.weight": "query.id", "candidate.weight": "candidate.id"}
