"""A recipe with a growing corpus of a few thousand interactions, trained in a second."""

from __future__ import annotations

from evergram.training.recipe import Recipe


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
