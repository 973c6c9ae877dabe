"""A small graph of interactions with features, and slow sums over it in float64."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import Schema
from evergram.encoders.graph.graph_encoder import GraphEncoder

Pairs = list[tuple[int, int]]


PAIRS: Pairs = [(0, 0), (0, 1), (1, 1), (1, 2), (1, 1), (2, 0), (2, 2), (2, 3), (3, 3), (0, 4)]


def graph_corpus(pairs: Pairs = PAIRS, features: bool = True) -> Corpus:
    """Genres of every candidate, and brands of some."""
    names = sorted({c for _, c in pairs})
    table = pa.table(
        {
            "id": names,
            "genres": [[str(i % 2), "all"] if i % 3 else [str(i % 2)] for i in names],
            "brand": pa.array([None if i == 2 else f"b{i % 3}" for i in names]),
        }
    )
    return Corpus.from_tables(
        pa.table({"query": [q for q, _ in pairs], "candidate": [c for _, c in pairs]}),
        candidate_features=table if features else None,
    )


def random_encoder(kind: type[GraphEncoder], data: Corpus, dim: int = 3, **options: Any) -> Encoder:
    """An encoder in float64 whose parameters are all random, as after training."""
    draw = torch.Generator().manual_seed(0)
    schema = Schema.of(data, features=True)
    encoder: GraphEncoder = kind(schema, dim, generator=draw, **options).double()  # type: ignore[call-arg]
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(generator=draw)
    return encoder


def dense_adjacency(data: Corpus, *, repeats: bool = False) -> Tensor:
    """The adjacency as a matrix of zeros and ones, or of how often pairs repeat, [N, N]."""
    queries = len(data.queries)
    size = queries + len(data.candidates)
    edges = torch.zeros(size, size, dtype=torch.float64)
    for q, c in zip(data.column("query").tolist(), data.column("candidate").tolist(), strict=True):
        times = edges[q, queries + c] + 1 if repeats else 1
        edges[q, queries + c] = edges[queries + c, q] = times
    return edges


def feature_means(encoder: Encoder, data: Corpus) -> list[Tensor]:
    """The sum of the mean rows of each candidate's features, looked up by their keys."""
    tables = {k: v.detach() for k, v in encoder.named_parameters() if "tables" in k}
    means: list[Tensor] = []
    for i in range(len(data.candidates)):
        total = torch.zeros(tables["start.tables.feature/genres"].shape[1], dtype=torch.float64)
        for name, column in data.candidates.features.items():
            keys = column.indices[column.offsets[i] : column.offsets[i + 1]].tolist()
            words = [column.vocabulary.keys[k] for k in keys]
            rows = [
                tables[f"start.tables.feature/{name}"][r]
                for r in encoder.schema.vocabularies[f"feature.{name}"]
                .rows(pa.array(words, column.vocabulary.keys.type))
                .tolist()
                if r >= 0
            ]
            if rows:
                total = total + torch.stack(rows).mean(0)
        means.append(total)
    return means
