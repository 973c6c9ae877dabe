"""Diagnose a version: its spectrum, its scores, and its estimator's errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.encoders.features import SIDES
from evergram.encoders.module_encoder import EncoderModules, ModuleEncoder
from evergram.errors import DataError
from evergram.evaluation.gramian_error import Histograms, score_histograms
from evergram.gramian.kinds import ESTIMATORS, BatchEstimatorSettings, EstimatorSettings
from evergram.lineage.lineage import Lineage
from evergram.training.build import Companions, FitSettings, pick_device, prepare
from evergram.training.callbacks import ProgressReport
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import corpus_for, final_split, split_for
from evergram.training.factors import build_measures
from evergram.training.loop import Trainer
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.tracking import OWN, Tracking

# Rows that are widened to float64 at once.
ROWS = 65_536
WITHOUT_GRAMIAN = (
    "This version is trained without a Gramian (task.penalty is 0), so there is no error of one; "
    "--set task.penalty=VALUE to look at what it would be."
)


@dataclass
class Diagnosis:
    """The result of `diagnose`.

    Args:
        version: the newest, which was measured.
        sides: of each side ("query", "candidate") `entities`, `dim`, `effective_rank`,
            `largest_share` (of the eigenvalues' sum), `norm_mean` and `norm_deviation`.
        histograms: scores of the published embeddings, of observed pairs and of random ones.
        tracking: every estimator along the first steps of the version's own training; None where
            it is trained without a Gramian.
        own: the estimator of "this run" in words: its kind, and how many entities it learns from.
        left_out: why there is no `tracking`, one sentence.
    """

    version: int
    sides: dict[str, dict[str, float]]
    histograms: Histograms
    tracking: Tracking | None
    own: str = OWN
    left_out: str = ""

    @property
    def gramian_error(self) -> dict[str, float]:
        """‖Ĝ − G‖ / ‖G‖ by estimator, the mean over the second half of the steps; empty without
        `tracking`."""
        tracking = self.tracking
        return {} if tracking is None else tracking.mean(tracking.gramian_errors)

    @property
    def gradient_error(self) -> dict[str, float]:
        """‖∇ĝ − ∇g‖ / ‖∇g‖ by estimator, likewise."""
        tracking = self.tracking
        return {} if tracking is None else tracking.mean(tracking.gradient_errors)

    def as_json(self) -> dict[str, Any]:
        """Return what `evergram diagnose --json` prints (docs/commands.md)."""
        histograms, tracking = self.histograms, self.tracking
        return {
            "version": self.version,
            "sides": self.sides,
            "scores": {
                "edges": histograms.edges.tolist(),
                "observed": histograms.observed.tolist(),
                "random": histograms.random.tolist(),
                "observed_mean": histograms.means[0],
                "random_mean": histograms.means[1],
                "separation": histograms.separation,
            },
            "this_run": self.own if tracking else None,
            "steps": tracking.steps if tracking else [],
            "gramian_errors": tracking.gramian_errors if tracking else {},
            "gradient_errors": tracking.gradient_errors if tracking else {},
            "mean_gramian_error": self.gramian_error,
            "mean_gradient_error": self.gradient_error,
            "left_out": self.left_out or None,
        }


def rivals(
    batch_sizes: list[int], own: EstimatorSettings | None = None
) -> dict[str, EstimatorSettings]:
    """Return the settings of every estimator by its name in tables, for each of the batch sizes;
    the recipe's `own` is among them if it is not the package's."""
    samplers, betas = ("uniform", "sqrt", "linear"), ("1/n", "1")
    settings: dict[str, dict[str, Any]] = {
        **{f"sampled, {name}": {"kind": "sampled", "sampler": name} for name in samplers},
        **{f"sogram {rate}": {"rate": rate} for rate in (0.1, 0.05, 0.02, "auto")},
        **{f"storm {rate}": {"kind": "storm", "rate": rate} for rate in (0.1, "auto")},
        **{f"sagram {beta}": {"kind": "sagram", "beta": beta} for beta in betas},
    }
    others: dict[str, EstimatorSettings] = {}
    for size in batch_sizes:
        draws = {"sampler": "uniform", "batch_size": size}
        for name, chosen in settings.items():
            others[f"{name}, |B| = {size}"] = ESTIMATORS.of(draws | chosen)
        if isinstance(own, BatchEstimatorSettings) and own.kind not in ESTIMATORS.own:
            name = f"{own.kind}, |B| = {size}"
            others[name] = own.model_copy(update=draws)
    return others


def diagnose(
    recipe: Recipe,
    lineage: Lineage,
    corpus: Corpus | None = None,
    *,
    encoder: EncoderModules | None = None,
    steps: int = 200,
    batch_sizes: list[int] | None = None,
    device: str = "auto",
    progress: Progress | bool = True,
) -> Diagnosis:
    """Measure the newest version as published, and its estimators along the first steps of its
    training, which is run again.

    Args:
        recipe: the one it was trained by.
        encoder: the modules that it was trained with, if they were your own.
        steps: of training on which estimators are compared, at 20 of them.
        batch_sizes: entities that each learns from, a step; 128 and 1024 by default.
    Raises: DataError, RecipeError: the data is not what it was, or was passed in Python and is
        not now. LineageError, ShapeError: the modules are missing, or are others.
    """
    version = lineage.newest
    corpus = corpus_for(recipe, corpus, lineage)
    split = split_for(recipe, corpus, version, lineage.pair_history)
    training = split.training
    load_encoder(lineage, version, encoder)  # modules that are missing, or others, are refused
    published = final_split(split, refits=recipe.refits).training
    sides, histograms = _of_published(recipe, lineage, published)
    past = None
    if recipe.prior.kind == "version" and version:
        before = max(m.version for m in lineage.versions if m.version < version)
        past = load_encoder(lineage, before).embed_all(training)
    own = None if encoder is None else ModuleEncoder.of(encoder, training)
    settings = FitSettings.of(recipe, training, version)
    companions = Companions(past=past, own=own)
    step, sampler, draws = prepare(
        settings, training, pick_device(device, recipe.training.tables), companions
    )
    if not step.objective.wants_moments:
        return Diagnosis(version, sides, histograms, None, left_out=WITHOUT_GRAMIAN)
    tracking = Tracking(
        rivals(batch_sizes or [128, 1024], recipe.gramian),
        {side: training.counts(side) for side in SIDES},
        every=max(1, steps // 20),
        seed=recipe.seed,
    )
    callbacks = [tracking, ProgressReport(Progress.of_choice(progress), "diagnose", steps)]
    run = Trainer(step, sampler, draws, callbacks=callbacks, seed=settings.version_seed)
    run.fit(steps=steps)
    learned = ""
    if isinstance(recipe.gramian, BatchEstimatorSettings):
        own_size = recipe.gramian.batch_size if draws is not None else None
        learned = f", |B| = {own_size or sampler.batch_size}"
    own_row = f"{recipe.gramian.kind} ({OWN}{learned})"
    return Diagnosis(version, sides, histograms, tracking, own_row)


def _of_published(
    recipe: Recipe, lineage: Lineage, corpus: Corpus
) -> tuple[dict[str, dict[str, float]], Histograms]:
    """Measure the stored embeddings of the newest version: each side's, and the scores of pairs.

    Raises: DataError: the corpus lacks entities that the version has vectors of.
    """
    vectors, sides, places = {}, {}, {}
    for side, entities in zip(SIDES, (corpus.queries, corpus.candidates), strict=True):
        ids, vectors[side] = lineage.embeddings(side, lineage.newest)
        rows = entities.vocabulary.rows(ids)
        if bool((rows < 0).any()):
            raise DataError(
                f"The data lacks {int((rows < 0).sum()):,} of the {len(ids):,} objects of side "
                f"{side} that version {lineage.newest} has vectors of; give the data that it was "
                "trained on."
            )
        chosen, counts = recipe.task.measures_of(side), corpus.counts(side)
        share = build_measures(chosen, counts, entities.vocabulary)[:, 0][rows]
        parts, norms = spectrum(vectors[side], share), vectors[side].double().norm(dim=1)
        sides[side] = {
            "entities": len(ids),
            "dim": vectors[side].shape[1],
            "effective_rank": effective_rank(parts),
            "largest_share": float(parts.max()),
            "norm_mean": float(norms.mean()),
            "norm_deviation": float(norms.std()) if len(norms) > 1 else 0.0,
        }
        places[side] = torch.full((len(entities),), -1)
        places[side][rows] = torch.arange(len(rows))
    query, candidate = (places[side][corpus.column(side)] for side in SIDES)
    stored = (query >= 0) & (candidate >= 0)
    pairs = query[stored], candidate[stored]
    return sides, score_histograms(vectors["query"], vectors["candidate"], pairs, seed=recipe.seed)


def spectrum(vectors: Tensor, share: Tensor) -> Tensor:
    """Return the eigenvalues of Σ p_a u_a ⊗ u_a as shares of their sum, ascending, float64 [D], of
    vectors u [N, D] and a measure p [N]."""
    moment = torch.zeros(vectors.shape[1], vectors.shape[1], dtype=torch.float64)
    for start in range(0, len(vectors), ROWS):
        block, weights = vectors[start : start + ROWS], share[start : start + ROWS]
        wide = block.double()
        moment += (wide * weights[:, None]).T @ wide
    values = torch.linalg.eigvalsh(moment).clamp(min=0)
    total: Tensor = values.sum().clamp(min=1e-300)
    shares: Tensor = values / total
    return shares


def effective_rank(parts: Tensor) -> float:
    """Return exp of the entropy of shares of eigenvalues [D], between 1 and D."""
    return float((-(parts * parts.clamp(min=1e-300).log()).sum()).exp())
