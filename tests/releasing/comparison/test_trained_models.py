"""Which models a run of a comparison has trained itself, and how long."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.tiny_training import tiny_recipe

from evergram.lineage.lineage import Lineage
from evergram.releasing.comparison.runs import Run
from evergram.releasing.comparison.trained_models import REFERENCE, trained_models
from evergram.releasing.upgrade import train, upgrade
from evergram.training.recipe import Recipe

ROOT = Path(__file__).resolve().parents[3]

RECIPE = tiny_recipe("training.epochs=6", "training.patience=0", "upgrade.alone=false")


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """Versions 0 and 1 of `RECIPE`."""
    made = Lineage.create(tmp_path_factory.mktemp("trained") / "lineage", RECIPE.name)
    made.publish(train(RECIPE, progress=False))
    made.publish(upgrade(RECIPE, made, progress=False))
    return made


def test_the_reference_is_the_budget_of_the_paper() -> None:
    assert (REFERENCE.epochs, REFERENCE.batch_size, REFERENCE.short_batch) == (500, 2048, True)


@pytest.mark.parametrize("name", ["table3-movielens"])
def test_the_documented_share_of_the_paper_is_that_of_the_recipe(name: str) -> None:
    epochs = Recipe.load(ROOT / "recipes" / f"{name}.toml").training.epochs
    assert (
        f"A model of `recipes/{name}.toml` has at most {epochs} passes over its interactions, "
        f"{100 * epochs / REFERENCE.epochs:g} % of [BC]'s {REFERENCE.epochs}."
    ) in (ROOT / "docs" / "compare.md").read_text()


@pytest.mark.parametrize(
    ("method", "versions"),
    [
        ("keep-all", {0, 1}),
        ("bc-aligner", {1}),
        ("finetune-m0", {1}),
        ("non-bc", set()),
        ("post-lin-sloss", set()),
        ("fix-m0", set()),
    ],
)
def test_a_model_counts_once(lineage: Lineage, method: str, versions: set[int]) -> None:
    assert set(trained_models(Run(method), lineage, RECIPE)) == versions


def test_lengths_come_from_the_metrics_of_the_version(lineage: Lineage) -> None:
    length = trained_models(Run("keep-all"), lineage, RECIPE)[0]
    report = lineage.metrics(0)
    epochs, size = (report["training"][key] for key in ("epochs", "batch_size"))
    pairs = report["data"]["interactions"]
    assert length["passes"] == epochs == 6
    assert length["share_of_passes"] == epochs / 500
    assert length["share_of_steps"] == epochs * (pairs // size) / (500 * -(-pairs // 2048))
    values = [h[RECIPE.training.metric] for h in report["training"]["history"]]
    gain = max(0.0, max(values[4:]) / max(values[:4]) - 1)
    assert length["last_gain"] == pytest.approx(gain)
    assert length["on_plateau"] is (gain < 0.01)


def test_epochs_that_a_joint_run_may_not_select_do_not_count(lineage: Lineage) -> None:
    update = {"upgrade": RECIPE.upgrade.model_copy(update={"select_after": 5})}
    late = RECIPE.model_copy(update=update)
    joint = trained_models(Run("bc-aligner"), lineage, late)[1]
    assert joint["last_gain"] is None
    assert joint["on_plateau"] is None
    assert trained_models(Run("bc-aligner"), lineage, RECIPE)[1]["last_gain"] is not None
    alone = trained_models(Run("keep-all"), lineage, late)[1]
    assert alone == trained_models(Run("keep-all"), lineage, RECIPE)[1]
