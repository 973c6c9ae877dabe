"""A recipe that trains in a third of a second, and a lineage made by it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from reproduction.recipe import PaperRecipe

from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train
from evergram.training.recipe import Recipe
from evergram.training.recipe.recipe import override_keys

PAPER_KEYS = PaperRecipe.key_types().keys() - Recipe.key_types().keys()


def recipe_class(overrides: Sequence[str]) -> type[Recipe]:
    """Return the class of recipes that has the keys of some overrides."""
    return PaperRecipe if PAPER_KEYS & override_keys(overrides) else Recipe


def small_recipe() -> Recipe:
    return Recipe.of(
        {
            "name": "small",
            "data": {
                "kind": "synthetic",
                "queries": 300,
                "candidates": 200,
                "interactions": 8000,
            },
            "split": {"kind": "time", "versions": [0.5, 0.6, 0.7]},
            "model": {"dim": [8, 12, 10]},
            "task": {"penalty": 5.0, "l2": 0.1},
            "training": {"epochs": 3, "patience": 0, "batch_size": 256, "table_rate": 0.1},
        }
    )


def tiny_recipe(*overrides: str) -> Recipe:
    """900 interactions, versions of 4, 5 and 3 dims, one epoch."""
    return recipe_class(overrides).of(
        {
            "name": "tiny",
            "data": {"kind": "synthetic", "queries": 60, "candidates": 40, "interactions": 900},
            "model": {"dim": [4, 5, 3]},
            "task": {"penalty": 5.0, "l2": 0.1},
            "training": {"epochs": 1, "batch_size": 128},
        },
        overrides,
    )


def tiny_lineage(folder: Path) -> Lineage:
    """Version 0 of `tiny_recipe()`."""
    lineage = Lineage.create(folder, "tiny")
    lineage.publish(_tiny_artefact())
    return lineage


@cache
def _tiny_artefact() -> Artefact:
    return train(tiny_recipe(), progress=False)
