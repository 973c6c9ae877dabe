"""Past versions: their vectors of the objects of today, and the new version read as each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.compatibility.chain import Chain
from evergram.data.corpus import Corpus, Vocabulary
from evergram.data.split import Split, known_pairs
from evergram.encoders.encoder import Encoder
from evergram.encoders.encoder_modules import EncoderModules
from evergram.encoders.features import SIDES
from evergram.errors import LineageError
from evergram.evaluation.large_catalogues.metric_sample import QueryDraw, SampledRanking
from evergram.evaluation.ranking import Relevance, query_metrics, rank_metrics
from evergram.evaluation.version_distance import as_dim, drift, overlap
from evergram.lineage.lineage import Lineage
from evergram.training.checkpoint import held_out, load_encoder

ALL_QUERIES = QueryDraw()
# Rankings of one reading: the past, the chain, the new one as it is, and both by own queries.
RANKINGS = 5


@dataclass(frozen=True)
class StoredModel:
    """A past version without its encoder: it knows the objects that it has embeddings of.

    Args:
        dim: D.
        embeddings: of each side, ids [N] and vectors [N, D].
    """

    dim: int
    embeddings: Mapping[str, tuple[pa.Array, Tensor]]

    def known_vectors(self, corpus: Corpus) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the function `known_vectors` of this model."""
        vectors, known = {}, {}
        for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True):
            ids, stored = self.embeddings[side]
            rows = Vocabulary(ids).rows(entities.vocabulary.keys)
            known[side] = rows >= 0
            vectors[side] = stored[rows.clamp(min=0)] * known[side][:, None]
        return vectors, known


PastModel = Encoder | StoredModel


def past_model(
    lineage: Lineage, version: int, module: EncoderModules | None = None
) -> PastModel | None:
    """Return a past version's encoder; without the user's modules that it needs, its stored
    embeddings; None if these are not stored either.

    Args:
        module: the modules that the version was trained with, if they were the user's own.
    Raises: as `load_encoder`.
    """
    record = lineage.manifest(version).encoder
    if record is None or record.kind != "module" or module is not None:
        return load_encoder(lineage, version, module)
    try:
        embeddings = {side: lineage.embeddings(side, version) for side in SIDES}
    except LineageError:  # of an older version, which has no label
        return None
    return StoredModel(lineage.manifest(version).dim, embeddings)


def known_vectors(model: PastModel, corpus: Corpus) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return z_j [N, D_j] of a corpus's entities by side, and which of them version j knows, bool
    [N]."""
    if isinstance(model, StoredModel):
        return model.known_vectors(corpus)
    scene = model.read(corpus)
    return model.embed_all(scene), {side: model.known(side, scene) for side in SIDES}


@dataclass(frozen=True)
class PastReading:
    """A new version read as a past one.

    Args:
        chain: leads from the new version, its newest, to `target`.
        target: the past version.
        model: of the past version.
        together: processes that each measure it with the same arguments, and share its rankings.
    """

    chain: Chain
    target: int
    model: PastModel
    together: Collectives = ALONE


def reading_report(
    reading: PastReading,
    new: Mapping[str, Tensor],
    split: Split,
    held_share: float,
    metrics: Sequence[str],
    draw: QueryDraw = ALL_QUERIES,
) -> dict[str, Any]:
    """Measure a new version read as a past one, on the objects that the past one knew.

    Args:
        new: z_k of the split's training entities, [N, D_k] of each side.
        held_share: alignment never saw the objects whose id hashes below it.
        metrics: names of ranking metrics.
        draw: of the test queries that the past one knew.
    """
    chain, target = reading.chain, reading.target
    past, known = known_vectors(reading.model, split.training)
    aside = held_out_rows(split.training, held_share)
    back = {side: chain.apply(new[side], chain.newest, target) for side in SIDES}
    raw = {side: as_dim(new[side], reading.model.dim) for side in SIDES}
    held = {side: known[side] & aside[side] for side in SIDES}
    distance: dict[str, Any] = {}
    for name, chosen in (("held_out", held), ("known", known)):
        objects = [torch.cat([vectors[s][chosen[s]] for s in SIDES]) for vectors in (back, past)]
        distance[name] = {**drift(objects[0], objects[1]), "objects": len(objects[0])}
    catalogue = known["candidate"]
    relevance = known_relevance(split, known)
    drawn = draw.of(relevance)
    # By name, the vectors of queries and of candidates.
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
        "queries": len(drawn),
        **_rankings(
            {name: (q["query"], c["candidate"][catalogue]) for name, (q, c) in readings.items()},
            drawn,
            metrics,
            len(relevance),
            reading.together,
        ),
    }


def _rankings(
    vectors: Mapping[str, tuple[Tensor, Tensor]],
    relevance: Relevance,
    metrics: Sequence[str],
    population: int,
    together: Collectives,
) -> dict[str, Any]:
    """Return `ranking`, the metrics by name; and `sampled` where the queries are not all."""
    if len(relevance) == population:
        rank = partial(rank_metrics, relevance=relevance, names=metrics, together=together)
        return {"ranking": {name: rank(*each) for name, each in vectors.items()}}
    measure = partial(query_metrics, relevance=relevance, names=metrics, together=together)
    values = {name: measure(*each) for name, each in vectors.items()}
    sample = SampledRanking(values, population)
    return {"ranking": sample.means(), "sampled": sample.as_json({"past": ("chain", "past")})}


def held_out_rows(corpus: Corpus, share: float) -> dict[str, Tensor]:
    """Return bool [N] of each side, the objects that alignment never sees."""
    sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    return {side: held_out(entities, share) for side, entities in sides}


def known_relevance(split: Split, known: dict[str, Tensor]) -> Relevance:
    """Return the test of a past version: queries that it knew, over the catalogue that it knew.

    Pairs of another candidate are left out, as no reading of that version could rank them.
    """
    pairs, seen = split.test, known_pairs(split)
    place = torch.where(known["candidate"], known["candidate"].cumsum(0) - 1, -1)
    candidate = torch.where(pairs.candidate >= 0, place[pairs.candidate], -1)
    kept = known["query"][pairs.query] & (candidate >= 0)
    masked = place[seen.candidate]
    rankable = masked >= 0
    return Relevance.of(pairs.query[kept], candidate[kept], seen.query[rankable], masked[rankable])
