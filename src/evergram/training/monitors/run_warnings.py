"""Sentences on a training that a person should read."""

from __future__ import annotations

import logging

from evergram.encoders.features import Schema
from evergram.training.monitors.early_stopping import EarlyStopping
from evergram.training.recipe.training import TrainingSettings

# An objective that ends so many times above its first epoch's is no noise: it grows.
RISEN = 1.1
# The share of ids that share their rows, above which more rows would help.
SHARED = 0.25
log: logging.Logger = logging.getLogger(__name__)


def warned(
    settings: TrainingSettings,
    stopping: EarlyStopping,
    ended: str,
    title: str,
    schema: Schema | None = None,
    *,
    logs: bool,
) -> list[str]:
    """Return a sentence if the best evaluation was the last (unless only the last epoch is
    evaluated), one if the objective rose, and one for each table in which many ids share a row.

    Args:
        ended: the limit that ended training.
        title: the run's name.
        schema: of the encoder, whose rows may be hashed.
        logs: whether they go to the log as well.
    """
    sentences = []
    keeps_last = ended == "epochs" and settings.evaluate_every >= settings.epochs > 1
    if stopping.best_is_last and not keeps_last:
        more = "budget" if ended == "budget" else "epochs"
        raised = f"training.{more} ({getattr(settings, more):g})"
        if ended == "minutes":
            raised = "--minutes"
        sentences.append(
            f"{title}: the best of {len(stopping.history)} evaluations is the last (epoch "
            f"{stopping.best_epoch}, {settings.metric} {stopping.best:.4f}), so more training may "
            f"be better; raise {raised}."
        )
    objectives = [record["objective"] for record in stopping.history]
    if objectives and objectives[-1] > RISEN * objectives[0] > 0:
        sentences.append(
            f"{title}: the objective rose from {objectives[0]:.4g} to "
            f"{objectives[-1]:.4g}, so steps are too long; lower "
            "training.layer_rate or training.table_rate, or set training.precondition = 0."
        )
    sentences += [] if schema is None else _shared_rows(schema, title)
    for sentence in sentences if logs else ():
        log.warning(sentence)
    return sentences


def _shared_rows(schema: Schema, title: str) -> list[str]:
    """Return a sentence for each hashed table in which more than a share of ids share rows."""
    sentences = []
    for table in schema.hashed_tables:
        assert schema.hashing is not None
        ids, count = schema.vocabularies[table].keys, schema.hashing.count
        shared = schema.hashing.shared(ids, table)
        if shared > SHARED:
            sentences.append(
                f"{title}: of the {len(ids):,} ids in {table}, {100 * shared:.0f} % share one of "
                f"{count:,} rows with another id; raise model.hash_rows."
            )
    return sentences
