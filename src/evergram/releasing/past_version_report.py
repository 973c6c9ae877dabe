"""What reading a new version as a past one keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from evergram.compatibility.chain import Chain
from evergram.data.corpus import Corpus
from evergram.data.split import Split, known_pairs
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.evaluation.ranking import Relevance, rank_metrics
from evergram.evaluation.version_distance import as_dim, drift, overlap
from evergram.training.checkpoint import held_out
from evergram.training.recipe import Recipe


def reading_report(
    recipe: Recipe,
    split: Split,
    new: Mapping[str, Tensor],
    chain: Chain,
    target: int,
    encoder: Encoder,
    held_share: float,
) -> dict[str, Any]:
    """The new version read as `target`, against what `target` was, over what `target` knew."""
    past, known = known_vectors(encoder, split.training)
    aside = held_out_rows(split.training, held_share)
    back = {side: chain.apply(new[side], chain.newest, target) for side in SIDES}
    raw = {side: as_dim(new[side], encoder.dim) for side in SIDES}
    held = {side: known[side] & aside[side] for side in SIDES}
    distance: dict[str, Any] = {}
    for name, chosen in (("held_out", held), ("known", known)):
        objects = [torch.cat([vectors[s][chosen[s]] for s in SIDES]) for vectors in (back, past)]
        distance[name] = {**drift(objects[0], objects[1]), "objects": len(objects[0])}
    catalogue = known["candidate"]
    relevance = known_relevance(split, known)
    readings = {
        # The past version itself, and the new one in its place on both sides.
        "past": (past, past),
        "chain": (back, back),
        "raw": (raw, raw),
        # A consumer who kept its own query vectors and reads the new candidates.
        "chain_candidates": (past, back),
        "raw_candidates": (past, raw),
    }
    return {
        "drift": distance,
        "overlap@10": overlap(
            back["query"][held["query"]],
            back["candidate"][catalogue],
            past["query"][held["query"]],
            past["candidate"][catalogue],
        ),
        "queries": len(relevance),
        "ranking": {
            name: rank_metrics(q["query"], c["candidate"][catalogue], relevance, recipe.metrics)
            for name, (q, c) in readings.items()
        },
    }


def known_vectors(encoder: Encoder, corpus: Corpus) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """z_j [N, D_j] of a corpus's entities, and which of them version j knows, bool [N]."""
    scene = encoder.read(corpus)
    return encoder.embed_all(scene), {side: encoder.known(side, scene) for side in SIDES}


def held_out_rows(corpus: Corpus, share: float) -> dict[str, Tensor]:
    sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    return {side: held_out(entities, share) for side, entities in sides}


def known_relevance(split: Split, known: dict[str, Tensor]) -> Relevance:
    """The test of a past version: queries it knew, over the catalogue it knew.

    Pairs of another candidate are left out: no reading of that version could rank them.
    """
    pairs, seen = split.test, known_pairs(split)
    place = torch.where(known["candidate"], known["candidate"].cumsum(0) - 1, -1)
    candidate = torch.where(pairs.candidate >= 0, place[pairs.candidate], -1)
    kept = known["query"][pairs.query] & (candidate >= 0)
    masked = place[seen.candidate]
    rankable = masked >= 0
    return Relevance.of(pairs.query[kept], candidate[kept], seen.query[rankable], masked[rankable])
