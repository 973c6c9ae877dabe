"""Past versions: which objects they know, and metrics of the new version read as each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

from evergram.collectives import ALONE, Collectives
from evergram.compatibility.chain import Chain
from evergram.data.corpus import Corpus, PairBlock, PairRule, Side, Vocabulary
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.split import RowPairs, Split, known_pairs
from evergram.encoders.encoder import SIDES, Encoder
from evergram.encoders.module_encoder import EncoderModules
from evergram.errors import LineageError, RecipeError
from evergram.evaluation.metric_sample import SampledRanking, sample_pairs
from evergram.evaluation.ranking import Relevance, query_metrics, rank_metrics
from evergram.evaluation.version_distance import as_dim, drift, overlap
from evergram.lineage.lineage import Lineage
from evergram.training.checkpoint import held_out, load_encoder
from evergram.training.recipe import Recipe, flat

# Number of rankings in one `reading_report`.
RANKINGS = 5


@dataclass(frozen=True)
class StoredModel:
    """A past version without its encoder: only its stored ids [N] and vectors [N, D], by side."""

    dim: int
    embeddings: Mapping[str, tuple[pa.Array, Tensor]]


PastModel = Encoder | StoredModel


def past_model(
    lineage: Lineage, version: int, module: EncoderModules | None = None
) -> PastModel | None:
    """Return a past version's encoder; if it needs the user's modules and they are not given, its
    stored embeddings; None if these are not stored."""
    record = lineage.manifest(version).encoder
    if record is None or record.kind != "module" or module is not None:
        return load_encoder(lineage, version, module)
    try:
        embeddings = {side: lineage.embeddings(side, version) for side in SIDES}
    except LineageError:  # embeddings of older versions are stored only with a label
        return None
    return StoredModel(lineage.manifest(version).dim, embeddings)


def known_vectors(model: PastModel, corpus: Corpus) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return z_j [N, D_j] of a corpus's entities, and a mask [N] of the known ones, by side."""
    if isinstance(model, Encoder):
        scene = model.read(corpus)
        return model.embed_all(scene), {side: model.known(side, scene) for side in SIDES}
    vectors, known = {}, {}
    for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True):
        ids, stored = model.embeddings[side]
        rows = Vocabulary(ids).rows(entities.vocabulary.keys)
        known[side] = rows >= 0
        vectors[side] = stored[rows.clamp(min=0)] * known[side][:, None]
    return vectors, known


@dataclass(frozen=True)
class PastReading:
    """The chain's newest version, read as `target`. Processes share the rankings."""

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
    sample: tuple[int | None, int] = (None, 0),
) -> dict[str, Any]:
    """Measure a new version, z_k [N, D_k] by side, read as a past one, on the objects that the past
    one knew, and on the held-out share of these. `sample` has the number of test queries to rank,
    None for all, and a seed."""
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
    drawn, population = known_relevance(split, known, *sample)
    # Vectors of queries and of candidates.
    readings = {
        # The past version, and the new one in its place on both sides.
        "past": (past, past),
        "chain": (back, back),
        "raw": (raw, raw),
        # Past query vectors with new candidates.
        "chain_candidates": (past, back),
        "raw_candidates": (past, raw),
    }
    vectors = {n: (q["query"], c["candidate"][catalogue]) for n, (q, c) in readings.items()}
    ranked: dict[str, Any] = {"relevance": drawn, "names": metrics, "together": reading.together}
    ranking: dict[str, Any]
    if len(drawn) == population:
        ranking = {"ranking": {n: rank_metrics(*each, **ranked) for n, each in vectors.items()}}
    else:
        values = {name: query_metrics(*each, **ranked) for name, each in vectors.items()}
        sampled = SampledRanking(values, population)
        ranking = {
            "ranking": sampled.means(),
            "sampled": sampled.as_json({"past": ("chain", "past")}),
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
        **ranking,
    }


def held_out_rows(corpus: Corpus, share: float) -> dict[str, Tensor]:
    """Return a mask [N] of the objects held out from alignment, by side."""
    sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    return {side: held_out(entities, share) for side, entities in sides}


def known_relevance(
    split: Split, known: dict[str, Tensor], queries: int | None = None, seed: int = 0
) -> tuple[Relevance, int]:
    """Return a past version's test: queries that it knew, or a sample of them, over the candidates
    that it knew; and the number of all these queries. Pairs with other candidates are left out, as
    no reading could rank them."""
    test = split.test
    place = torch.where(known["candidate"], known["candidate"].cumsum(0) - 1, -1)
    kept = known["query"][test.query] & (test.candidate >= 0) & (place[test.candidate] >= 0)
    pairs, population = sample_pairs(test.where(kept), queries, seed)
    seen = known_pairs(replace(split, test=pairs))
    seen = seen.where(place[seen.candidate] >= 0)
    relevance = pairs.query, place[pairs.candidate], seen.query, place[seen.candidate]
    return Relevance.of(*relevance), population


# Frozen upgrades: check the model, and restrict the split to the entities that it knows.

# Recipe tables that describe a model and its objective.
DESCRIBED = ("model", "task")
UNTESTED = "The model that was kept knows none of the queries that are held out."


