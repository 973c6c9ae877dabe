"""Each parameter is trained by one optimiser, at the rate of its kind."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from torch import nn

from evergram.data.corpus import Corpus
from evergram.training.build import prepare
from evergram.training.optimizers.build_optimizers import build_optimizers
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


@pytest.mark.parametrize("optimizer", ["adaptive", "adam", "sgd"])
def test_parameters_of_a_task_learn_at_the_rate_of_layers(optimizer: str) -> None:
    corpus = Corpus.from_tables(pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}))
    recipe = Recipe.of({"data": {"kind": "synthetic"}, "training": {"optimizer": optimizer}})
    step = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)[0]
    task = nn.Module()
    task.scale, task.still = (nn.Parameter(torch.ones(2), requires_grad=b) for b in (True, False))
    rates = recipe.training.model_copy(update={"layer_rate": 0.07})
    made = build_optimizers(step.encoder, rates, 0.3, task=task)
    by_parameter = {p: g["lr"] for o in made for g in o.param_groups for p in g["params"]}
    assert by_parameter[task.scale] == 0.07
    assert task.still not in by_parameter


def test_plain_sgd_moves_each_parameter_by_its_rate_times_its_gradient() -> None:
    corpus = Corpus.from_tables(
        pa.table({"query": ["a", "b", "a"], "candidate": ["x", "y", "y"]}),
        candidate_features=pa.table({"id": ["x", "y"], "tags": [["s"], ["s", "t"]]}),
    )
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"kind": "two_tower", "dim": 3, "hidden": [5], "residual": False},
            "training": {
                "optimizer": "sgd",
                "table_rate": 0.3,
                "feature_rate": 0.2,
                "layer_rate": 0.1,
            },
        }
    )
    step, sampler, _ = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)
    before = {n: p.detach().clone() for n, p in step.encoder.named_parameters()}
    step.begin_epoch()
    step(next(iter(sampler.epoch(0))))
    moved = 0
    for name, parameter in step.encoder.named_parameters():
        rate = 0.1 if not name.startswith("tables") else 0.2 if "feature" in name else 0.3
        assert parameter.grad is not None
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        torch.testing.assert_close(parameter.detach(), before[name] - rate * gradient)
        moved += int(gradient.any())
    assert moved > 6


def test_adam_has_every_parameter_at_the_rate_of_its_kind() -> None:
    corpus = Corpus.from_tables(
        pa.table({"query": ["a", "b", "a"], "candidate": ["x", "y", "y"]}),
        candidate_features=pa.table({"id": ["x", "y"], "tags": [["s"], ["s", "t"]]}),
    )
    recipe = Recipe.of(
        {
            "data": {"kind": "synthetic"},
            "model": {"kind": "two_tower", "dim": 3, "hidden": [5]},
            "training": {"optimizer": "adam", "feature_rate": 0.2, "layer_rate": 0.1},
        }
    )
    step = prepare(FitSettings.of(recipe, corpus, 0), corpus, CPU)[0]
    assert all(isinstance(o, torch.optim.Adam) for o in step.optimizers)
    rates = {
        p: group["lr"] for o in step.optimizers for group in o.param_groups for p in group["params"]
    }
    for name, parameter in step.encoder.named_parameters():
        table = 0.2 if "feature" in name else 0.01  # "auto" of Adam
        assert rates.pop(parameter) == (table if name.startswith("tables") else 0.1), name
    assert not rates
