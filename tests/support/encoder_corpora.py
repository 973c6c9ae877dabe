"""A corpus of three candidates with tags, and encoders of it as a recipe makes them."""

from __future__ import annotations

import json

import pyarrow as pa
import torch

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder, Schema, build_encoder
from evergram.encoders.kinds import ENCODERS

TAGS = {"x": ["a", "b"], "y": ["b"], "z": [], "new": ["c"]}


def tagged_corpus(candidates: str = "x y z") -> Corpus:
    """Each candidate has a query of its own, that met no other."""
    names = candidates.split()
    return Corpus.of(
        pa.table({"query": [f"of {name}" for name in names], "candidate": names}),
        candidate_features=pa.table({"id": names, "tags": [TAGS[name] for name in names]}),
    )


def default_encoder(encoder: type[Encoder], data: Corpus, seed: int = 0) -> Encoder:
    """An encoder as a recipe makes it by default, of 4 dims."""
    settings = ENCODERS[encoder.kind]()
    options = {"dim": 4, "scale": 0.1, **json.loads(json.dumps(settings.options(0)))}
    schema = Schema.of(data, features=settings.reads_features)
    return build_encoder(encoder.kind, options, schema, torch.Generator().manual_seed(seed))


def stranger(tags: list[str]) -> Corpus:
    """A query and a candidate that are in no other corpus."""
    return Corpus.of(
        pa.table({"query": ["?"], "candidate": ["?"]}),
        candidate_features=pa.table({"id": ["?"], "tags": [tags]}),
    )
