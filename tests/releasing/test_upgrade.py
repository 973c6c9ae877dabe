"""An upgrade: its plan and refusals, what is trained and packaged, and the way back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.encoders import CANDIDATES, QUERIES, SEEN, lineage_with_encoder
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.data.corpus import Corpus
from evergram.encoders.encoder import Encoder
from evergram.encoders.encoder_modules import EncoderModules
from evergram.errors import DataError, RecipeError, UnknownVersionError
from evergram.lineage.lineage import Lineage
from evergram.releasing import upgrade_steps
from evergram.releasing.backward_transform import BackwardTransformFit
from evergram.releasing.frozen.kept_model import refuse_other_model
from evergram.releasing.past_models import StoredModel, known_vectors, past_model
from evergram.releasing.publish import degradation, publish, worst_degradation
from evergram.releasing.upgrade import train, upgrade
from evergram.releasing.upgrade_plan import UpgradeOptions, UpgradePlan, plan_upgrade, with_modules
from evergram.releasing.upgrade_steps import (
    FittedUpgrade,
    fit_upgrade,
    measure_upgrade,
    package_upgrade,
)
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus
from evergram.training.fit import RunContext
from evergram.training.recipe import Recipe


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
def test_a_version_of_the_same_dim_and_seed_keeps_nothing_by_accident(
    small: Recipe, tmp_path: Path
) -> None:
    same = Recipe.of(
        small.model_dump(),
        ["training.epochs=12", "model.dim=8", "upgrade.weight=0.0", "split.kind=random"],
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


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    return tiny_lineage(tmp_path_factory.mktemp("upgrade") / "lineage")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus(tiny_recipe())


@pytest.mark.long
def test_the_chain_leads_back_the_raw_reading_does_not_and_the_past_stays(
    small: Recipe, tmp_path: Path
) -> None:
    recipe = Recipe.of(small.model_dump(), ["training.epochs=12"])
    corpus, lineage = load_corpus(recipe), Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, corpus))
    past = {p: p.read_bytes() for p in (tmp_path / "lineage" / "versions" / "0").iterdir()}
    for version in (1, 2):
        lineage.publish(upgrade(recipe, lineage, corpus))
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
    assert {path: path.read_bytes() for path in past} == past
    assert [lineage.view(j).embeddings("query")[1].shape[1] for j in range(3)] == [8, 12, 10]
    vectors = load_encoder(lineage, 2).embed_all(corpus)
    for side, entities in (("query", corpus.queries), ("candidate", corpus.candidates)):
        ids, stored = lineage.embeddings(side)
        torch.testing.assert_close(stored, vectors[side][entities.vocabulary.rows(ids)])


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


def test_modules_take_the_place_of_the_recipes_model(
    lineage: Lineage, corpus: Corpus, tmp_path: Path
) -> None:
    table = torch.nn.Embedding(3, 2)
    modules = EncoderModules(table, table, torch.tensor, torch.tensor)
    recipe = with_modules(tiny_recipe(), modules)
    assert recipe.model.kind == "module"
    assert with_modules(tiny_recipe(), None) == tiny_recipe()
    with pytest.raises(RecipeError, match="encoder="):
        with_modules(recipe, None)
    with pytest.raises(UnknownVersionError, match="version 7"):
        plan_upgrade(tiny_recipe(), lineage, corpus, UpgradeOptions(past_encoders={7: modules}))
    both = UpgradeOptions(encoder=modules, trained=modules)
    with pytest.raises(RecipeError, match=r"encoder= .*trained="):
        plan_upgrade(tiny_recipe(), lineage, corpus, both)
    none = Lineage.create(tmp_path / "l")
    with pytest.raises(UnknownVersionError, match="no version yet"):
        plan_upgrade(tiny_recipe(), none, corpus, UpgradeOptions())


CONTEXT = RunContext(torch.device("cpu"), title="version 1", warns=False)


def carried_out(
    lineage: Lineage, corpus: Corpus, *overrides: str, **options: Any
) -> tuple[UpgradePlan, FittedUpgrade]:
    plan = plan_upgrade(tiny_recipe(*overrides), lineage, corpus, UpgradeOptions(**options))
    return plan, fit_upgrade(plan, CONTEXT)


def test_a_joint_upgrade_is_compared_with_a_model_of_its_own(
    lineage: Lineage, corpus: Corpus
) -> None:
    _, fitted = carried_out(lineage, corpus)
    assert fitted.unaligned is not None
    assert fitted.unaligned is not fitted.trained
    assert not torch.equal(fitted.unaligned.query, fitted.trained.query)


def test_a_model_without_alignment_is_not_trained_twice(lineage: Lineage, corpus: Corpus) -> None:
    _, fitted = carried_out(lineage, corpus, "upgrade.method=post-closed")
    assert fitted.unaligned is fitted.trained
    _, fitted = carried_out(lineage, corpus, "upgrade.alone=false")
    assert fitted.unaligned is None


def test_a_frozen_model_is_packaged_as_it_is_and_was_trained_on_nothing_new(
    lineage: Lineage, corpus: Corpus
) -> None:
    plan, fitted = carried_out(lineage, corpus, "upgrade.method=fix-m0", "upgrade.alone=false")
    artefact = package_upgrade(plan, fitted, measure_upgrade(plan, fitted))
    assert artefact.encoder is not None
    _, state, _ = lineage.encoder_parts(0)
    for name, value in state.items():
        assert torch.equal(artefact.encoder.state[name], value)
    assert artefact.trained is not None
    assert len(artefact.trained[1]) == 0
    assert fitted.error.rms == 0


def test_past_canaries_stay_in_the_package(lineage: Lineage, corpus: Corpus) -> None:
    plan, fitted = carried_out(lineage, corpus, "upgrade.alone=false", readings=False)
    report = measure_upgrade(plan, fitted)
    assert report["compatibility"] == {}
    assert set(report["certificate"]) == {"0"}
    artefact = package_upgrade(plan, fitted, report)
    for side, (ids, _) in lineage.canaries(0).items():
        kept = artefact.canaries[side][0].cast("string").to_pylist()
        assert kept[: len(ids)] == ids.to_pylist()


def test_a_past_version_that_cannot_be_read_is_a_warning(
    lineage: Lineage,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan, fitted = carried_out(lineage, corpus, "upgrade.alone=false")
    monkeypatch.setattr(upgrade_steps, "past_model", lambda *_: None)
    with caplog.at_level(logging.WARNING):
        report = measure_upgrade(plan, fitted)
    assert report["compatibility"] == {}
    assert caplog.records[0].message.startswith("Reading the new version as version 0 is not")
    assert "past_encoders={0: EncoderModules(" in caplog.text


def test_a_sampled_upgrade_is_measured_on_the_same_queries_and_held_to_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models, and all readings as a version, are of one sample each; the gate reads it."""
    for module in (
        "evergram.training.monitors.evaluation_work",
        "evergram.releasing.upgrade_steps",
    ):
        monkeypatch.setattr(f"{module}.LEAST", 12)
    size = "data.queries=150", "data.interactions=3000", 'metrics=["recall@3"]'
    lineage, corpus = Lineage.create(tmp_path / "lineage"), load_corpus(tiny_recipe(*size))
    publish(lineage, train(tiny_recipe(*size), corpus, progress=False))
    plan, fitted = carried_out(lineage, corpus, *size, "training.evaluate_share=1e-9")
    report = measure_upgrade(plan, fitted)
    sampled = report["sampled"]
    assert sampled["queries"] == 12 < sampled["of"] == report["data"]["test_queries"]
    assert set(sampled["errors"]) == {"model", "popularity", "alone"}
    assert 0 < sampled["loss"]["alone"]["recall@3"] < 1000
    (reading,) = report["compatibility"].values()
    assert reading["queries"] == reading["sampled"]["queries"] == 12 < reading["sampled"]["of"]
    assert set(reading["sampled"]["errors"]) == set(reading["ranking"])
    means, worst = degradation(report, "recall@3"), worst_degradation(report, "recall@3")
    assert set(worst) == {"alone", "0"}
    assert all(means[name] < worst[name] < 1000 for name in worst)
    whole = measure_upgrade(*carried_out(lineage, corpus, *size))
    assert "sampled" not in whole
    assert "sampled" not in whole["compatibility"]["0"]


