"""The page of `--report`: its facts, and the file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
import torch
from torch import Tensor

from evergram.compatibility.chain import Chain
from evergram.data.corpus import Corpus, Side, Vocabulary
from evergram.data.split import Split
from evergram.encoders.features import SIDES
from evergram.errors import DataError, EvergramError
from evergram.evaluation.breakdown import (
    metric_of_ranks,
    nearest_neighbours,
    owners,
    recall_by_pairs,
    recall_by_popularity,
    target_ranks,
)
from evergram.evaluation.gramian_error import Histograms, score_histograms
from evergram.evaluation.large_catalogues.metric_sample import QueryDraw
from evergram.evaluation.ranking import Relevance, parse_metric, test_relevance
from evergram.evaluation.reports.version_report import (
    KeptPast,
    Neighbours,
    NotMeasured,
    Spectrum,
    VersionFacts,
    WorstQuery,
    write_version_report,
)
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.frozen import split_of_known, stored_in
from evergram.releasing.past_versions import known_relevance, known_vectors, past_model
from evergram.training.corpora import final_split, split_for, with_selecting_metric
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
_OF_MODEL = ("spectra", "scores", "neighbours", "worst", "by_popularity", "by_pairs")


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


def kept_of_past(
    lineage: Lineage, artefact: Artefact, model: MeasuredModel
) -> dict[str, KeptPast | NotMeasured]:
    """Return what is kept of every past version, on the queries that its reading is of.

    Args:
        lineage: without the artefact.
        model: of the artefact.
    """
    if artefact.transform is None:
        return {}
    chain = lineage.chain.extended(artefact.transform)
    readings = artefact.metrics.get("compatibility", {})
    kept: dict[str, KeptPast | NotMeasured] = {}
    for version in lineage.readable:
        reading = readings.get(str(version))
        if reading is None:
            kept[str(version)] = NotMeasured("Its model was not given, and is not stored.")
        elif not reading["queries"]:
            kept[str(version)] = NotMeasured("It knew none of the test queries.")
        else:
            try:
                kept[str(version)] = _kept(lineage, version, chain, model, reading["queries"])
            except EvergramError as error:
                kept[str(version)] = NotMeasured(str(error))
    return kept


def _kept(
    lineage: Lineage, version: int, chain: Chain, model: MeasuredModel, queries: int
) -> KeptPast | NotMeasured:
    past_encoder = past_model(lineage, version)
    if past_encoder is None:
        return NotMeasured("Its model was not given, and is not stored.")
    past, known = known_vectors(past_encoder, model.split.training)
    catalogue = known["candidate"]
    relevance = known_relevance(model.split, known)
    # The queries of the published reading: the same seed draws the same ones.
    relevance = QueryDraw(queries, model.recipe.seed).of(relevance)
    metric = model.recipe.training.metric
    back = {s: chain.apply(v, chain.newest, version) for s, v in model.vectors.items()}
    ranks = {
        name: target_ranks(vectors["query"], vectors["candidate"][catalogue], relevance)
        for name, vectors in (("past", past), ("chain", back), ("new", model.vectors))
    }
    counts = model.split.training.counts("candidate")[catalogue]
    k = parse_metric(metric)[1]
    return KeptPast(
        float(metric_of_ranks(metric, ranks["new"], relevance).mean()),
        recall_by_popularity(ranks, relevance.targets, counts, k),
    )


def refuse_unwritable(path: Path | None) -> None:
    """Refuse a path at which no report could be written; None is never refused.

    Raises: DataError: it does not end in .html, is a folder, or is in one that cannot be written.
    """
    if path is None:
        return
    if path.suffix != ".html":
        raise DataError(f"--report {path} must end in .html.")
    if path.is_dir():
        raise DataError(f"--report {path} is a folder; give the file to write in it.")
    folder = path.absolute().parent
    try:
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(
            f"--report {path} cannot be written: {folder}: {error.strerror or error}; give a file "
            "in a folder that you may write to."
        ) from None


@dataclass(frozen=True)
class ReportedVersion:
    """The data and the number of the version that a report is of, before it is published.

    Args:
        corpus: all that its recipe names.
        version: the one whose data it is trained on.
    """

    recipe: Recipe
    lineage: Lineage
    corpus: Corpus
    version: int

    def facts(self, artefact: Artefact) -> VersionFacts:
        """Measure a version that is not published yet; nothing is trained.

        A measure that cannot be made is `NotMeasured`.
        """
        history = self.lineage.pair_history if self.lineage.versions else None
        split = split_for(self.recipe, self.corpus, self.version, history)
        recipe, _ = with_selecting_metric(self.recipe, split)
        split = final_split(split, refits=recipe.refits)
        if "unknown_to_model" in artefact.metrics.get("data", {}):
            ids = {side: artefact.block(side)[0] for side in SIDES}
            split = split_of_known(split, stored_in(ids, split.training))
        model = attempt(MeasuredModel.of, recipe, split, artefact)
        measured: dict[str, Any] = (
            dict.fromkeys(_OF_MODEL, model) if isinstance(model, NotMeasured) else model.facts()
        )
        kept = {} if isinstance(model, NotMeasured) else kept_of_past(self.lineage, artefact, model)
        metrics, metric = artefact.metrics, recipe.training.metric
        number = metrics["version"]
        return VersionFacts(recipe.name, number, metric, metrics, kept=kept, **measured)


def write_published(
    path: Path, facts: VersionFacts, metrics: Mapping[str, Any], warnings: Sequence[str]
) -> Path:
    """Write the report of a version that has been published.

    Args:
        metrics: with the probes' readings.
        warnings: of publishing.
    Raises: DataError: the file cannot be written any more.
    """
    try:
        return write_version_report(path, facts, metrics, warnings)
    except OSError as error:
        raise DataError(
            f"Version {facts.version} is published, and its report could not be written: {path}: "
            f"{error.strerror or error}. Its numbers are in the version's metrics."
        ) from error
