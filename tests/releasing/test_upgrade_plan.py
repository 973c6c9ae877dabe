"""An upgrade's plan: its refusals before training, and the parts that it starts from."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import torch
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.data.corpus import Corpus
from evergram.encoders.encoder_modules import EncoderModules
from evergram.errors import DataError, RecipeError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade_plan import UpgradeOptions, plan_upgrade, with_modules
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return tiny_lineage(tmp_path_factory.mktemp("plan") / "lineage")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(tiny_recipe())


def test_a_plan_aligns_the_next_version_to_the_newest(lineage: Lineage, corpus: Corpus) -> None:
    plan = plan_upgrade(tiny_recipe(), lineage, corpus, UpgradeOptions())
    assert (plan.number, plan.version, plan.past_version) == (1, 1, 0)
    assert (plan.backward.transform.new_dim, plan.backward.transform.old_dim) == (5, 4)
    assert plan.final is plan.split
    assert plan.salt == "tiny"
    again = plan.backward_for(plan.split.training)
    for name, value in plan.backward.transform.state_dict().items():
        assert torch.equal(value, again.transform.state_dict()[name])


@pytest.mark.parametrize(("start", "dim"), [("fresh", 5), ("previous", 4), ("frozen", 4)])
def test_a_model_that_starts_from_the_past_one_has_its_dim(
    lineage: Lineage, corpus: Corpus, start: str, dim: int
) -> None:
    recipe = tiny_recipe(f"upgrade.start={start}", "upgrade.fit=none", "upgrade.transform=truncate")
    plan = plan_upgrade(recipe, lineage, corpus, UpgradeOptions())
    assert plan.backward.transform.new_dim == dim


@pytest.mark.parametrize("override", ["upgrade.fit=joint", "upgrade.start=previous"])
def test_a_trained_model_serves_only_a_transform_that_is_fitted_after_it(
    lineage: Lineage, corpus: Corpus, override: str
) -> None:
    options = UpgradeOptions(trained=load_encoder(lineage, 0))
    with pytest.raises(RecipeError, match=r"needs upgrade\.fit = 'posthoc' or 'none'"):
        plan_upgrade(tiny_recipe(override), lineage, corpus, options)
    plan = plan_upgrade(tiny_recipe("upgrade.fit=posthoc"), lineage, corpus, options)
    assert plan.trained is options.trained


def strangers(first: int | str) -> Corpus:
    """Objects that no version has met: 30 queries and 29 candidates, from `first` on."""
    ids = [first + i if isinstance(first, int) else f"{first}{i}" for i in range(30)]
    rows = range(600)
    pairs = {"query": [ids[i % 30] for i in rows], "candidate": [ids[i % 29] for i in rows]}
    return Corpus.from_tables(pa.table(pairs))


@pytest.mark.parametrize(
    ("first", "message"),
    [(10_000, "Version 1 would have no objects in common with version 0"), ("a", "are integers")],
)
def test_objects_that_the_past_version_cannot_know_are_refused(
    lineage: Lineage, first: int | str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        plan_upgrade(tiny_recipe(), lineage, strangers(first), UpgradeOptions())


def test_without_a_version_there_is_nothing_to_upgrade(tmp_path: Path) -> None:
    with pytest.raises(UnknownVersionError, match="no version yet"):
        plan_upgrade(tiny_recipe(), Lineage.create(tmp_path / "l"), strangers(0), UpgradeOptions())


def test_modules_take_the_place_of_the_recipes_model() -> None:
    table = torch.nn.Embedding(3, 2)
    modules = EncoderModules(table, table, torch.tensor, torch.tensor)
    recipe = with_modules(tiny_recipe(), modules)
    assert recipe.model.kind == "module"
    assert with_modules(tiny_recipe(), None) == tiny_recipe()
    with pytest.raises(RecipeError, match="train from Python and give them as encoder="):
        with_modules(recipe, None)


def test_modules_of_no_version_and_a_model_both_trained_and_to_train_are_refused(
    lineage: Lineage, corpus: Corpus
) -> None:
    table = torch.nn.Embedding(3, 2)
    modules = EncoderModules(table, table, torch.tensor, torch.tensor)
    with pytest.raises(UnknownVersionError, match="version 7"):
        plan_upgrade(tiny_recipe(), lineage, corpus, UpgradeOptions(past_encoders={7: modules}))
    both = UpgradeOptions(encoder=modules, trained=modules)
    with pytest.raises(RecipeError, match="encoder= is trained, and trained= has been trained"):
        plan_upgrade(tiny_recipe(), lineage, corpus, both)
