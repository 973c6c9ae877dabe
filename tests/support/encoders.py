"""A small lineage whose encoder reads ids and features, without a training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Vocabulary
from evergram.data.split import PairHash, TrainedPairs
from evergram.encoders.encoder import RowEncoder, Schema, build_encoder
from evergram.lineage.artefact import Artefact, EncoderParts
from evergram.lineage.lineage import Lineage

QUERIES, CANDIDATES = ["ann", "bob", "eve"], list(range(100, 140))
GENRES = ["drama", "noir", "war"]
DIM = 4
# The pairs that version 0 was trained on.
SEEN = [("ann", 100), ("ann", 101), ("bob", 139)]
METRICS = {"metrics": {"model": {"recall@20": 0.25, "map@10": None}}}


def two_tower() -> RowEncoder:
    """An untrained encoder of ids and genres, whose tables are all drawn."""
    schema = Schema(
        {
            "query.id": Vocabulary(pa.array(QUERIES)),
            "candidate.id": Vocabulary(pa.array(CANDIDATES)),
            "feature.genre": Vocabulary(pa.array(GENRES)),
        },
        {
            "query": {"id": "query.id"},
            "candidate": {"id": "candidate.id", "genre": "feature.genre"},
        },
    )
    draw = torch.Generator().manual_seed(0)
    encoder = build_encoder("two_tower", {"dim": DIM, "hidden": [8]}, schema, draw)
    assert isinstance(encoder, RowEncoder)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return encoder.eval()


def parts_of(encoder: RowEncoder) -> EncoderParts:
    schema = encoder.schema
    options = {"dim": DIM, "hidden": [8]}
    state = encoder.state_dict()
    return EncoderParts("two_tower", options, state, schema.inputs, schema.vocabularies)


def lineage_with_encoder(folder: Path) -> Lineage:
    """Publish a two-tower model of `QUERIES` and `CANDIDATES`, trained on the pairs `SEEN`."""
    draw = torch.Generator().manual_seed(1)
    ids = {"query": pa.array(QUERIES), "candidate": pa.array(CANDIDATES)}
    queries, candidates = zip(*SEEN, strict=True)
    pairs = PairHash("films").of_pairs(pa.array(queries), pa.array(candidates))
    artefact = Artefact(
        DIM,
        {side: (keys, torch.randn(len(keys), DIM, generator=draw)) for side, keys in ids.items()},
        None,
        METRICS,
        {"name": "films"},
        encoder=parts_of(two_tower()),
        trained=("films", TrainedPairs.of(np.asarray(pairs))),
    )
    lineage = Lineage.create(folder, "films")
    lineage.publish(artefact)
    return lineage


def without_recorded_pairs(lineage: Lineage) -> Artefact:
    """Publish a next version of the same encoder, without the pairs that it was trained on."""
    return Artefact(
        DIM,
        {side: lineage.embeddings(side) for side in ("query", "candidate")},
        LinearTransform.from_matrix(torch.eye(DIM)),
        METRICS,
        {"name": "films"},
        encoder=parts_of(two_tower()),
    )