FROZEN = ("upgrade.start=frozen", "upgrade.alone=false")


def test_data_metrics_and_how_the_transform_is_made_may_differ(lineage: Lineage) -> None:
    recipe = tiny_recipe(*FROZEN, "data.interactions=1000", 'metrics=["recall@5"]')
    artefact = upgrade(recipe, lineage, progress=False)
    assert artefact.metrics["metrics"]["model"].keys() == {"recall@5"}


def test_an_automatic_power_of_counts_is_not_looked_for_in_a_frozen_upgrade(
    small: Recipe, tmp_path: Path
) -> None:
    """The joint alignment that needs a number is not trained either."""
    values: dict[str, Any] = {
        **small.model_dump(include={"name", "data", "split"}),
        "model": {"dim": 4, "normalize": True, "popularity": "auto"},
        "task": {"kind": "softmax_all"},
        "training": {"epochs": 1},
    }
    kept = Recipe.of(values)
    refuse_other_model(Recipe.of(values, FROZEN), kept.model_dump(mode="json"), 3)
    other = Recipe.of(values, [*FROZEN, "model.popularity=0.1"])
    with pytest.raises(RecipeError, match=r"version 3 .*model\.popularity is 0\.1 here and 'auto'"):
        refuse_other_model(other, kept.model_dump(mode="json"), 3)


