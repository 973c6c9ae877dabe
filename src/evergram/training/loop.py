"""Train an encoder: find the best epoch, and where it is wanted train on all that is not test."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.row_pairs import RowPairs
from evergram.data.split import Split, known_pairs
from evergram.encoders.encoder import Encoder
from evergram.errors import RecipeError
from evergram.evaluation.ranking import Relevance, popularity_metrics, rank_metrics
from evergram.training.callbacks import Callback
from evergram.training.monitors.early_stopping import EarlyStopping
from evergram.training.monitors.map_watch import Watch
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.run import Beside, TrainingRun, no_denormals
from evergram.training.step import Joint


@dataclass(frozen=True)
class Refit:
    """A last training on all that is not test, for as many steps as selection found best.

    Args:
        split: its training corpus holds the pairs of training and of selection.
        joint, past: as of `train_encoder`, in the rows of that corpus.
    """

    split: Split
    joint: Joint | None = None
    past: Mapping[str, Tensor] | None = None


@dataclass
class Trained:
    """What a run leaves.

    Args:
        encoder: at its best epoch by the selection metric, or trained on all that is not test for
            as many steps; in evaluation mode, on the CPU.
        query, candidate: [N, D], embeddings of the entities of the corpus it was last trained on.
        metrics: on the test pairs, `model` and `popularity`.
        history: one entry an evaluation: epoch, seconds of training, objective, the metric.
        best_epoch: epochs that the kept encoder has had.
        seconds: of training, evaluation not counted.
        watched: what `training.watch_minutes` asked for, one entry a look.
        reached: seconds of training until `training.reach`, None where it was not.
        state_bytes: of the Gramian estimators.
        ended: why no more epochs were trained: "patience", "epochs" or "budget".
        refit: `steps`, `interactions` and `seconds` of the last training on all that is not test;
            None where there was none.
        penalty, l2, batch_size: λ of each measure, the weight of squared norms and the pairs of a
            step, as they were used.
        warnings: sentences that a person should read.
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
    warnings: list[str] = field(default_factory=list)


def train_encoder(
    recipe: Recipe,
    split: Split,
    version: int,
    device: torch.device,
    progress: Progress,
    *,
    joint: Joint | None = None,
    past: Mapping[str, Tensor] | None = None,
    start: Encoder | None = None,
    title: str = "train",
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
    refit: Refit | None = None,
) -> Trained:
    """Train a version's encoder from its start on `split.training`, and keep its best epoch.

    Args:
        joint: what is trained together with it, in place.
        past: the embeddings of the version before, [N, D′] of each side, for `prior.kind`
            "version".
        start: an encoder of the same architecture to go on from.
        folder: where an interrupted run of the same is gone on with; None keeps nothing.
        callbacks: what looks on; the refit is not looked at.
        refit: train once more from the start, on this, for as many steps; None does not.
    Raises: TrainingError: the loss is no longer finite.
    """
    run = TrainingRun(
        recipe, split.training, version, device, Beside(joint, past, start), title, folder
    )
    watch = Watch.of(recipe, split)
    found, ended = _search(
        recipe, split, run, progress, [*callbacks, *([] if watch is None else [watch])]
    )
    seconds, last = run.seconds, None
    if refit is None:
        encoder = run.finish(found.kept)
    else:
        steps = found.best_epoch * len(run.sampler)
        # What the search trained is of no more use, and as large as what follows.
        found.kept = {}
        del run
        beside = Beside(refit.joint, refit.past, start)
        run = TrainingRun(
            recipe, refit.split.training, version, device, beside, f"{title} refit", folder,
            f"refit, {steps} steps",
        )  # fmt: skip
        encoder = _train_for(run, steps, progress)
        last = {"steps": steps, "interactions": len(refit.split.training), "seconds": run.seconds}
        seconds += run.seconds
    warnings = _warnings(recipe, found, ended, title)
    for sentence in warnings:
        logging.getLogger(__name__).warning(sentence)
    metric = recipe.training.metric
    return replace(
        judge(recipe, split if refit is None else refit.split, encoder),
        history=found.history,
        best_epoch=found.best_epoch,
        seconds=seconds,
        watched=[] if watch is None else watch.found,
        reached=time_to_reach(found.history, metric, recipe.training.reach),
        state_bytes=run.state_bytes,
        ended=ended,
        refit=last,
        penalty=run.step.objective.penalty,
        l2=run.step.objective.l2,
        batch_size=run.sampler.batch_size,
        warnings=warnings,
    )


