"""A version after another: the past stays as it was, and the chain leads back to it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from evergram.lineage.lineage import Lineage
from evergram.releasing.backward_transform import BackwardTransformFit
from evergram.releasing.upgrade import train, upgrade
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus
from evergram.training.recipe import Recipe


@pytest.fixture
def recipe(small: Recipe) -> Recipe:
    return Recipe.of(small.model_dump(), ["training.epochs=12"])


@pytest.fixture
def lineage(recipe: Recipe, tmp_path: Path) -> Lineage:
    new = Lineage.create(tmp_path / "lineage")
    corpus = load_corpus(recipe)
    new.publish(train(recipe, corpus))
    for _ in range(2):
        new.publish(upgrade(recipe, new, corpus))
    return new


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.long
def test_the_chain_leads_back_and_the_raw_reading_does_not(lineage: Lineage) -> None:
    for version in (1, 2):
        report = lineage.metrics(version)
        assert set(report["metrics"]) == {"model", "popularity", "alone"}
        assert set(report["compatibility"]) == {str(j) for j in range(version)}
        for reading in report["compatibility"].values():
            ranking = {k: v["recall@20"] for k, v in reading["ranking"].items()}
            assert ranking["chain"] > 0.75 * ranking["past"]
            assert ranking["chain_candidates"] > 0.75 * ranking["past"]
            assert ranking["raw_candidates"] < 0.6 * ranking["past"]
            assert 0 < reading["drift"]["held_out"]["relative"] < 1
            assert reading["overlap@10"] > 0.3


@pytest.mark.long
@pytest.mark.parametrize("steps", ["single", "multi"])
def test_an_upgrade_goes_over_a_gap(small: Recipe, tmp_path: Path, steps: str) -> None:
    """A withdrawn version is nothing to align to, nor to be read as; nor is a retired one read."""
    overrides = [f"upgrade.steps={steps}", "upgrade.alone=false", "model.dim=[8, 12, 12, 10]"]
    recipe = Recipe.of({**small.model_dump(), "split": {"kind": "random"}}, overrides)
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, corpus))
    lineage.publish(upgrade(recipe, lineage, corpus))
    lineage.publish(upgrade(recipe, lineage, corpus), promote=False)
    lineage.withdraw(2, "a fault")
    made = upgrade(recipe, lineage, corpus)
    assert made.metrics["version"] == 3
    assert set(made.metrics["compatibility"]) == set(made.metrics["certificate"]) == {"0", "1"}
    assert lineage.publish(made) == 3
    back = BackwardTransformFit(
        recipe.upgrade, recipe.seed + 4, lineage.active_chain, load_encoder(lineage, 3), corpus, 10
    )
    assert back.loss.versions == (3 if steps == "multi" else 1)
    for reading in made.metrics["compatibility"].values():
        assert 0 < reading["drift"]["held_out"]["relative"] < 0.7
    lineage.retire(0)
    again = upgrade(recipe, lineage, corpus)
    assert set(again.metrics["compatibility"]) == {"1", "3"}


@pytest.mark.long
def test_an_upgrade_changes_nothing_of_the_past(recipe: Recipe, tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    corpus = load_corpus(recipe)
    lineage.publish(train(recipe, corpus))
    folder = tmp_path / "lineage" / "versions" / "0"
    before, encoder = hashes(folder), load_encoder(lineage, 0)
    vectors = encoder.embed_all(corpus)["query"]
    lineage.publish(upgrade(recipe, lineage, corpus))
    assert hashes(folder) == before
    assert torch.equal(load_encoder(lineage, 0).embed_all(corpus)["query"], vectors)


@pytest.mark.long
def test_dims_may_grow_and_shrink(lineage: Lineage) -> None:
    assert [m.dim for m in lineage.versions] == [8, 12, 10]
    assert [lineage.view(j).embeddings("query")[1].shape[1] for j in range(3)] == [8, 12, 10]


@pytest.mark.long
def test_stored_vectors_are_what_the_encoder_gives(lineage: Lineage, recipe: Recipe) -> None:
    corpus = load_corpus(recipe)
    vectors = load_encoder(lineage, 2).embed_all(corpus)
    for side, entities in (("query", corpus.queries), ("candidate", corpus.candidates)):
        ids, stored = lineage.embeddings(side)
        rows = entities.vocabulary.rows(ids)
        torch.testing.assert_close(stored, vectors[side][rows])


@pytest.mark.long
def test_a_version_of_the_same_dim_and_seed_keeps_nothing_by_accident(
    recipe: Recipe, tmp_path: Path
) -> None:
    same = Recipe.of(
        recipe.model_dump(), ["model.dim=8", "upgrade.weight=0.0", "split.kind=random"]
    )
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(same))
    lineage.publish(upgrade(same, lineage))
    ranking = lineage.metrics(1)["compatibility"]["0"]["ranking"]
    assert ranking["raw_candidates"]["recall@20"] < 0.6 * ranking["past"]["recall@20"]


@pytest.mark.parametrize("options", [["upgrade.steps=single"], ["model.kind=two_tower"]])
def test_other_settings_of_the_same_trainer(
    small: Recipe, tmp_path: Path, options: list[str]
) -> None:
    recipe = Recipe.of(small.model_dump(), [*options, "upgrade.alone=false"])
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe))
    lineage.publish(upgrade(recipe, lineage))
    assert "alone" not in lineage.metrics(1)["metrics"]
    assert lineage.view(0).embeddings("candidate")[1].shape[1] == 8


def test_a_joint_run_is_selected_after_some_epochs_only(small: Recipe, tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    corpus = load_corpus(small)
    lineage.publish(train(small, corpus))

    # Steps that move nothing: every epoch is as good as the first.
    def best(*overrides: str, select_after: int = 0) -> int:
        # As `compare` has it for all methods, and a lineage stores it.
        values = small.model_dump(exclude_unset=True)
        values["upgrade"] = {"alone": False, "select_after": select_after}
        settings = ["training.epochs=6", "training.table_rate=1e-30", *overrides]
        recipe = Recipe.stored(values, settings)
        epoch: int = upgrade(recipe, lineage, corpus).metrics["training"]["best_epoch"]
        return epoch

    assert best() == 1
    assert best(select_after=4) == 5
    # A model trained without alignment may be selected at once.
    assert best("upgrade.method=non-bc", select_after=4) == 1
    # A run that ends before then has its last epoch.
    assert best("training.budget=0.000001", select_after=4) == 1


def test_the_folder_of_checkpoints_may_be_a_text(small: Recipe, tmp_path: Path) -> None:
    train(small, folder=f"{tmp_path}/checkpoints", progress=False)
    assert list((tmp_path / "checkpoints").glob("version-0*.safetensors"))
