"""Measure a lineage's stored embeddings, read as any version."""

from __future__ import annotations

from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.features import SIDES
from evergram.errors import LineageError
from evergram.evaluation.ranking import popularity_metrics, rank_metrics
from evergram.evaluation.relevance import test_relevance
from evergram.lineage.lineage import Lineage
from evergram.training.build import pick_device
from evergram.training.corpora import corpus_for, final_split, split_for
from evergram.training.recipe import Recipe


def evaluate(
    recipe: Recipe,
    lineage: Lineage,
    version: int | None = None,
    corpus: Corpus | None = None,
    *,
    device: str = "auto",
) -> dict[str, dict[str, float]]:
    """Return metrics of the stored embeddings, read as `version`, on the newest version's test
    pairs: {"model": {name: value}, "popularity": {name: value}}.

    Raises: LineageError: no pair is known to be held out from every version of the lineage.
        DataError: the newest version's corpus was passed in Python, and none is passed.
    """
    corpus = corpus_for(recipe, corpus, lineage)
    split = split_for(recipe, corpus, lineage.newest, lineage.pair_history)
    if split.untested is not None:
        raise LineageError(split.untested)
    split = final_split(split, refits=recipe.refits)
    view = lineage.view(version)
    vectors: dict[str, Tensor] = {}
    for side, entities in zip(
        SIDES, (split.training.queries, split.training.candidates), strict=True
    ):
        ids, stored = view.embeddings(side)
        rows = Vocabulary(ids).rows(entities.vocabulary.keys)
        # An object without a stored vector cannot be told from the others: it scores zero.
        vectors[side] = stored[rows.clamp(min=0)] * (rows >= 0)[:, None]
    relevance = test_relevance(split)
    counts = split.training.counts("candidate")
    return {
        "model": rank_metrics(
            vectors["query"],
            vectors["candidate"],
            relevance,
            recipe.metrics,
            device=pick_device(device),
        ),
        "popularity": popularity_metrics(counts, relevance, recipe.metrics),
    }