def _search(
    recipe: Recipe,
    split: Split,
    run: TrainingRun,
    progress: Progress,
    lookers: Sequence[Callback],
) -> tuple[EarlyStopping, str]:
    """Train until patience, the epochs or the budget end it. Returns: the best epoch with its
    parameters, and which of the three it was."""
    settings = recipe.training
    # A joint run is not yet compatible when it is best at its own task. [BC]'s code.
    joint = "joint" in run.learned
    found = EarlyStopping(
        settings.metric, settings.patience, recipe.upgrade.select_after if joint else 0
    )
    saved = run.restore()
    if saved is not None:
        found.kept, facts = saved
        found.history = facts["history"]
        found.best, found.best_epoch = facts["best"], facts["best_epoch"]
    relevance = relevance_of(split.training, split.selection)
    ended = _ended(recipe, run, found)
    try:
        with (
            no_denormals(),
            progress.task(run.title, settings.epochs * len(run.sampler), at_most=True) as bar,
        ):
            bar.advance(run.steps, 0)
            while not ended:
                mean = run.next_epoch(bar, lookers)
                ended = _ended(recipe, run, found)
                if ended or run.epoch % settings.evaluate_every == 0:
                    value = _evaluate(recipe, run, relevance)
                    record = {"epoch": run.epoch, "seconds": run.seconds, "objective": mean}
                    record[settings.metric] = value
                    if found.add(record, last=bool(ended)):
                        found.kept = run.parameters()
                    bar.describe(f"epoch {run.epoch} loss {mean:.4f} {settings.metric} {value:.4f}")
                    for looker in lookers:
                        looker.on_evaluation(run.point, record)
                    ended = ended or _ended(recipe, run, found)
                # The last state is kept whenever one may come back to it.
                facts = {"history": found.history, "best": found.best}
                run.save(facts | {"best_epoch": found.best_epoch}, found.kept, now=bool(ended))
    finally:
        for looker in lookers:
            looker.on_end(run.point)
    return found, ended


def _ended(recipe: Recipe, run: TrainingRun, found: EarlyStopping) -> str:
    """Why no epoch follows; empty where one does."""
    settings = recipe.training
    if run.epoch >= settings.epochs:
        return "epochs"
    if settings.budget is not None and run.seconds >= settings.budget:
        return "budget"
    return "patience" if found.exhausted else ""


def _evaluate(recipe: Recipe, run: TrainingRun, relevance: Relevance) -> float:
    name = recipe.training.metric
    now = run.encoder.embed_all(run.step.scene)
    return rank_metrics(now["query"], now["candidate"], relevance, [name])[name]


def _train_for(run: TrainingRun, steps: int, progress: Progress) -> Encoder:
    """Train for so many steps; nothing is looked at on the way."""
    run.restore()
    with no_denormals(), progress.task(run.title, steps) as bar:
        bar.advance(run.steps, 0)
        while run.steps < steps:
            mean = run.next_epoch(bar, limit=steps - run.steps)
            bar.describe(f"epoch {run.epoch} loss {mean:.4f}")
            run.save({}, {}, now=run.steps >= steps)
    return run.finish()


def _warnings(recipe: Recipe, found: EarlyStopping, ended: str, title: str) -> list[str]:
    if not found.best_is_last:
        return []
    more = "budget" if ended == "budget" else "epochs"
    return [
        f"{title}: the best of {len(found.history)} evaluations is the last (epoch "
        f"{found.best_epoch}, {recipe.training.metric} {found.best:.4f}), so more training may be "
        f"better; raise training.{more} ({getattr(recipe.training, more):g})."
    ]


def judge(recipe: Recipe, split: Split, encoder: Encoder) -> Trained:
    """What an encoder, trained or not, is worth on a version's data."""
    corpus = split.training
    vectors = encoder.embed_all(corpus)
    query, candidate = vectors["query"], vectors["candidate"]
    test = test_relevance(split)
    metrics = {
        "model": rank_metrics(query, candidate, test, recipe.metrics),
        "popularity": popularity_metrics(corpus.counts("candidate"), test, recipe.metrics),
    }
    return Trained(encoder, query, candidate, metrics)


def time_to_reach(
    history: Sequence[Mapping[str, float]], metric: str, value: float | None
) -> float | None:
    """Seconds of training at the first evaluation with at least `value`; None if there is none."""
    if value is None:
        return None
    return next((h["seconds"] for h in history if h[metric] >= value), None)


def relevance_of(corpus: Corpus, pairs: RowPairs) -> Relevance:
    """Held-out pairs to find, with the training pairs masked."""
    return Relevance.of(
        pairs.query, pairs.candidate, corpus.column("query"), corpus.column("candidate")
    )


def test_relevance(split: Split) -> Relevance:
    """Test pairs to find, with all known pairs masked: training's, and those that chose the
    epoch."""
    known = known_pairs(split)
    return Relevance.of(split.test.query, split.test.candidate, known.query, known.candidate)


def final_split(recipe: Recipe, split: Split) -> Split:
    """Return the split of the model that is published: the same one, or where `training.refit` has
    it so the one whose training corpus holds all that is not test.

    Raises: RecipeError: the same pairs select and test, so there is nothing more to train on.
    """
    if not recipe.refits:
        return split
    if split.final is None:
        raise RecipeError(
            "training.refit trains on the pairs that chose the epoch too, and with split.selection "
            "= 'paper' those are the test pairs; set training.refit = false or split.selection = "
            "'strict'."
        )
    return split.final()