def test_a_past_version_is_known_by_its_encoder_or_by_its_stored_vectors(tmp_path: Path) -> None:
    pairs = [*SEEN, ("zoe", 100), ("ann", 999)]
    queries, candidates = zip(*pairs, strict=True)
    genres = pa.table({"id": [100, 101, 139, 999], "genre": ["drama", "noir", "war", "drama"]})
    table = pa.table({"query": queries, "candidate": candidates})
    corpus = Corpus.from_tables(table, candidate_features=genres)
    names = corpus.queries.vocabulary.keys.to_pylist()
    own = torch.randn(len(QUERIES), 4, generator=torch.Generator().manual_seed(0))
    ones = torch.ones(len(CANDIDATES), 4)
    stored = StoredModel(
        4, {"query": (pa.array(QUERIES), own), "candidate": (pa.array(CANDIDATES), ones)}
    )
    model = past_model(lineage_with_encoder(tmp_path / "l"), 0)
    assert isinstance(model, Encoder)
    for past in (stored, model):
        vectors, known = known_vectors(past, corpus)
        assert known["query"].tolist() == [name in QUERIES for name in names]
        assert vectors["query"].shape == (len(names), 4)
        if past is stored:
            for row, name in enumerate(names):
                expected = own[QUERIES.index(name)] if name != "zoe" else torch.zeros(4)
                assert torch.equal(vectors["query"][row], expected)


def test_other_values_of_a_frozen_model_or_task_are_named(lineage: Lineage) -> None:
    for overrides, names in (
        (["model.dim=20"], r"model\.dim is \[20\] here and \[4, 5, 3\] there"),
        (["model.kind=two_tower"], r"model\.kind is 'two_tower' here and 'factorization' there"),
        (["task.kind=bpr", "task.penalty=0.0"], r"task\.kind is 'bpr' here"),
        (["task.l2=0.2"], r"task\.l2 is 0\.2 here and 0\.1 there"),
        (["model.normalize=true", "model.popularity=0.1"], r"model\.popularity is 0\.1 here"),
    ):
        with pytest.raises(RecipeError, match=names):
            upgrade(tiny_recipe(*FROZEN, *overrides), lineage, progress=False)
