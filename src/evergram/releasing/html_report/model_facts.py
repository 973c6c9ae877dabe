"""Measure a version that was just trained, by its artefact and its data; nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Side, Vocabulary
from evergram.data.split import Split
from evergram.encoders.features import SIDES
from evergram.errors import DataError, EvergramError
from evergram.evaluation.breakdown.neighbours import nearest_neighbours
from evergram.evaluation.breakdown.strata import recall_by_pairs, recall_by_popularity
from evergram.evaluation.breakdown.target_ranks import owners, target_ranks
from evergram.evaluation.gramian_error import Histograms, score_histograms
from evergram.evaluation.large_catalogues.metric_sample import QueryDraw
from evergram.evaluation.ranking import Relevance, parse_metric
from evergram.evaluation.relevance import test_relevance
from evergram.evaluation.reports.version_facts import (
    Neighbours,
    NotMeasured,
    Spectrum,
    WorstQuery,
)
from evergram.lineage.artefact import Artefact
from evergram.training.diagnose import effective_rank, spectrum
from evergram.training.priors.factors import build_measures
from evergram.training.recipe import Recipe

# Candidates of each kind whose neighbours are shown, and neighbours of each.
SHOWN, NEAREST = 10, 5
WORST = 20
# Features that name a candidate, the first of a corpus that has one.
NAMES = ("name", "title")

Args = ParamSpec("Args")
Value = TypeVar("Value")


@dataclass(frozen=True)
class MeasuredModel:
    """A version's embeddings and test, in the rows of its split's training corpus.

    Args:
        recipe: that it was trained by.
        split: whose training corpus it was last trained on.
        vectors: [N, D] of each side.
        relevance: of the test queries that its metrics are of.
        ranks: int64 [T], of the targets of `relevance`.
    """

    recipe: Recipe
    split: Split
    vectors: Mapping[str, Tensor]
    relevance: Relevance
    ranks: Tensor

    @classmethod
    def of(cls, recipe: Recipe, split: Split, artefact: Artefact) -> MeasuredModel:
        """Rank the test pairs of the queries that the artefact's metrics are of.

        Raises: DataError: the artefact lacks the embedding of an entity that it was trained on.
        """
        vectors = {}
        for side, entities in zip(
            SIDES, (split.training.queries, split.training.candidates), strict=True
        ):
            ids, stored = artefact.block(side)
            rows = Vocabulary(ids).rows(entities.vocabulary.keys)
            if bool((rows < 0).any()):
                raise DataError(
                    f"The artefact has no embedding of some of the {side} entities that it was "
                    "trained on, so it is of other data than the report would be of."
                )
            whole = len(rows) == len(stored) and bool((rows == torch.arange(len(rows))).all())
            vectors[side] = stored if whole else stored[rows]
        sampled = artefact.metrics.get("sampled", {}).get("queries")
        relevance = QueryDraw(sampled, recipe.seed).of(test_relevance(split))
        ranks = target_ranks(vectors["query"], vectors["candidate"], relevance)
        return cls(recipe, split, vectors, relevance, ranks)

    def facts(self) -> dict[str, Any]:
        """Return the fields of `VersionFacts` that are of this model alone."""
        k = parse_metric(self.recipe.training.metric)[1]
        counts = {side: self.split.training.counts(side) for side in SIDES}
        untested = self._untested()
        targets = self.relevance.targets
        return {
            "spectra": attempt(self._spectra),
            "scores": attempt(self._scores),
            "neighbours": attempt(self._neighbours, counts["candidate"]),
            "worst": untested or self._worst(counts["query"]),
            "by_popularity": untested
            or recall_by_popularity({"model": self.ranks}, targets, counts["candidate"], k),
            "by_pairs": untested
            or recall_by_pairs(
                self.ranks, self.relevance, counts["query"], self.recipe.training.metric
            ),
        }

    def _untested(self) -> NotMeasured | None:
        if len(self.relevance):
            return None
        return NotMeasured(self.split.untested or "There are no test pairs.")

    def _spectra(self) -> dict[str, Spectrum]:
        spectra = {}
        for side in SIDES:
            chosen = self.recipe.task.measures_of(side)
            share = build_measures(chosen, self.split.training, side)[:, 0]
            parts = spectrum(self.vectors[side], share)
            shares = parts.flip(0).tolist()
            spectra[side] = Spectrum(shares, effective_rank(parts), len(self.vectors[side]))
        return spectra

    def _scores(self) -> Histograms:
        training = self.split.training
        pairs = training.column("query"), training.column("candidate")
        vectors = self.vectors["query"].float(), self.vectors["candidate"].float()
        return score_histograms(*vectors, pairs, seed=self.recipe.seed)

    def _neighbours(self, counts: Tensor) -> list[Neighbours]:
        size = len(counts)
        if size < 2:
            raise DataError("There is one candidate alone.")
        popular = torch.argsort(counts, stable=True, descending=True)[:SHOWN]
        draw = torch.Generator().manual_seed(self.recipe.seed)
        others = torch.randperm(size, generator=draw)
        rows = torch.cat([popular, others[~torch.isin(others, popular)][:SHOWN]])
        cosines, nearest = nearest_neighbours(self.vectors["candidate"].float(), rows, NEAREST)
        candidates = self.split.training.candidates
        names = iter(names_of(candidates, torch.cat([rows, nearest.flatten()])))
        own = [next(names) for _ in rows]
        return [
            Neighbours(
                name,
                int(counts[row]),
                place < len(popular),
                [(next(names), cosine) for cosine in near.tolist()],
            )
            for place, (name, row, near) in enumerate(zip(own, rows, cosines, strict=True))
        ]

    def _worst(self, counts: Tensor) -> list[WorstQuery] | NotMeasured:
        inside = self.ranks > 0
        # One that is in no ranking is shown behind all.
        last_place = len(self.vectors["candidate"]) + 1
        owner, ranks = owners(self.relevance)[inside], self.ranks[inside].clamp(max=last_place)
        if not len(ranks):
            return NotMeasured("No test pair is of a candidate that training knows.")
        size = len(self.relevance)
        best = torch.zeros(size, dtype=torch.int64).scatter_reduce_(
            0, owner, ranks, "amin", include_self=False
        )
        last = torch.zeros(size, dtype=torch.int64).scatter_reduce_(0, owner, ranks, "amax")
        tested = torch.bincount(owner, minlength=size)
        order = torch.argsort(best, stable=True, descending=True)
        order = order[tested[order] > 0][:WORST]
        rows = self.relevance.queries[order]
        ids = self.split.training.queries.vocabulary.keys.take(pa.array(rows.numpy()))
        columns = (counts[rows], tested[order], best[order], last[order])
        return [
            WorstQuery(str(id_.as_py()), *numbers)
            for id_, *numbers in zip(ids, *(c.tolist() for c in columns), strict=True)
        ]


def attempt(
    measure: Callable[Args, Value], *args: Args.args, **kwargs: Args.kwargs
) -> Value | NotMeasured:
    """Return a measure, or the reason why it could not be made."""
    try:
        return measure(*args, **kwargs)
    except EvergramError as error:
        return NotMeasured(str(error))


def names_of(side: Side, rows: Tensor) -> list[str]:
    """Return the names of some entities: by the first feature of `NAMES` that the side has, and
    where an entity has no value of it, or there is none, their ids."""
    ids = [str(key.as_py()) for key in side.vocabulary.keys.take(pa.array(rows.numpy()))]
    feature = next((side.features[name] for name in NAMES if name in side.features), None)
    if feature is None:
        return ids
    names = []
    for id_, row in zip(ids, rows.tolist(), strict=True):
        start, end = feature.offsets[row : row + 2].tolist()
        keys = feature.vocabulary.keys.take(pa.array(feature.indices[start:end].numpy()))
        names.append(" ".join(str(key.as_py()) for key in keys) or id_)
    return names
