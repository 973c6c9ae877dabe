"""How long the models of a comparison's run were trained, beside [BC]'s budget."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from evergram.evaluation.training_budget import Budget, training_length
from evergram.lineage.lineage import Lineage
from evergram.releasing.comparison.runs import Run, epochs_of
from evergram.training.recipe import Recipe
from evergram.training.recipe.methods import METHODS

# [BC]'s from scratch: 500 epochs of as many draws as there are edges, 2,048 a step.
REFERENCE = Budget(500, 2048)


def trained_models(run: Run, lineage: Lineage, recipe: Recipe) -> dict[int, dict[str, Any]]:
    """Return, by version, how long each model was trained that the run has trained itself.

    M_0 counts as Keep-All's. A version without a history, whose model is another one's, is left
    out; so are those of a run that uses Keep-All's models.

    Returns: the fields of `TrainingLength`, and `on_plateau`, of each.
    """
    if run.shares_models or METHODS[run.method]["start"] == "frozen":
        return {}
    reference = replace(REFERENCE, epochs=epochs_of(run.method, REFERENCE.epochs))
    joint = METHODS[run.method]["fit"] == "joint"
    lengths = {}
    for manifest in lineage.versions[0 if run.method == "keep-all" else 1 :]:
        report = lineage.metrics(manifest.version)
        training = report["training"]
        length = training_length(
            Budget(training["epochs"], training["batch_size"], recipe.training.short_batch),
            reference,
            report["data"]["interactions"],
            training["history"],
            recipe.training.metric,
            after=getattr(recipe.upgrade, "select_after", 0) if joint else 0,
        )
        lengths[manifest.version] = {**asdict(length), "on_plateau": length.on_plateau}
    return lengths
