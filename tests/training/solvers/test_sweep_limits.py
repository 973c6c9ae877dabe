"""What has no least-squares solution is refused in a sentence, before its training starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.tiny_training import tiny_recipe

from evergram.collectives import Collectives
from evergram.errors import RecipeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import Companions, prepare
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings


def recipe_of(*overrides: str) -> Recipe:
    return tiny_recipe("training.optimizer=als", "training.epochs=2", *overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.normalize=true"], "unit norm; set model.normalize = false"),
        (["model.kind=two_tower"], "it is 'two_tower'; change it"),
        (["model.hash_rows=4"], "leave model.hash_rows out"),
        (["task.loss=logistic"], "'pointwise' with loss 'logistic'; set task.kind"),
        (["task.kind=bpr"], "the objective is task.kind = 'bpr'; set"),
        (["task.positives=queries"], "task.positives is 'queries'; leave it out"),
        (["training.tables=mapped"], "training.tables is 'mapped'; set training.tables"),
        (["training.tables=sharded"], "training.tables is 'sharded'; set training.tables"),
    ],
)
def test_refuses_in_one_sentence_with_the_remedy(overrides: list[str], words: str) -> None:
    with pytest.raises(RecipeError, match=words) as refused:
        train(recipe_of(*overrides), progress=False)
    sentence = str(refused.value)
    assert sentence.startswith("training.optimizer = 'als' ")
    assert sentence.endswith(", or set training.optimizer = 'adaptive'.")


def test_refuses_several_processes() -> None:
    class Two(Collectives):
        size = 2

    recipe = recipe_of()
    corpus = load_corpus(recipe)
    settings = FitSettings.of(recipe, corpus, 0)
    with pytest.raises(RecipeError, match="one process, and there are 2; start one, or"):
        prepare(settings, corpus, torch.device("cpu"), Companions(), None, Two())


def test_an_upgrade_fits_its_transform_afterwards(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path, "tiny")
    lineage.publish(train(recipe_of(), progress=False))
    with pytest.raises(
        RecipeError, match=r"set upgrade\.fit = 'posthoc', which fits it afterwards"
    ):
        upgrade(recipe_of(), lineage, progress=False)
    after = recipe_of("upgrade.fit=posthoc", "upgrade.solver=closed")
    version = lineage.publish(upgrade(after, lineage, progress=False))
    assert lineage.manifest(version).dim == 5
