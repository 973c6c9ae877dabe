"""The settings of one training have numbers where the recipe has "auto"."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from evergram.data.corpus import Corpus
from evergram.training.recipe import Recipe
from evergram.training.recipe.automatic import TABLE_RATE, batch_size_of, strengths_of
from evergram.training.recipe.fit_settings import FitSettings

CORPUS = Corpus.from_tables(pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}))
VALUES: dict[str, Any] = {"data": {"kind": "synthetic"}, "seed": 7}


def test_auto_becomes_the_numbers_of_the_corpus() -> None:
    recipe = Recipe.of(VALUES)
    settings = FitSettings.of(recipe, CORPUS, 0)
    assert settings.strengths == strengths_of(recipe, CORPUS)
    assert settings.batch_size == batch_size_of(recipe, CORPUS)
    assert settings.table_rate == TABLE_RATE


def test_numbers_stay_what_they_are() -> None:
    overrides = ["task.penalty=3", "training.batch_size=7", "training.table_rate=0.3"]
    settings = FitSettings.of(Recipe.of(VALUES, overrides), CORPUS, 0)
    assert settings.strengths.penalty == [3.0]
    assert (settings.batch_size, settings.table_rate) == (7, 0.3)


def test_each_version_has_a_seed_of_its_own_and_the_first_has_the_recipes() -> None:
    seeds = [FitSettings.of(Recipe.of(VALUES), CORPUS, v).version_seed for v in range(50)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 50


def test_an_encoder_has_the_rates_of_its_parameters_and_no_others() -> None:
    def rates(kind: str) -> dict[str, float]:
        overrides = [f"model.kind={kind}"]
        return FitSettings.of(Recipe.of(VALUES, overrides), CORPUS, 0).rates

    assert rates("factorization") == {"table_rate": TABLE_RATE}
    assert rates("lightgcn") == {"layer_rate": 2e-4}
    assert rates("module") == {"table_rate": TABLE_RATE, "layer_rate": 2e-4}