def refuse_other_model(recipe: Recipe, kept: Mapping[str, Any], version: int) -> None:
    """Refuse a frozen upgrade whose recipe differs from `kept`, the recipe that the model was
    trained with: the settings would have no effect, but be recorded."""
    theirs, ours = (
        flat({table: values.get(table, {}) for table in DESCRIBED})
        for values in (each.model_dump(mode="json") for each in (type(recipe).stored(kept), recipe))
    )
    changed = sorted(k for k in theirs | ours if theirs.get(k) != ours.get(k))
    if not changed:
        return
    shown = [f"{key} is {ours.get(key)!r} here and {theirs.get(key)!r} there" for key in changed]
    raise RecipeError(
        f"upgrade.start = 'frozen' keeps the model of version {version}, and the recipe describes "
        f"another: {'; '.join(shown)}. Give that version's values, or upgrade.start = 'fresh'."
    )


def known_to(encoder: Encoder, corpus: Corpus) -> dict[str, Tensor]:
    """Return a mask [N] of the entities that an encoder knows, by side."""
    scene = encoder.read(corpus)
    return _agreeing({side: encoder.known(side, scene) for side in SIDES}, corpus)


def stored_in(ids: Mapping[str, pa.Array], corpus: Corpus) -> dict[str, Tensor]:
    """Return a mask [N] of the entities whose ids are in `ids`, by side."""
    sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    return _agreeing(
        {side: Vocabulary(ids[side]).rows(e.vocabulary.keys) >= 0 for side, e in sides}, corpus
    )


def _agreeing(known: dict[str, Tensor], corpus: Corpus) -> dict[str, Tensor]:
    """If both sides share ids, restrict `known` to entities known on both sides."""
    return dict.fromkeys(SIDES, known["query"] & known["candidate"]) if corpus.shared_ids else known


def unknown_counts(known: Mapping[str, Tensor]) -> dict[str, int]:
    return {side: int((~known[side]).sum()) for side in SIDES}


def split_of_known(split: Split, known: Mapping[str, Tensor]) -> Split:
    """Restrict a split's corpus to the known entities. Test pairs of unknown queries are removed
    and counted; those of unknown candidates stay, as misses."""
    if all(bool(known[side].all()) for side in SIDES):
        return split
    training, places = corpus_of_known(split.training, known)
    tested = _moved(split.test, places)
    narrowed = replace(
        split,
        training=training,
        test=tested,
        selection=_moved(split.selection, places),
        unknown_queries=split.unknown_queries + len(split.test) - len(tested),
        final=None,
    )
    return _untested_if_empty(narrowed)


def with_known_queries(split: Split, known: Mapping[str, Tensor]) -> Split:
    """Restrict a split's test pairs to known queries, but train on the whole corpus, to compare a
    new model with a frozen one that knows fewer entities."""
    kept = known["query"][split.test.query]
    if bool(kept.all()):
        return split
    unknown = split.unknown_queries + int((~kept).sum())
    return _untested_if_empty(replace(split, test=split.test.where(kept), unknown_queries=unknown))


def corpus_of_known(
    corpus: Corpus, known: Mapping[str, Tensor]
) -> tuple[Corpus, dict[str, Tensor]]:
    """Return the corpus of the known entities and their interactions; and, by side, each entity's
    new row, int64 [N], -1 if unknown. Known entities without remaining interactions come last."""
    digest = hashlib.sha256(b"".join(known[s].numpy().tobytes() for s in SIDES)).hexdigest()

    def of_known(block: PairBlock) -> Tensor:
        return known["query"][block.query] & known["candidate"][block.candidate]

    narrow = corpus.where(PairRule(f"known({digest})", of_known))
    rows, places, taken = {}, {}, []
    wholes = (corpus.queries, corpus.candidates)
    for side, whole, part in zip(SIDES, wholes, (narrow.queries, narrow.candidates), strict=True):
        present = whole.vocabulary.rows(part.vocabulary.keys)
        absent = known[side].clone()
        absent[present] = False
        rows[side] = torch.cat([present, torch.nonzero(absent).flatten()])
        places[side] = torch.full((len(known[side]),), -1)
        places[side][rows[side]] = torch.arange(len(rows[side]))
        taken.append(whole.take(rows[side]))
    queries, candidates = taken
    if corpus.shared_ids:
        candidates = Side(queries.vocabulary, candidates.features)
    more: dict[str, Any] = {}
    if isinstance(narrow, MappedCorpus):
        counts = {s: narrow.counts(s) for s in SIDES}
        padded = {s: functional.pad(c, (0, len(rows[s]) - len(c))) for s, c in counts.items()}
        # Derived data, such as the index by query, has a row per query, so it needs a new key.
        fingerprint = hashlib.sha256(f"{narrow.fingerprint} {digest}".encode()).hexdigest()
        more = {"fingerprint": fingerprint, "entity_counts": padded}
    return replace(narrow, queries=queries, candidates=candidates, **more), places


def _moved(pairs: RowPairs, places: Mapping[str, Tensor]) -> RowPairs:
    """Return the pairs of known queries, with new row numbers."""
    query = places["query"][pairs.query]
    candidate = places["candidate"][pairs.candidate.clamp(min=0)]
    candidate = torch.where(pairs.candidate >= 0, candidate, -1)
    return RowPairs(query, candidate).where(query >= 0)


def _untested_if_empty(split: Split) -> Split:
    return split if len(split.test) or split.untested else split.without_test(UNTESTED)
