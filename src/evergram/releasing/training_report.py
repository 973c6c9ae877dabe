"""Report a version's training and data, as JSON for its metrics."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from evergram.collectives import is_first_process
from evergram.data.corpus import Corpus
from evergram.data.features import summaries
from evergram.data.split import Split
from evergram.encoders.features import SIDES
from evergram.training.callbacks import Callback
from evergram.training.fit import Trained
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.training import TrainingRecipe

log: logging.Logger = logging.getLogger(__name__)


def version_report(
    version: int, split: Split, trained: Trained, settings: TrainingRecipe
) -> dict[str, Any]:
    """Return a version's metrics as JSON: its own, its training's, and its data's size.

    Args:
        split: the one that it was last trained on, and tested by.
    """
    training = split.training
    features = summaries(training.queries, training.candidates) if reads_features(trained) else []
    return {
        "version": version,
        "dim": trained.query.shape[1],
        "metrics": dict(trained.metrics),
        **({} if trained.sample is None else {"sampled": trained.sample.as_json()}),
        **({"untested": split.untested} if split.untested else {}),
        "training": {
            **training_report(trained),
            "history": trained.history,
            "gramian_bytes": trained.state_bytes,
            **({"watched": trained.watched} if settings.watch_minutes else {}),
            **({"seconds_to_reach": trained.reached} if settings.reach else {}),
        },
        "data": {
            "queries": len(training.queries),
            "candidates": len(training.candidates),
            "interactions": len(training),
            "repeats": training.repeats,
            "test_pairs": len(split.test),
            "test_queries": len(torch.unique(split.test.query)),
            "unknown_test_candidates": int((split.test.candidate < 0).sum()),
            "unknown_queries": split.unknown_queries,
            "trained_before": split.trained_before,
            "in_training": split.in_training,
            **({"features": [asdict(one) for one in features]} if features else {}),
        },
    }


def reads_features(trained: Trained) -> bool:
    """Return whether an encoder has features of any side among its inputs."""
    schema = getattr(trained.encoder, "schema", None)  # modules of a user's own have none
    return schema is not None and any(len(inputs) > 1 for inputs in schema.inputs.values())


def say_features(recipe: Recipe, corpus: Corpus, progress: Progress) -> None:
    """Say what each feature of a corpus is, and warn of those that say nothing of a new object; of
    a model that reads them."""
    if not recipe.model.chosen.reads_features:
        return
    for feature in summaries(corpus.queries, corpus.candidates):
        progress.say(feature.sentence)
        if feature.warning and is_first_process():
            log.warning(feature.warning)


def training_report(trained: Trained) -> dict[str, Any]:
    """Return how a model was trained, as JSON: seconds, epochs, strengths, warnings."""
    return {
        "seconds": round(trained.seconds, 3),
        "best_epoch": trained.best_epoch,
        "epochs": int(trained.history[-1]["epoch"]) if trained.history else 0,
        "ended": trained.ended,
        "refit": trained.refit,
        "penalty": list(trained.penalty),
        "l2": trained.l2,
        "l2_measure": trained.l2_measure,
        "optimizer": trained.optimizer,
        "batch_size": trained.batch_size,
        "table_rate": trained.table_rate,
        **({} if trained.temperature is None else {"temperature": trained.temperature}),
        **({} if trained.popularity is None else {"popularity": trained.popularity.as_json()}),
        **({"pilots": trained.pilots} if trained.pilots else {}),
        "warnings": trained.warnings,
    }


def board_callbacks(folder: str | Path | None, version: int, split: Split) -> list[Callback]:
    """Return the callbacks that write a version's training, with its Gramians' errors, for
    TensorBoard; none without a folder, or where another process writes them."""
    if folder is None or not is_first_process():
        return []
    from evergram.training.monitors.gramian_tracking import Tracking
    from evergram.training.monitors.tensorboard import TensorBoard

    corpus = split.training
    tracking = Tracking({}, {s: corpus.counts(s) for s in SIDES}, every=100)
    pairs = (corpus.column("query"), corpus.column("candidate"))
    return [tracking, TensorBoard(Path(folder) / f"version-{version}", pairs, tracking)]
