"""Texts, queries and judgements by two made-up models, of which one may see more of the meaning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from evergram.evaluation.judged import Judgements
from evergram.migration.migration_plan import MigrationVectors, unit
from evergram.stores.store import Floats, Hits


def searched(ids: list[str], vectors: Floats, version: int) -> Callable[[Floats, int], list[Hits]]:
    """Return a search of these rows by inner product."""

    def search(queries: Floats, k: int) -> list[Hits]:
        hits = []
        for scores in queries @ vectors.T:
            best = np.argsort(-scores, kind="stable")[:k]
            best_ids = pa.array([ids[i] for i in best], pa.string())
            hits.append(Hits(best_ids, scores[best], np.full(len(best), version)))
        return hits

    return search


TEXTS, QUERIES, MEANING = 300, 60, 24


def by_two_models(
    old_noise: float,
    new_noise: float,
    *,
    seed: int = 0,
    old_dim: int = 10,
    new_dim: int = 12,
    count: int = TEXTS,
) -> tuple[MigrationVectors, Judgements]:
    """Return vectors of the same meanings, seen by each model with noise of its own.

    Query i means what text i means, and text i alone answers it.
    """
    draw = torch.Generator().manual_seed(seed)
    meaning = torch.randn(count, MEANING, generator=draw)

    def seen(dim: int, noise: float) -> tuple[Tensor, Tensor]:
        eye = torch.randn(MEANING, dim, generator=draw)
        texts = meaning @ eye + noise * torch.randn(count, dim, generator=draw)
        queries = meaning[:QUERIES] @ eye + noise * torch.randn(QUERIES, dim, generator=draw)
        return unit(texts), unit(queries)

    (old, old_queries), (new, new_queries) = seen(old_dim, old_noise), seen(new_dim, new_noise)
    texts, queries = [f"d{i}" for i in range(count)], [f"q{i}" for i in range(QUERIES)]
    judgements = {query: {text: 1} for query, text in zip(queries, texts, strict=False)}
    return MigrationVectors(texts, queries, old, new, old_queries, new_queries), judgements
