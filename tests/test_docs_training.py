"""The setting of [G2] on the page on training is one that trains as the page says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import torch

from evergram.encoders.two_tower import TwoTower
from evergram.gramian.sogram import SOGram
from evergram.training.build import prepare
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.step import Step

PAGE = (Path(__file__).parents[1] / "docs" / "training.md").read_text()
DATA = {"kind": "synthetic", "queries": 120, "candidates": 80, "interactions": 3000}
SECTION = PAGE.split("## The setting of [G2]")[1].split("\n## ")[0]


def setting(gramian: dict[str, Any] | None = None) -> Step:
    block = re.search(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    assert block is not None
    tables = tomllib.loads(block[1]) | {"data": DATA, "name": "g2"}
    if gramian is not None:
        tables["gramian"] = gramian
    recipe = Recipe.of(tables)
    corpus = load_corpus(recipe)
    step, sampler, draws = prepare(FitSettings.of(recipe, corpus, 0), corpus, torch.device("cpu"))
    assert draws is not None
    assert sampler.batch_size == 1024
    return step


def test_the_recipe_of_the_page_is_sogram_as_printed() -> None:
    step = setting()
    tower, estimator = step.encoder, step.estimators["query"][0]
    assert isinstance(tower, TwoTower)
    assert not tower.residual
    assert tower.concatenate
    widths = [
        m.out_features for m in tower.hidden["query"].children() if isinstance(m, torch.nn.Linear)
    ]
    assert widths == [256, 64, 64]
    assert isinstance(estimator, SOGram)
    assert not estimator.correct_start
    assert float(estimator.rate()) == 0.001
    assert step.independent
    assert not step.samples_gradient
    assert not step.precondition
    groups = [(type(o), g["lr"]) for o in step.optimizers for g in o.param_groups]
    assert set(groups) == {(torch.optim.SGD, 0.01)}
    assert step.objective.penalty == (10.0,)
