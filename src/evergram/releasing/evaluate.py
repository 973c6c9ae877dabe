"""Evaluate a lineage's stored embeddings at any version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary
from evergram.data.split import Split
from evergram.encoders.encoder import SIDES
from evergram.errors import LineageError
from evergram.evaluation.metric_sample import SampledRanking, sample_test
from evergram.evaluation.ranking import (
    popularity,
    popularity_metrics,
    query_metrics,
    rank_metrics,
)
from evergram.lineage.lineage import Lineage
from evergram.releasing.past_versions import split_of_known, stored_in, unknown_counts
from evergram.training.build import corpus_for, final_split, pick_device, split_for
from evergram.training.recipe import Recipe


def evaluate(
    recipe: Recipe,
    lineage: Lineage,
    version: int | str | None = None,
    corpus: Corpus | None = None,
    *,
    source: int | str | None = None,
    device: str = "auto",
    queries: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Evaluate the stored embeddings of `source`, read as `version`, on the newest version's test
    pairs. The defaults are those of `Lineage.view`.

    Test pairs of a query without a stored vector are skipped; a candidate without one is a miss.

    Args:
        queries: number of test queries to rank, sampled with the recipe's seed; default: all.
    Returns: {"model": {name: value}, "popularity": {name: value}}; for a sample also "sampled" with
        its size and standard errors; if objects have no vector, "unknown" with counts by side.
    Raises: LineageError: no test pair is held out from all versions and has a stored query.
        DataError: `corpus` is missing, but the newest version was trained on one.
    """
    corpus = corpus_for(recipe, corpus, lineage)
    view = lineage.view(version, source)
    stored = {side: view.embeddings(side) for side in SIDES}
    split, unknown, vectors = tested(recipe, lineage, corpus, lineage.newest, stored)
    counts = split.training.counts("candidate")
    drawn, population = sample_test(split, queries, recipe.seed)
    report: dict[str, dict[str, Any]]
    both, chosen = (vectors["query"], vectors["candidate"]), pick_device(device)
    if len(drawn) < population:
        one, popular = popularity(counts)
        by_count = one.expand(len(both[0]), 1), popular
        values = {
            "model": query_metrics(*both, drawn, recipe.metrics, device=chosen),
            "popularity": query_metrics(*by_count, drawn, recipe.metrics),
        }
        sample = SampledRanking(values, population)
        report = {**sample.means(), "sampled": sample.as_json()}
    else:
        report = {
            "model": rank_metrics(*both, drawn, recipe.metrics, device=chosen),
            "popularity": popularity_metrics(counts, drawn, recipe.metrics),
        }
    return {**report, "unknown": unknown} if any(unknown.values()) else report


def tested(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus,
    version: int,
    stored: Mapping[str, tuple[pa.Array, Tensor]],
) -> tuple[Split, dict[str, int], dict[str, Tensor]]:
    """Return a version's split restricted to objects with a stored vector, the number of other
    objects, and the vectors [N, D], by side. Raises: LineageError: as `evaluate`."""
    split = split_for(recipe, corpus, version, lineage.pair_history)
    if split.untested is not None:
        raise LineageError(split.untested)
    split = final_split(split, refits=recipe.refits)
    known = stored_in({side: ids for side, (ids, _) in stored.items()}, split.training)
    split, unknown = split_of_known(split, known), unknown_counts(known)
    if split.untested is not None:
        todo = "set data.path to the file that the newest version was trained on"
        raise LineageError(f"No query of the test pairs has a stored vector; {todo}.")
    vectors: dict[str, Tensor] = {}
    sides = (split.training.queries, split.training.candidates)
    for entities, side in zip(sides, SIDES, strict=True):
        ids, rows = stored[side]
        vectors[side] = rows[Vocabulary(ids).rows(entities.vocabulary.keys)]
    return split, unknown, vectors
