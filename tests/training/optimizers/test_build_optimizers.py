"""Each parameter is trained by one optimiser, at the rate of its kind."""

from __future__ import annotations

import pyarrow as pa
import torch

from evergram.data.corpus import Corpus
from evergram.training.build import prepare
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

CPU = torch.device("cpu")


def test_every_parameter_has_one_optimizer_and_its_own_rate() -> None:
    corpus = Corpus.from_tables(
        pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}),
        candidate_features=pa.table({"id": ["x", "y"], "tags": [["s"], ["s", "t"]]}),
    )
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"kind": "two_tower", "dim": 3, "hidden": [5]},
            "training": {"table_rate": 0.3, "feature_rate": 0.2, "layer_rate": 0.1},
        }
    )
    step = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)[0]
    rates = {
        p: group["lr"] for o in step.optimizers for group in o.param_groups for p in group["params"]
    }
    for name, parameter in step.encoder.named_parameters():
        table = 0.2 if "feature" in name else 0.3
        assert rates.pop(parameter) == (table if name.startswith("tables") else 0.1), name
    assert not rates
