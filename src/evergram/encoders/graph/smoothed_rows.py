"""Rows for tables to start from: random vectors, smoothed over the graph of interactions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.encoders.graph.adjacency import adjacency, degrees, neighbour_sum

# Added to every degree, so that entities with few interactions count for less.
SHRINKAGE = 5.0
# Passes from candidates to queries and back.
ROUNDS = 2


def smoothed_rows(corpus: Corpus, dim: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return unit rows of both sides that are close where entities share their neighbours.

    Gaussian vectors of the candidates go twice to the queries and back through
    N = (D_u + 5)^-½ R (D_v + 5)^-½. What lies along the square roots of the degrees, which is
    popularity, is taken out after each pass: it would soon be all that is left. These are steps
    of the power method, stopped early: many directions survive, the strong ones the most.

    Args:
        corpus: R, its distinct pairs.
        dim: D.
        generator: draws the Gaussian vectors.
    Returns: of each side, [N, D]; zeros for entities without interactions.
    Source: docs/method.md, "Where tables start".
    """
    graph = adjacency(corpus)
    edges = degrees(graph).float()
    scale = (edges + SHRINKAGE).rsqrt()[:, None]
    queries = len(corpus.queries)
    places = {"query": slice(queries), "candidate": slice(queries, None)}
    popular = {s: functional.normalize(edges[p].sqrt(), dim=0)[:, None] for s, p in places.items()}
    rows = torch.zeros(len(edges), dim)
    rows[places["candidate"]] = torch.randn(len(corpus.candidates), dim, generator=generator)
    for _ in range(ROUNDS):
        for side in SIDES:
            passed = (neighbour_sum(graph, rows * scale) * scale)[places[side]]
            rows[places[side]] = passed - popular[side] * (popular[side].T @ passed)
    found = edges[:, None] > 0
    rows = torch.where(found, functional.normalize(rows, dim=1), 0.0)
    return {side: rows[place] for side, place in places.items()}


@torch.no_grad()
def start_smoothed(encoder: Encoder, corpus: Corpus, seed: int) -> None:
    """Put smoothed rows into a factorization's tables, as long as its random ones on average.

    Entities without interactions keep their random rows.

    Args:
        seed: of the vectors that are smoothed.
    """
    # Not the draws of the random rows again.
    generator = torch.Generator().manual_seed(2 * seed + 1)
    rows = smoothed_rows(corpus, encoder.dim, generator)
    inputs = encoder.read(corpus).inputs
    for side in SIDES:
        table: Tensor = encoder.get_parameter(f"{side}.weight")
        length = table.square().sum(1).mean().sqrt()
        known = rows[side].any(1)
        places = inputs[side].table_rows[known].to(table.device)
        table[places] = rows[side][known].to(table.device) * length
