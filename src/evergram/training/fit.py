"""Train an encoder and keep its best epoch; with a refit, train again on all but the test pairs."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from evergram.collectives import ALONE, Collectives
from evergram.data.split import Split
from evergram.encoders.encoder import SIDES, Encoder
from evergram.evaluation.metric_sample import SampledRanking
from evergram.training import selection
from evergram.training.build import Companions, FitSettings, prepare
from evergram.training.callbacks import Callback, Limits, ProgressReport, SoundNumbers
from evergram.training.loop import Trainer
from evergram.training.progress import QUIET, Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import GradientUpgrade, TrainingSettings
from evergram.training.resuming import AUTOMATIC, Checkpoints, CheckpointSettings, run_identity
from evergram.training.selection import (
    EarlyStopping,
    EvaluateShare,
    SelectionMetric,
    epoch_work,
    final_metrics,
    queries_to_rank,
    ranking_work,
)


@dataclass(frozen=True)
class RunContext:
    """The environment of a training run: device, files, reporting and time limit.

    Args:
        folder: for checkpoints, from which an interrupted run resumes; None saves nothing.
        checkpoints: when they are written, and whether the run resumes from them.
        callbacks: for the search for the best epoch; not used in a refit.
        title: the run's name in the folder, in progress and in warnings.
        warns: whether to log warnings; the result always has them.
        test_queries: number of test queries ranked for the final metrics; None follows the recipe.
        ends: `time.monotonic()` at which the run should end; None is no limit.
        collectives: of the processes that share batches and evaluations.
    """

    device: torch.device
    progress: Progress = QUIET
    folder: Path | None = None
    callbacks: Sequence[Callback] = ()
    title: str = "train"
    warns: bool = True
    collectives: Collectives = ALONE
    checkpoints: CheckpointSettings = AUTOMATIC
    test_queries: int | None = None
    ends: float | None = None

    def share_of_time(self, share: float) -> float | None:
        """Return the clock's time after a share of the time left; None without a limit."""
        now = time.monotonic()
        return None if self.ends is None else now + share * (self.ends - now)


def ends_after(minutes: float | None) -> float | None:
    """Return `RunContext.ends` for a limit of `minutes` from now."""
    return None if minutes is None else time.monotonic() + 60 * minutes


@dataclass(frozen=True)
class Refit:
    """A final training on training and selection pairs, for as many steps as the best epoch had;
    `companions` use the rows of that corpus."""

    split: Split
    companions: Companions = field(default_factory=Companions)


