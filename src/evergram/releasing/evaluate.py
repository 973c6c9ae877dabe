"""Measure a lineage's stored embeddings, read as any version."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.features import SIDES
from evergram.errors import LineageError
from evergram.evaluation.large_catalogues.candidate_index import (
    CandidateIndex,
    IndexKind,
    index_metrics,
)
from evergram.evaluation.large_catalogues.metric_sample import QueryDraw, SampledRanking
from evergram.evaluation.ranking import (
    Relevance,
    popularity,
    popularity_metrics,
    query_metrics,
    rank_metrics,
    test_relevance,
)
from evergram.lineage.lineage import Lineage
from evergram.releasing.past_versions import (
    split_of_known,
    stored_in,
    unknown_counts,
)
from evergram.training.build import pick_device
from evergram.training.corpora import corpus_for, final_split, split_for
from evergram.training.recipe import Recipe


@dataclass(frozen=True)
class Ranking:
    """How test queries are ranked.

    Args:
        queries: how many, drawn by the recipe's seed; None is all.
        index: the kind of index that finds the candidates; None compares every candidate.
    """

    queries: int | None = None
    index: IndexKind | None = None


EVERYTHING = Ranking()


def evaluate(
    recipe: Recipe,
    lineage: Lineage,
    version: int | str | None = None,
    corpus: Corpus | None = None,
    *,
    source: int | str | None = None,
    device: str = "auto",
    ranking: Ranking = EVERYTHING,
) -> dict[str, dict[str, Any]]:
    """Return metrics of the stored embeddings of `source`, read as `version`, on the newest
    version's test pairs: {"model": {name: value}, "popularity": {name: value}}. The defaults are
    those of `Lineage.view`.

    With a sample of queries there is "sampled": the sample's size and standard errors; with an
    index "index": its kind and its recall, measured against exact ranking. Popularity is ranked
    exactly. Where the data has objects that have no stored vector there is "unknown": how many of
    each side. Test pairs of such a query are left out, and such a candidate is a miss.

    Raises: LineageError: no pair is known to be held out from every version of the lineage, or no
        query of one has a stored vector.
        DataError: the newest version's corpus was passed in Python, and none is passed; the index
        has too low a recall, or faiss is not installed.
    """
    corpus = corpus_for(recipe, corpus, lineage)
    split = split_for(recipe, corpus, lineage.newest, lineage.pair_history)
    if split.untested is not None:
        raise LineageError(split.untested)
    split = final_split(split, refits=recipe.refits)
    view = lineage.view(version, source)
    stored = {side: view.embeddings(side) for side in SIDES}
    known = stored_in({side: ids for side, (ids, _) in stored.items()}, split.training)
    split, unknown = split_of_known(split, known), unknown_counts(known)
    if split.untested is not None:
        raise LineageError(
            "No query of the test pairs has a stored vector: the data may be that of another "
            "version; set data.path to the file that the newest version was trained on."
        )
    vectors: dict[str, Tensor] = {}
    sides = (split.training.queries, split.training.candidates)
    for entities, (side, (ids, rows)) in zip(sides, stored.items(), strict=True):
        vectors[side] = rows[Vocabulary(ids).rows(entities.vocabulary.keys)]
    relevance, counts = test_relevance(split), split.training.counts("candidate")
    drawn = QueryDraw(ranking.queries, recipe.seed).of(relevance)
    report: dict[str, dict[str, Any]]
    if len(drawn) < len(relevance) or ranking.index is not None:
        settings = recipe, ranking, pick_device(device)
        report = _of_queries(vectors, counts, drawn, len(relevance), settings)
    else:
        both = vectors["query"], vectors["candidate"]
        chosen = pick_device(device)
        report = {
            "model": rank_metrics(*both, relevance, recipe.metrics, device=chosen),
            "popularity": popularity_metrics(counts, relevance, recipe.metrics),
        }
    return {**report, "unknown": unknown} if any(unknown.values()) else report


def _of_queries(
    vectors: dict[str, Tensor],
    counts: Tensor,
    drawn: Relevance,
    population: int,
    settings: tuple[Recipe, Ranking, torch.device],
) -> dict[str, dict[str, Any]]:
    """Return the metrics of drawn queries, exact, on the device, or by an index."""
    (recipe, ranking, device), query, candidate = settings, vectors["query"], vectors["candidate"]
    index = None if ranking.index is None else CandidateIndex(candidate, ranking.index)
    if index is None:
        model = query_metrics(query, candidate, drawn, recipe.metrics, device=device)
    else:
        model = index_metrics(query, drawn, index, recipe.metrics, seed=recipe.seed)
    one, popular = popularity(counts)
    known = query_metrics(one.expand(len(query), 1), popular, drawn, recipe.metrics)
    sample = SampledRanking({"model": model, "popularity": known}, population)
    report: dict[str, dict[str, Any]] = dict(sample.means())
    if len(drawn) < population:
        report["sampled"] = sample.as_json()
    if index is not None and index.measured is not None:
        report["index"] = {"kind": index.kind, **asdict(index.measured)}
    return report
