"""Upgrades of models that publish candidates times a power of their counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.small_recipe import small_recipe
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.encoders.encoder_modules import EncoderModules
from evergram.errors import RecipeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.evaluate import evaluate
from evergram.releasing.past_models import known_vectors
from evergram.releasing.upgrade import train, upgrade
from evergram.releasing.upgrade_plan import UpgradeOptions, plan_upgrade, trained_encoder
from evergram.releasing.upgrade_steps import _companions
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus, split_for
from evergram.training.monitors import popularity_choice
from evergram.training.recipe import Recipe


def recipe_of(small: Recipe, popularity: float | str, *overrides: str, **upgrading: Any) -> Recipe:
    return Recipe.of(
        {
            **small.model_dump(include={"name", "data", "split"}),
            "model": {"dim": [8, 10], "normalize": True, "popularity": popularity},
            "task": {"kind": "softmax_all", "temperature": 0.2},
            "training": {
                **{"optimizer": "adam", "table_rate": 0.03, "decay": 0.95},
                **{"epochs": 8, "patience": 0},
            },
            "upgrade": {"alone": False, **upgrading},
        },
        overrides,
    )


def published(artefact: Artefact) -> Tensor:
    return torch.as_tensor(artefact.block("candidate")[1])


@pytest.mark.long
@pytest.mark.parametrize("popularity", [0.3, "auto"])
@pytest.mark.parametrize("method", ["bc-aligner", "evergram"])
def test_the_version_before_is_read_within_its_certificate(
    small: Recipe, tmp_path: Path, method: str, popularity: float | str
) -> None:
    recipe = recipe_of(small, popularity, method=method)
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    first = train(recipe, corpus, progress=False)
    lineage.publish(first)
    for version in (1, 2):
        artefact = upgrade(recipe, lineage, corpus, progress=False)
        lineage.publish(artefact)
        chosen = artefact.metrics["training"]["popularity"]
        before = lineage.metrics(version - 1)["training"]["popularity"]["exponent"]
        assert chosen["exponent"] == before
        if popularity == "auto":
            assert chosen["reason"].startswith(f"that of version {version - 1}")
        assert artefact.recipe["model"]["popularity"] == popularity
        # Published candidates are unit rows times the power of this version's own counts.
        counts = split_for(recipe, corpus, version, lineage.pair_history).training.counts(
            "candidate"
        )
        norms = published(artefact).double().norm(dim=1)
        powers = counts.double().clamp(min=1) ** before
        torch.testing.assert_close(norms, powers, rtol=1e-5, atol=0)
        report = lineage.metrics(version)
        for past, reading in report["compatibility"].items():
            ranking = {k: v["recall@20"] for k, v in reading["ranking"].items()}
            assert ranking["chain"] > 0.75 * ranking["past"]
            assert ranking["raw_candidates"] < ranking["chain_candidates"]
            bound = report["certificate"][past]["bound"]
            assert 0 < reading["drift"]["held_out"]["l2"] < bound
            assert report["certificate"][past]["relative"] < 1
    # What is read of the newest version is what was published, by an encoder without its data too.
    encoder = load_encoder(lineage, 2)
    training = split_for(recipe, corpus, 2).training
    torch.testing.assert_close(encoder.embed_all(training)["candidate"], published(artefact))
    ids = training.candidates.vocabulary.keys.slice(0, 30)
    vectors = lineage.encoder(2).encode(ids.to_pylist(), side="candidate")
    torch.testing.assert_close(torch.from_numpy(vectors), published(artefact)[:30])
    model = evaluate(recipe, lineage, corpus=corpus)["model"]
    assert model == pytest.approx(artefact.metrics["metrics"]["model"])


@pytest.mark.long
def test_a_transform_that_is_fitted_afterwards_lets_each_version_choose(
    small: Recipe, tmp_path: Path
) -> None:
    recipe = recipe_of(small, "auto", "training.epochs=2", method="post-closed")
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, corpus, progress=False))
    artefact = upgrade(recipe, lineage, corpus, progress=False)
    chosen = artefact.metrics["training"]["popularity"]
    assert len(chosen["tried"]) == 9
    assert chosen["reason"].startswith("best recall@20 of")
    lineage.publish(artefact)
    assert lineage.metrics(1)["certificate"]["0"]
    record = lineage.manifest(1).encoder
    assert record is not None
    assert record.options["popularity"] == chosen["exponent"]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lineage, Corpus]:
    """Version 0 with γ = 0.5, after a moment of training; only read."""
    recipe = recipe_of(small_recipe(), 0.5, "training.epochs=1")
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path_factory.mktemp("grown") / "lineage")
    lineage.publish(train(recipe, corpus, progress=False))
    return lineage, corpus


def test_alignment_is_between_published_vectors_of_both_versions(
    small: Recipe, grown: tuple[Lineage, Corpus]
) -> None:
    lineage, corpus = grown
    plan = plan_upgrade(recipe_of(small, 0.25), lineage, corpus, UpgradeOptions())
    joint = _companions(plan)[0].joint
    assert joint is not None
    training = plan.final.training
    counts = training.counts("candidate").double().clamp(min=1)
    torch.testing.assert_close(joint.get_buffer("factors"), counts.pow(0.25).float())
    # The past has the power and the counts of its own version, and new candidates have no vector.
    before = split_for(recipe_of(small, 0.5), corpus, 0).training
    rows = before.candidates.vocabulary.rows(training.candidates.vocabulary.keys)
    assert bool((rows < 0).any())
    old = before.counts("candidate").double().sqrt()
    norms = plan.backward.past["candidate"].double().norm(dim=1)
    torch.testing.assert_close(norms[rows >= 0], old[rows[rows >= 0]], rtol=1e-5, atol=0)
    assert float(norms[rows < 0].max()) == 0
    plain = plan_upgrade(recipe_of(small, 0.0), lineage, corpus, UpgradeOptions())
    joint = _companions(plain)[0].joint
    assert joint is not None
    assert dict(joint.named_buffers()).get("factors") is None


def test_an_automatic_power_of_a_joint_upgrade_is_that_of_the_version_before(
    small: Recipe, grown: tuple[Lineage, Corpus], tmp_path: Path
) -> None:
    lineage, corpus = grown
    plan = plan_upgrade(recipe_of(small, "auto"), lineage, corpus, UpgradeOptions())
    assert (plan.recipe.model.popularity, plan.keeps_popularity) == (0.5, True)
    assert plan.recorded.model.popularity == "auto"
    posthoc = plan_upgrade(
        recipe_of(small, "auto", fit="posthoc"), lineage, corpus, UpgradeOptions()
    )
    assert (posthoc.recipe.model.popularity, posthoc.keeps_popularity) == ("auto", False)
    bare = Lineage.create(tmp_path / "bare")
    bare.publish(train(recipe_of(small, 0.0, "training.epochs=1"), corpus, progress=False))
    with pytest.raises(
        RecipeError, match=r"version 0 has none; give a number, or set upgrade\.fit"
    ):
        plan_upgrade(recipe_of(small, "auto"), bare, corpus, UpgradeOptions())


@pytest.mark.long
def test_a_frozen_model_keeps_its_factors(small: Recipe, grown: tuple[Lineage, Corpus]) -> None:
    lineage, corpus = grown
    recipe = recipe_of(small, 0.5, method="fix-m0")
    artefact = upgrade(recipe, lineage, corpus, progress=False)
    assert artefact.encoder is not None
    assert artefact.encoder.options["popularity"] == 0.5
    own = artefact.metrics["training"]["popularity"]
    assert own == {"exponent": 0.5, "reason": "as the model has it"}
    training = split_for(recipe, corpus, 1, lineage.pair_history).training
    vectors, known = known_vectors(load_encoder(lineage, 0), training)
    ids = training.candidates.vocabulary.rows(artefact.block("candidate")[0])
    assert torch.equal(ids.sort().values, torch.nonzero(known["candidate"]).flatten())
    assert torch.equal(published(artefact), vectors["candidate"][ids])


def test_a_power_that_was_chosen_as_zero_goes_on(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popularity_choice, "EXPONENTS", (0.0,))
    recipe = recipe_of(small, "auto", "training.epochs=1")
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, corpus, progress=False))
    for version in (1, 2):
        artefact = upgrade(recipe, lineage, corpus, progress=False)
        lineage.publish(artefact)
        reason = f"that of version {version - 1}, which this one is aligned to"
        recorded = artefact.metrics["training"]["popularity"]
        assert recorded == {"exponent": 0.0, "reason": reason}
        ones = torch.ones(len(published(artefact)))
        torch.testing.assert_close(published(artefact).norm(dim=1), ones)


@pytest.mark.long
@pytest.mark.parametrize("method", ["bc-aligner", "evergram"])
def test_a_joint_upgrade_on_unit_rows_reads_the_version_before(
    small: Recipe, tmp_path: Path, method: str
) -> None:
    recipe = Recipe.of(
        {
            **small.model_dump(include={"name", "data", "split"}),
            "model": {"dim": [8, 10], "normalize": True},
            "task": {"kind": "softmax_all", "temperature": 0.2},
            "training": {
                **{"optimizer": "adam", "table_rate": 0.03, "decay": 0.95},
                **{"epochs": 12, "patience": 0},
            },
            "upgrade": {"method": method, "alone": False},
        }
    )
    corpus = load_corpus(recipe)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, corpus))
    artefact = upgrade(recipe, lineage, corpus)
    lineage.publish(artefact)
    report = lineage.metrics(1)
    reading = report["compatibility"]["0"]
    ranking = {k: v["recall@20"] for k, v in reading["ranking"].items()}
    assert ranking["chain"] > 0.75 * ranking["past"]
    assert ranking["raw_candidates"] < ranking["chain_candidates"]
    assert 0 < reading["drift"]["held_out"]["relative"] < 1
    assert report["certificate"]["0"]
    for side in ("query", "candidate"):
        rows = torch.as_tensor(artefact.block(side)[1])
        norms = rows.norm(dim=1)
        torch.testing.assert_close(norms[norms > 0], torch.ones_like(norms[norms > 0]))


def test_models_that_are_trained_already_have_the_power_of_the_recipe(
    small: Recipe, grown: tuple[Lineage, Corpus]
) -> None:
    lineage, corpus = grown
    model = load_encoder(lineage, 0)
    for popularity in (0.5, "auto"):
        chosen = recipe_of(small, popularity).model
        assert trained_encoder(model, corpus, chosen) is model
    for popularity in (0.0, 0.25):
        with pytest.raises(RecipeError, match=rf"{popularity}, .* 0\.5"):
            trained_encoder(model, corpus, recipe_of(small, popularity).model)
    model.popularity = None
    with pytest.raises(RecipeError, match=r"0\.0; set model\.popularity"):
        trained_encoder(model, corpus, recipe_of(small, 0.5).model)
    tables = nn.Embedding(300, 4), nn.Embedding(200, 4)
    modules = EncoderModules(*tables, torch.tensor, torch.tensor)
    recipe = recipe_of(small, 0.5)
    artefact = train(recipe, corpus, trained=modules, progress=False)
    counts = split_for(recipe, corpus, 0).training.counts("candidate")
    norms = published(artefact).double().norm(dim=1)
    torch.testing.assert_close(norms, counts.double().sqrt(), rtol=1e-5, atol=0)
    with pytest.raises(RecipeError, match="give a number"):
        train(recipe_of(small, "auto"), corpus, trained=modules, progress=False)
