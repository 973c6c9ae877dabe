"""Recipes whose kinds this process does not know, as they were registered in another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evergram.errors import RecipeError
from evergram.tasks.pointwise_losses import LOSSES
from evergram.training.recipe.used_keys import KIND_TABLES


def unknown_kinds(values: Mapping[str, Any]) -> dict[str, str]:
    """Return {key: name} of what a stored recipe chooses and this process lacks, such as
    {"gramian.kind": "window"}."""
    unknown = {
        f"{name}.{table.chooser}": str(values[name][table.chooser])
        for name, table in KIND_TABLES.items()
        if values.get(name, {}).get(table.chooser, next(iter(table.kinds))) not in table.kinds
    }
    loss = values.get("task", {}).get("loss", "squared")
    return unknown if loss in LOSSES else {**unknown, "task.loss": str(loss)}


def without_unknown_kinds(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored recipe for what reads stored embeddings only: where it chooses something that
    this process lacks, the table's own keys stay, and the kind and its keys are the default's."""
    kept = dict(values)
    for key in unknown_kinds(values):
        name, _, chooser = key.partition(".")
        table, own = KIND_TABLES[name], KIND_TABLES[name].model_fields
        kept[name] = {
            k: v for k, v in values[name].items() if k in own and k not in (chooser, table.chooser)
        }
    return kept


def refuse_unknown_kinds(values: Mapping[str, Any], owner: str) -> None:
    """Raises: RecipeError: a stored recipe chooses what this process lacks.

    Args:
        owner: whose recipe it is, such as "version 1 of films".
    """
    for key, name in unknown_kinds(values).items():
        raise RecipeError(
            f"The recipe of {owner} has {key} = {name!r}, which this process does not know; call "
            "evergram.diagnose from Python where it is registered, or add it to the package "
            "(docs/extend/index.md)."
        )
