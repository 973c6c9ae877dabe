"""Fit one encoder: select the best epoch, and if the recipe refits, train on all but the test."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.split import Split
from evergram.encoders.encoder import Encoder
from evergram.evaluation.ranking import popularity_metrics, rank_metrics
from evergram.evaluation.relevance import test_relevance
from evergram.training.build import Companions, prepare
from evergram.training.callbacks import Budget, Callback, FiniteLoss
from evergram.training.loop import Trainer
from evergram.training.monitors.early_stopping import (
    EarlyStopping,
    SelectionMetric,
    time_to_reach,
)
from evergram.training.monitors.map_watch import MapWatch
from evergram.training.monitors.progress_report import ProgressReport
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.recipe.training import TrainingRecipe
from evergram.training.resume import ResumeFile, Resumption, run_key

QUIET = Progress(quiet=True)
log = logging.getLogger(__name__)
# An objective that ends so many times above its first epoch's is no noise: it grows.
RISEN = 1.1


@dataclass(frozen=True)
class RunContext:
    """A device, a folder and callbacks for a training.

    Args:
        device: of the parameters while they are trained.
        progress: shows its steps and evaluations.
        folder: checkpoint folder; an interrupted run resumes from it. None saves nothing.
        callbacks: watch the search for the best epoch; a refit is not watched.
        title: the run's name in the folder, in progress and in warnings.
        warns: whether warnings are logged; the result has them in any case.
    """

    device: torch.device
    progress: Progress = QUIET
    folder: Path | None = None
    callbacks: Sequence[Callback] = ()
    title: str = "train"
    warns: bool = True


@dataclass(frozen=True)
class Refit:
    """A last training on all but the test pairs, for as many steps as selection found best.

    Args:
        split: its training corpus holds the pairs of training and of selection.
        companions: as of the first training, in the rows of that corpus.
    """

    split: Split
    companions: Companions = field(default_factory=Companions)


@dataclass
class Trained:
    """A trained encoder with its embeddings, its metrics and its history.

    Args:
        encoder: at its best epoch by the selection metric, or refitted; in evaluation mode, on the
            CPU.
        query, candidate: [N, D], embeddings of the entities of the corpus it was last trained on.
        metrics: on the test pairs, `model` and `popularity`.
        history: one entry an evaluation: epoch, seconds of training, objective, the metric.
        best_epoch: epochs that the kept encoder has had.
        seconds: of training, evaluation not counted.
        watched: one entry every `training.watch_minutes`.
        reached: seconds of training until `training.reach`; None if it was not reached.
        state_bytes: of the Gramian estimators.
        ended: the limit that ended training: "patience", "epochs" or "budget".
        refit: `steps`, `interactions` and `seconds` of the refit; None if there was none.
        penalty, l2, batch_size, table_rate: λ of each measure, the weight of squared norms, the
            pairs of a step and the learning rate of tables, as they were used.
        pilots: the trainings that chose l2 and the rate, see `training.pilots`.
        warnings: sentences for a person to read.
    """

    encoder: Encoder
    query: Tensor
    candidate: Tensor
    metrics: dict[str, dict[str, float]]
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    seconds: float = 0.0
    watched: list[dict[str, float]] = field(default_factory=list)
    reached: float | None = None
    state_bytes: int = 0
    ended: str = ""
    refit: dict[str, float] | None = None
    penalty: tuple[float, ...] = ()
    l2: float = 0.0
    batch_size: int = 0
    table_rate: float = 0.0
    pilots: list[dict[str, float | str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def fit_encoder(
    recipe: Recipe,
    split: Split,
    version: int,
    context: RunContext,
    companions: Companions | None = None,
    refit: Refit | None = None,
) -> Trained:
    """Train a version's encoder on `split.training`, keep its best epoch, and measure it.

    Args:
        version: gives the run its seed, and the model its dims.
        refit: train once more from the start, on this, for as many steps.
    Raises: TrainingError: the loss is not finite. DataError, RecipeError.
    """
    companions = Companions() if companions is None else companions
    settings = recipe.training
    job = _Job.of(recipe, split.training, version, context, companions)
    # A joint run is not yet compatible when it is best at its own task. [BC]'s code.
    select_after = recipe.upgrade.select_after if companions.joint is not None else 0
    stopping = _stopping(settings, split, select_after)
    watch = _watch(settings, split, recipe.seed)
    run = job.search(stopping, [*context.callbacks, *([] if watch is None else [watch])])
    ended = run.fit(epochs=settings.epochs)
    seconds, last = run.seconds, None
    if refit is None:
        encoder = run.finish(stopping.kept)
    else:
        steps = stopping.best_epoch * len(run.sampler)
        # Free what the search trained: it is as large as what follows.
        stopping.kept = {}
        del run
        again = replace(context, title=f"{context.title} refit")
        job = _Job.of(recipe, refit.split.training, version, again, refit.companions)
        run = job.refitted(steps)
        encoder = run.finish()
        last = {"steps": steps, "interactions": len(refit.split.training), "seconds": run.seconds}
        seconds += run.seconds
    return replace(
        judge(encoder, split if refit is None else refit.split, recipe.metrics),
        history=stopping.history,
        best_epoch=stopping.best_epoch,
        seconds=seconds,
        watched=[] if watch is None else watch.records,
        reached=time_to_reach(stopping.history, settings.metric, settings.reach),
        state_bytes=run.state_bytes,
        ended=ended,
        refit=last,
        penalty=run.step.objective.penalty,
        l2=run.step.objective.l2,
        batch_size=run.sampler.batch_size,
        table_rate=job.settings.table_rate,
        warnings=_warnings(settings, stopping, ended, context),
    )


@dataclass(frozen=True)
class _Job:
    """One training: its settings, its corpus, and where it runs.

    Args:
        recipe: JSON of the whole recipe; a checkpoint of another recipe is ignored.
    """

    settings: FitSettings
    recipe: str
    corpus: Corpus
    context: RunContext
    companions: Companions

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        corpus: Corpus,
        version: int,
        context: RunContext,
        companions: Companions,
    ) -> Self:
        settings = FitSettings.of(recipe, corpus, version)
        return cls(settings, recipe.model_dump_json(), corpus, context, companions)

    def trainer(self) -> Trainer:
        """Return its trainer, with no callbacks yet."""
        folder = self.context.folder
        parts = prepare(self.settings, self.corpus, self.context.device, self.companions, folder)
        return Trainer(*parts, seed=self.settings.version_seed)

    def search(self, stopping: EarlyStopping, callbacks: Sequence[Callback]) -> Trainer:
        """Return the trainer of the search for the best epoch, ready to run."""
        run, settings, context = self.trainer(), self.settings.training, self.context
        steps = settings.epochs * len(run.sampler)
        run.callbacks += [
            FiniteLoss(self.settings.rates),
            *([] if settings.budget is None else [Budget(settings.budget)]),
            stopping,
            self.resumption(stopping),
            ProgressReport(context.progress, context.title, steps, settings.metric),
            *callbacks,
        ]
        return run

    def resumption(self, stopping: EarlyStopping | None, purpose: str = "") -> Resumption:
        """Return the callback that saves and restores it.

        Args:
            purpose: distinguishes runs of the same recipe, data and version.
        """
        folder, beside, key = self.context.folder, self.companions, ""
        if folder is not None:
            parts = beside.joint, beside.start, beside.own
            key = run_key(self.recipe, self.settings.version, self.corpus, *parts)
        return Resumption(ResumeFile(folder, self.context.title, key + purpose), stopping)

    def refitted(self, steps: int) -> Trainer:
        """Train for so many steps, without selection. Returns: the trainer, done."""
        run = self.trainer()
        run.callbacks = [
            FiniteLoss(self.settings.rates),
            self.resumption(None, f"refit, {steps} steps"),
            ProgressReport(self.context.progress, self.context.title, steps),
        ]
        run.fit(steps=steps)
        return run


def _stopping(settings: TrainingRecipe, split: Split, select_after: int) -> EarlyStopping:
    return EarlyStopping(
        settings.metric,
        settings.patience,
        select_after,
        evaluate=SelectionMetric(settings.metric, split),
        every=settings.evaluate_every,
    )


def _watch(settings: TrainingRecipe, split: Split, seed: int) -> MapWatch | None:
    if settings.watch_minutes is None:
        return None
    size = settings.watch_candidates
    return MapWatch(split, minutes=settings.watch_minutes, size=size, seed=seed)


def _warnings(
    settings: TrainingRecipe, stopping: EarlyStopping, ended: str, context: RunContext
) -> list[str]:
    """Return sentences for a person to read, and log them."""
    sentences = []
    if stopping.best_is_last:
        more = "budget" if ended == "budget" else "epochs"
        sentences.append(
            f"{context.title}: the best of {len(stopping.history)} evaluations is the last (epoch "
            f"{stopping.best_epoch}, {settings.metric} {stopping.best:.4f}), so more training may "
            f"be better; raise training.{more} ({getattr(settings, more):g})."
        )
    objectives = [record["objective"] for record in stopping.history]
    if objectives and objectives[-1] > RISEN * objectives[0] > 0:
        sentences.append(
            f"{context.title}: the objective rose from {objectives[0]:.4g} to "
            f"{objectives[-1]:.4g}, so steps are too long; lower "
            "training.layer_rate or training.table_rate, or set training.precondition = 0."
        )
    if context.warns:
        for sentence in sentences:
            log.warning(sentence)
    return sentences


def judge(encoder: Encoder, split: Split, metrics: Sequence[str]) -> Trained:
    """Measure an encoder, trained or not, on a version's data."""
    corpus = split.training
    vectors = encoder.embed_all(corpus)
    query, candidate = vectors["query"], vectors["candidate"]
    test = test_relevance(split)
    measured = {
        "model": rank_metrics(query, candidate, test, metrics),
        "popularity": popularity_metrics(corpus.counts("candidate"), test, metrics),
    }
    return Trained(encoder, query, candidate, measured)
