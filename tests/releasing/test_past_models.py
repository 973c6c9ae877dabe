"""A past version is known by its encoder, or by the embeddings that are stored of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import torch
from tests.support.encoders import CANDIDATES, QUERIES, SEEN, lineage_with_encoder

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.releasing.past_models import StoredModel, known_vectors, past_model

# A query and a candidate that version 0 does not know are among these.
PAIRS = [*SEEN, ("zoe", 100), ("ann", 999)]


def corpus() -> Corpus:
    queries, candidates = zip(*PAIRS, strict=True)
    table = pa.table({"query": queries, "candidate": candidates})
    genres = pa.table({"id": [100, 101, 139, 999], "genre": ["drama", "noir", "war", "drama"]})
    return Corpus.from_tables(table, candidate_features=genres)


def test_a_stored_model_knows_the_objects_that_it_has_vectors_of() -> None:
    draw = torch.Generator().manual_seed(0)
    stored = {
        "query": (pa.array(QUERIES), torch.randn(len(QUERIES), 4, generator=draw)),
        "candidate": (pa.array(CANDIDATES), torch.randn(len(CANDIDATES), 4, generator=draw)),
    }
    data = corpus()
    vectors, known = known_vectors(StoredModel(4, stored), data)
    names = data.queries.vocabulary.keys.to_pylist()
    assert [names[i] for i in torch.nonzero(~known["query"]).flatten()] == ["zoe"]
    for row, name in enumerate(names):
        own = stored["query"][1][QUERIES.index(name)] if name != "zoe" else torch.zeros(4)
        assert torch.equal(vectors["query"][row], own)


def test_a_built_in_encoder_needs_no_modules_and_knows_its_ids_or_features(tmp_path: Path) -> None:
    model = past_model(lineage_with_encoder(tmp_path / "l"), 0)
    assert isinstance(model, Encoder)
    data = corpus()
    vectors, known = known_vectors(model, data)
    assert vectors["query"].shape == (len(data.queries), 4)
    names = data.queries.vocabulary.keys.to_pylist()
    assert known["query"].tolist() == [name in QUERIES for name in names]