@dataclass
class Trained:
    """A trained encoder with its embeddings, metrics and history.

    Args:
        encoder: at its best epoch, or refitted; in evaluation mode, on the CPU.
        query, candidate: [N, D], embeddings of the entities of the last training corpus.
        metrics: on the test pairs, of "model" and of "popularity".
        sample: the metrics of each ranked query, if only a sample of the test queries was ranked.
        history: one entry per evaluation: epoch, seconds of training, objective, the metric.
        best_epoch: number of epochs after which the metric was best.
        seconds: training time without evaluations.
        state_bytes: of the Gramian estimators.
        ended: the limit that ended training: "patience", "epochs", "budget" or "minutes".
        refit: `steps`, `interactions` and `seconds` of the refit, if there was one.
        penalty, l2, l2_measure, optimizer, batch_size, table_rate: the values used.
        pilots: see `training.pilots`.
    """

    encoder: Encoder
    query: Tensor
    candidate: Tensor
    metrics: dict[str, dict[str, float]]
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    seconds: float = 0.0
    state_bytes: int = 0
    ended: str = ""
    refit: dict[str, float] | None = None
    penalty: tuple[float, ...] = ()
    l2: float = 0.0
    l2_measure: str = "examples"
    optimizer: str = "auto"
    batch_size: int = 0
    table_rate: float = 0.0
    pilots: list[dict[str, float | str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    sample: SampledRanking | None = None
    test_queries: int = 0


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
        version: decides the seed and the model's dims.
        refit: afterwards, train a new encoder on this split for as many steps as the best epoch.
    Raises: TrainingError: the loss is not finite. DataError, RecipeError.
    """
    companions = Companions() if companions is None else companions
    settings, collectives = recipe.training, context.collectives
    # A refit takes about as long as the search.
    first = context if refit is None else replace(context, ends=context.share_of_time(0.5))
    job = _Job(recipe, split, version, first, companions)
    stopping = _stopping(recipe, companions)
    run = job.trainer(stopping)
    run.callbacks += context.callbacks
    an_epoch = job.plan_selection(stopping, run)
    ended = run.fit(epochs=settings.epochs)
    # Break the reference cycle so that the first trainer is freed before the refit.
    stopping.copied = selection.cloned
    seconds, last, trained = run.seconds, None, an_epoch * run.epoch
    if refit is None:
        encoder = run.finish(stopping.kept)
    else:
        steps, split = stopping.best_epoch * len(run.sampler), refit.split
        # Free the first model's memory before the refit.
        stopping.kept = {}
        del run
        again = replace(context, title=f"{context.title} refit")
        job = _Job(recipe, split, version, again, refit.companions)
        run = job.trainer(steps=steps)
        if settings.sweeps:  # a sweep over other pairs may have another number of blocks
            steps = stopping.best_epoch * len(run.sampler)
        run.fit(steps=steps)
        encoder = run.finish()
        last = {"steps": steps, "interactions": len(split.training), "seconds": run.seconds}
        seconds, trained = seconds + run.seconds, trained + an_epoch * run.epoch
    ranked = context.test_queries
    if ranked is None:
        ranked = _queries_to_test(encoder, split, settings.evaluate_share, trained)
    warnings = warned(settings, stopping, ended, context.title)
    for sentence in warnings if context.warns and collectives.is_first else ():
        log.warning(sentence)
    objective = run.step.objective
    return replace(
        judge(encoder, split, recipe, ranked, collectives),
        history=stopping.history,
        best_epoch=stopping.best_epoch,
        seconds=seconds,
        state_bytes=run.state_bytes,
        ended=ended,
        refit=last,
        penalty=objective.penalty,
        l2=objective.l2,
        l2_measure=job.settings.strengths.l2_measure,
        optimizer=job.settings.training.optimizer,
        batch_size=run.sampler.batch_size,
        table_rate=job.settings.table_rate,
        warnings=warnings,
    )


def _stopping(recipe: Recipe, companions: Companions) -> EarlyStopping:
    """Return the recipe's rule for the best epoch."""
    settings, after = recipe.training, 0
    if companions.joint is not None and isinstance(recipe.upgrade, GradientUpgrade):
        # The task's best epoch comes before a joint model is compatible ([BC]'s code).
        after = recipe.upgrade.transform_training.select_after
    return EarlyStopping(settings.metric, settings.patience, after)


def _queries_to_test(encoder: Encoder, split: Split, share: EvaluateShare, trained: int) -> int:
    """Return how many test queries may be ranked for a share of the training's work."""
    sizes = {"query": len(split.training.queries), "candidate": len(split.training.candidates)}
    queries, work = len(torch.unique(split.test.query)), ranking_work(encoder, sizes)
    return queries_to_rank(queries, work, share, trained)[0]


@dataclass(frozen=True)
class _Job:
    """One training: its settings, data and environment."""

    recipe: Recipe
    split: Split
    version: int
    context: RunContext
    companions: Companions

    @cached_property
    def settings(self) -> FitSettings:
        """What the recipe says for this split and version."""
        return FitSettings.of(self.recipe, self.split.training, self.version)

    def trainer(self, stopping: EarlyStopping | None = None, steps: int = 0) -> Trainer:
        """Return a trainer that selects an epoch with `stopping`, or refits for `steps`."""
        settings, context, split = self.settings, self.context, self.split
        folder = context.folder if context.collectives.is_first else None
        environment = context.device, self.companions, folder, context.collectives
        run = Trainer(*prepare(settings, split.training, *environment), seed=settings.version_seed)
        metric = None if stopping is None else stopping.metric
        identity: dict[str, str] = {}
        if folder is not None:
            purpose = f"refit, {steps} steps" if stopping is None else ""
            recipe = self.recipe.model_dump_json()
            identity = run_identity(recipe, settings.version, split, self.companions, purpose)
        options = identity, context.checkpoints, context.progress
        run.callbacks += [Checkpoints(folder, context.title, *options), SoundNumbers()]
        if stopping is not None:
            stopping.copied = run.copied
            run.callbacks += [Limits(settings.training.budget, context.ends), stopping]
            steps = settings.training.epochs * len(run.sampler)
        run.callbacks.append(ProgressReport(context.progress, context.title, steps, metric))
        return run

    def plan_selection(self, stopping: EarlyStopping, run: Trainer) -> int:
        """Set how often evaluations run and how many queries they rank, within the recipe's share.
        Return the multiply-adds of one training epoch."""
        settings, split = self.settings.training, self.split
        counts = {side: split.training.counts(side) for side in SIDES}
        passes = self.settings.model.passes_over_graph
        an_epoch = epoch_work(run, counts, passes_over_graph=passes)
        sizes = {side: len(each) for side, each in counts.items()}
        queries, work = len(torch.unique(split.selection.query)), ranking_work(run.encoder, sizes)
        since = settings.evaluate_every * an_epoch
        ranked, rarer = queries_to_rank(queries, work, settings.evaluate_share, since)
        stopping.every = settings.evaluate_every * rarer
        stopping.evaluate = SelectionMetric(settings.metric, split, ranked, self.settings.seed)
        return an_epoch


def judge(
    encoder: Encoder,
    split: Split,
    recipe: Recipe,
    queries: int | None = None,
    together: Collectives = ALONE,
) -> Trained:
    """Return an encoder's embeddings and test metrics on a version's data; it need not be trained.

    Args:
        queries: number of test queries to rank, drawn with the recipe's seed; None is all.
        together: the processes that share the work; each passes the same arguments.
    """
    vectors = encoder.embed_all(split.training)
    metrics, ranked, sample = final_metrics(
        vectors, split, recipe.metrics, queries, recipe.seed, together
    )
    return Trained(
        encoder,
        vectors["query"],
        vectors["candidate"],
        metrics,
        sample=sample,
        test_queries=ranked,
    )


# Warn if the last objective is more than this many times the first epoch's.
RISEN = 1.1
log: logging.Logger = logging.getLogger(__name__)


def warned(
    settings: TrainingSettings, stopping: EarlyStopping, ended: str, title: str
) -> list[str]:
    """Return a sentence if the best evaluation was the last (unless only the last epoch is
    evaluated), and a sentence if the objective rose."""
    sentences = []
    keeps_last = ended == "epochs" and settings.evaluate_every >= settings.epochs > 1
    is_last = stopping.history and stopping.best_epoch == stopping.history[-1]["epoch"]
    if is_last and not keeps_last:
        limit = "budget" if ended == "budget" else "epochs"
        setting = f"training.{limit} ({getattr(settings, limit):g})"
        if ended == "minutes":
            setting = "--minutes"
        sentences.append(
            f"{title}: the best of {len(stopping.history)} evaluations is the last (epoch "
            f"{stopping.best_epoch}, {settings.metric} {stopping.best:.4f}), so more training may "
            f"help; raise {setting}."
        )
    objectives = [record["objective"] for record in stopping.history]
    if objectives and objectives[-1] > RISEN * objectives[0] > 0:
        sentences.append(
            f"{title}: the objective rose from {objectives[0]:.4g} to {objectives[-1]:.4g}, so the "
            "learning rates are too high; lower training.layer_rate or training.table_rate, or set "
            "training.precondition = 0."
        )
    return sentences
