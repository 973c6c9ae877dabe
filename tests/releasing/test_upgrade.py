"""An upgrade: its plan and refusals, what is trained and packaged, and the way back."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from reproduction.recipe import PaperRecipe
from tests.support.encoders import CANDIDATES, QUERIES, SEEN, lineage_with_encoder
from tests.support.prepared import write_prepared
from tests.support.tiny_training import small_recipe, tiny_lineage, tiny_recipe

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Corpus
from evergram.data.prepared.mapped_corpus import load_prepared
from evergram.data.split import HeldOut, random_split
from evergram.encoders.encoder import SIDES, Encoder
from evergram.encoders.module_encoder import EncoderModules
from evergram.errors import DataError, RecipeError, UnknownVersionError
from evergram.lineage.artefact import Artefact
from evergram.lineage.diagnosis import version_warnings
from evergram.lineage.lineage import Lineage
from evergram.releasing.backward_transform import (
    LEAST_COMMON,
    BackwardTransformFit,
    Overlap,
)
from evergram.releasing.evaluate import evaluate
from evergram.releasing.past_versions import (
    UNTESTED,
    StoredModel,
    corpus_of_known,
    known_to,
    known_vectors,
    past_model,
    split_of_known,
    stored_in,
    unknown_counts,
    with_known_queries,
)
from evergram.releasing.publish import losses, publish
from evergram.releasing.upgrade import (
    FittedUpgrade,
    UpgradeOptions,
    UpgradePlan,
    fit_upgrade,
    measure_upgrade,
    package_upgrade,
    plan_upgrade,
    train,
    upgrade,
    with_modules,
)
from evergram.retrieval.reader import Reader
from evergram.training.build import load_corpus, split_for
from evergram.training.checkpoint import load_encoder
from evergram.training.fit import RunContext
from evergram.training.recipe import Recipe


@pytest.mark.long
@pytest.mark.parametrize("method", ["joint-lin-sloss", "evergram"])
def test_an_upgrade_goes_over_a_gap(small: Recipe, tmp_path: Path, method: str) -> None:
    """A withdrawn version is nothing to align to, nor to be read as; nor is a retired one read."""
    overrides = [f"upgrade.method={method}", "upgrade.alone=false", "model.dim=[8, 12, 12, 10]"]
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
        recipe, 4, lineage.active_chain, load_encoder(lineage, 3), corpus, 10
    )
    assert back.loss.versions == (3 if method == "evergram" else 1)
    for reading in made.metrics["compatibility"].values():
        assert 0 < reading["drift"]["held_out"]["relative"] < 0.7
    lineage.retire(0)
    again = upgrade(recipe, lineage, corpus)
    assert set(again.metrics["compatibility"]) == {"1", "3"}


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
        recipe = PaperRecipe.stored(values, settings)
        epoch: int = upgrade(recipe, lineage, corpus).metrics["training"]["best_epoch"]
        return epoch

    assert best() == 1
    assert best(select_after=4) == 5
    # A model trained without alignment may be selected at once.
    assert best("upgrade.method=non-bc", select_after=4) == 1
    # A run that ends before then has its last epoch.
    assert best("training.budget=0.000001", select_after=4) == 1


@pytest.mark.parametrize(("start", "dim"), [("fresh", 5), ("previous", 4), ("frozen", 4)])
def test_a_model_that_starts_from_the_past_one_has_its_dim(
    lineage: Lineage, corpus: Corpus, start: str, dim: int
) -> None:
    recipe = tiny_recipe("upgrade.method=non-bc", f"upgrade.start={start}")
    plan = plan_upgrade(recipe, lineage, corpus, UpgradeOptions())
    assert plan.backward.transform.new_dim == dim


@pytest.mark.parametrize("override", ["upgrade.method=evergram", "upgrade.start=previous"])
def test_a_trained_model_serves_only_a_transform_that_is_fitted_after_it(
    lineage: Lineage, corpus: Corpus, override: str
) -> None:
    options = UpgradeOptions(trained=load_encoder(lineage, 0))
    with pytest.raises(RecipeError, match="trained= needs a method"):
        plan_upgrade(tiny_recipe(override), lineage, corpus, options)
    plan = plan_upgrade(tiny_recipe("upgrade.method=post-lin-mloss"), lineage, corpus, options)
    assert plan.trained is options.trained


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
    # A model without alignment is not trained twice.
    _, fitted = carried_out(lineage, corpus, "upgrade.method=post-closed")
    assert fitted.unaligned is fitted.trained
    _, fitted = carried_out(lineage, corpus, "upgrade.alone=false")
    assert fitted.unaligned is None


def test_a_frozen_model_is_packaged_as_it_is_and_was_trained_on_nothing_new(
    lineage: Lineage, corpus: Corpus
) -> None:
    # Data, metrics and how the transform is made may differ.
    other = "data.interactions=1000", 'metrics=["recall@5"]'
    plan, fitted = carried_out(
        lineage, corpus, "upgrade.method=fix-m0", "upgrade.alone=false", *other
    )
    artefact = package_upgrade(plan, fitted, measure_upgrade(plan, fitted))
    assert artefact.encoder is not None
    _, state, _ = lineage.reader(0).encoder()
    for name, value in state.items():
        assert torch.equal(artefact.encoder.state[name], value)
    assert artefact.trained is not None
    assert len(artefact.trained[1]) == 0
    assert fitted.error.rms == 0


def test_without_readings_there_is_a_certificate(lineage: Lineage, corpus: Corpus) -> None:
    plan, fitted = carried_out(lineage, corpus, "upgrade.alone=false", readings=False)
    report = measure_upgrade(plan, fitted)
    assert report["compatibility"] == {}
    assert set(report["certificate"]) == {"0"}


def test_a_sampled_upgrade_is_measured_on_the_same_queries_and_held_to_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models, and all readings as a version, are of one sample each; the gate reads it."""
    for module in ("training.selection", "releasing.upgrade"):
        monkeypatch.setattr(sys.modules[f"evergram.{module}"], "LEAST", 12)
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
    found = losses(report, "recall@3")
    assert set(found) == {"alone", "0"}
    assert all(loss.mean < loss.worst < 1000 for loss in found.values())
    whole = measure_upgrade(*carried_out(lineage, corpus, *size))
    assert "sampled" not in whole
    assert "sampled" not in whole["compatibility"]["0"]


FROZEN = ("upgrade.start=frozen", "upgrade.alone=false")


def test_a_past_version_is_known_by_its_encoder_or_by_its_stored_vectors(tmp_path: Path) -> None:
    pairs = [*SEEN, ("zoe", 100), ("ann", 999)]
    queries, candidates = zip(*pairs, strict=True)
    genres = pa.table({"id": [100, 101, 139, 999], "genre": ["drama", "noir", "war", "drama"]})
    table = pa.table({"query": queries, "candidate": candidates})
    corpus = Corpus.of(table, candidate_features=genres)
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
    ):
        with pytest.raises(RecipeError, match=names):
            upgrade(tiny_recipe(*FROZEN, *overrides), lineage, progress=False)


def test_a_frozen_model_of_a_recipe_of_the_papers_is_not_taken_for_that_of_another(
    tmp_path: Path,
) -> None:
    lineage = Lineage.create(tmp_path / "l", "tiny")
    publish(lineage, train(tiny_recipe("model.scale=0.2"), progress=False))
    with pytest.raises(RecipeError, match=r"model\.scale = 0\.2"):
        upgrade(tiny_recipe(*FROZEN), lineage, progress=False)
    with pytest.raises(RecipeError, match=r"model\.scale is 0\.3 here and 0\.2 there"):
        upgrade(tiny_recipe(*FROZEN, "model.scale=0.3"), lineage, progress=False)


def frozen(small: Recipe, *overrides: str) -> Recipe:
    upgrading = {"method": "fix-m0", "alone": False}
    return Recipe.of({**small.model_dump(exclude={"upgrade"}), "upgrade": upgrading}, overrides)


@pytest.fixture(scope="module")
def trained() -> tuple[Artefact, Corpus]:
    corpus = load_corpus(small_recipe())
    return train(small_recipe(), corpus, progress=False), corpus


@pytest.fixture
def first(trained: tuple[Artefact, Corpus], tmp_path: Path) -> tuple[Lineage, Corpus]:
    lineage = Lineage.create(tmp_path / "lineage")
    publish(lineage, trained[0])
    return lineage, trained[1]


def ids_of(artefact: Artefact, side: str) -> set[int]:
    return set(artefact.block(side)[0].to_pylist())


def test_new_ids_of_a_table_are_not_published_and_a_warning_counts_them(
    small: Recipe, first: tuple[Lineage, Corpus], caplog: pytest.LogCaptureFixture
) -> None:
    lineage, corpus = first
    recipe = frozen(small)
    artefact = upgrade(recipe, lineage, corpus, progress=False)
    training = split_for(recipe, corpus, 1, lineage.pair_history).training
    new, unknown = {}, {}
    for side, entities in (("query", training.queries), ("candidate", training.candidates)):
        before = set(lineage.embeddings(side)[0].to_pylist())
        ids = set(entities.vocabulary.keys.to_pylist())
        new[side] = sorted(ids - before)
        unknown[side] = len(new[side])
        assert ids_of(artefact, side) == ids & before
        assert float(torch.as_tensor(artefact.block(side)[1]).norm(dim=1).min()) > 0
    assert min(unknown.values()) > 0
    assert artefact.metrics["data"]["unknown_to_model"] == unknown
    with caplog.at_level(logging.WARNING):
        published = publish(lineage, artefact)
    sentence = next(w for w in published.warnings if "no vectors" in w)
    assert f"for {unknown['query']} queries and {unknown['candidate']} candidates" in sentence
    assert sentence in caplog.text
    assert f"Version 1: {version_warnings(lineage)[1][0]}" == sentence
    reader = Reader.open(lineage.address)
    known = lineage.embeddings("candidate")[0][0].as_py()
    embedded = reader.embed([new["candidate"][0], known], side="candidate")
    assert embedded.missing.to_pylist() == [new["candidate"][0]]


def test_the_test_of_a_frozen_model_counts_new_ids_as_unknown(
    small: Recipe, first: tuple[Lineage, Corpus]
) -> None:
    lineage, corpus = first
    recipe = frozen(small, "upgrade.alone=true", "training.epochs=1")
    split = split_for(recipe, corpus, 1, lineage.pair_history)
    known = stored_in({s: lineage.embeddings(s)[0] for s in ("query", "candidate")}, split.training)
    of_known = known["query"][split.test.query]
    ranked = split.test.where(of_known & (split.test.candidate >= 0))
    artefact = upgrade(recipe, lineage, corpus, progress=False)
    data = artefact.metrics["data"]
    assert data["unknown_queries"] == split.unknown_queries + int((~of_known).sum())
    assert data["unknown_queries"] > split.unknown_queries
    misses = int((split.test.candidate[of_known] < 0).sum())
    new = int((~known["candidate"][ranked.candidate]).sum())
    assert data["unknown_test_candidates"] == misses + new > misses
    assert data["candidates"] == int(known["candidate"].sum())
    # The model that is trained alone knows new ids, and is tested on the same queries.
    assert artefact.metrics["metrics"]["alone"]["recall@20"] > 0
    publish(lineage, artefact)
    assert evaluate(recipe, lineage, corpus=corpus)["model"] == pytest.approx(
        artefact.metrics["metrics"]["model"]
    )


def test_a_comparison_of_methods_keeps_all_objects(
    small: Recipe, first: tuple[Lineage, Corpus]
) -> None:
    lineage, corpus = first
    recipe = frozen(small)
    artefact = upgrade(recipe, lineage, corpus, progress=False, keep_unknown=True)
    training = split_for(recipe, corpus, 1, lineage.pair_history).training
    assert ids_of(artefact, "query") == set(training.queries.vocabulary.keys.to_pylist())
    assert "unknown_to_model" not in artefact.metrics["data"]
    # Objects that it does not know have vectors of zeros, and no limit refuses these alone.
    unknown = sum(artefact.unknown.values())
    assert unknown > 0.05 * sum(len(ids_of(artefact, s)) for s in ("query", "candidate"))
    few = Lineage.create(lineage.path.parent / "few")
    few.publish(replace(artefact, transform=None, error=None, follows=None))
    sides = ("query", "candidate")
    assert unknown == sum(int((few.embeddings(s)[1] == 0).all(1).sum()) for s in sides)


def test_a_feature_that_the_model_knows_is_enough(small: Recipe, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = [(int(a), int(b)) for a, b in torch.randint(40, (900, 2), generator=draw)]
    table = pa.table({"query": [a for a, _ in rows], "candidate": [b for _, b in rows]})
    genres = pa.table({"id": range(80), "genre": [f"g{i % 5}" for i in range(80)]})
    more = [(a, b + 40) for a, b in rows[:300]] + [(a + 40, b) for a, b in rows[:300]]
    both = pa.concat_tables(
        [table, pa.table({"query": [a for a, _ in more], "candidate": [b for _, b in more]})]
    )
    recipe = Recipe.of(
        {
            "data": {"kind": "python"},
            "model": {"kind": "two_tower", "dim": 8, "hidden": [8]},
            "training": {"epochs": 1},
        }
    )
    before = Corpus.of(table, candidate_features=genres)
    after = Corpus.of(both, candidate_features=genres)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(recipe, before, progress=False))
    artefact = upgrade(frozen(recipe), lineage, after, progress=False)
    assert max(ids_of(artefact, "candidate")) > 40  # new, and described
    assert max(ids_of(artefact, "query")) < 40  # new, and of no feature
    assert artefact.metrics["data"]["unknown_to_model"]["candidate"] == 0


@pytest.mark.parametrize("prepared", [False, True])
def test_a_corpus_of_known_entities_has_all_of_them_and_the_interactions_between_them(
    tmp_path: Path, prepared: bool
) -> None:
    pairs = {"query": [1, 2, 1, 3, 4], "candidate": [10, 11, 12, 12, 13], "value": [1, 2, 3, 4, 5]}
    corpus = Corpus.of(pa.table(pairs))
    if prepared:
        corpus = load_prepared(write_prepared(corpus, tmp_path / "prepared"))
    known = {"query": torch.tensor([1, 1, 0, 1]), "candidate": torch.tensor([1, 0, 1, 0])}
    known = {side: marks.bool() for side, marks in known.items()}
    assert unknown_counts(known) == {"query": 1, "candidate": 2}
    narrow, places = corpus_of_known(corpus, known)
    assert type(narrow) is type(corpus)
    assert len(narrow) == 2
    # Queries 2 and 4 met unknown candidates alone: they stay, after the others.
    assert narrow.queries.vocabulary.keys.to_pylist() == [1, 2, 4]
    assert narrow.candidates.vocabulary.keys.to_pylist() == [10, 12]
    assert places["query"].tolist() == [0, 1, -1, 2]
    assert places["candidate"].tolist() == [0, -1, 1, -1]
    assert narrow.counts("query").tolist() == [2, 0, 0]
    assert narrow.column("value").tolist() == [1, 3]
    assert narrow.has_pairs(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 1])).tolist() == [
        True,
        True,
        False,
    ]
    assert narrow.repeats == 0


def test_of_one_vocabulary_an_entity_is_known_as_both(tmp_path: Path) -> None:
    pages = pa.table({"query": ["a", "b", "c"], "candidate": ["b", "c", "a"]})
    corpus = Corpus.of(pages, shared_ids=True)
    ids = {"query": pa.array(["a", "b"]), "candidate": pa.array(["b", "a", "c"])}
    known = stored_in(ids, corpus)
    narrow, _ = corpus_of_known(corpus, known)
    assert narrow.queries.vocabulary is narrow.candidates.vocabulary
    assert narrow.queries.vocabulary.keys.to_pylist() == ["a", "b"]
    assert len(narrow) == 1


def test_what_is_wholly_known_stays_as_it_is_and_what_is_not_at_all_is_untested(
    small: Recipe, first: tuple[Lineage, Corpus]
) -> None:
    lineage, corpus = first
    split = random_split(corpus, share=0.2, held_out=HeldOut("salt"))
    known = known_to(load_encoder(lineage, 0), split.training)
    assert not known["query"].all()
    everything = {side: torch.ones_like(marks) for side, marks in known.items()}
    assert split_of_known(split, everything) is split
    assert with_known_queries(split, everything) is split
    nothing = {**everything, "query": torch.zeros_like(known["query"])}
    for narrowed in (split_of_known(split, nothing), with_known_queries(split, nothing)):
        assert narrowed.untested == UNTESTED
        assert len(narrowed.test) == 0
        assert narrowed.unknown_queries == split.unknown_queries + len(split.test)


def fit_of(lineage: Lineage, corpus: Corpus, *overrides: str, dim: int = 5) -> BackwardTransformFit:
    recipe = tiny_recipe(*overrides)
    return BackwardTransformFit(
        recipe, 1, lineage.active_chain, load_encoder(lineage, 0), corpus, dim
    )


@pytest.mark.parametrize(
    ("method", "share"), [("evergram", 0.05), ("evergram", 0.5), ("non-bc", 0.05)]
)
def test_as_many_objects_are_held_out_as_a_measure_needs(
    lineage: Lineage, corpus: Corpus, method: str, share: float
) -> None:
    """A share of a small corpus would be fewer; where nothing is fitted, all were never seen."""
    back = fit_of(lineage, corpus, f"upgrade.method={method}", f"upgrade.held_out={share}")
    overlap = back.overlap
    assert overlap.common == sum(int(back.known[s].sum()) for s in SIDES) >= LEAST_COMMON
    if method == "non-bc":
        assert (overlap.fitted, overlap.held_out) == (0, overlap.common)
    else:
        assert overlap.fitted + overlap.held_out == overlap.common
        assert overlap.held_out in (LEAST_OBJECTS, LEAST_OBJECTS + 1) or share == 0.5
        assert overlap.held_out >= LEAST_OBJECTS
    assert not overlap.small


@pytest.mark.parametrize("method", ["evergram", "non-bc"])
def test_of_too_few_objects_to_halve_no_more_are_held_out_than_the_share(
    lineage: Lineage, corpus: Corpus, method: str
) -> None:
    overrides = (f"upgrade.method={method}", "upgrade.held_out=0.5")
    overlap = fit_of(lineage, corpus.restrict(torch.arange(9)), *overrides).overlap
    assert overlap.small
    assert overlap.held_out_share == (1.0 if method == "non-bc" else 0.5)
    with pytest.raises(DataError, match="--allow-small-overlap"):
        overlap.refuse_small(1, 0, allow_small=False)
    overlap.refuse_small(1, 0, allow_small=True)


def test_an_overlap_that_nothing_can_be_fitted_to_is_refused_in_any_case() -> None:
    with pytest.raises(DataError, match="of which 1 are not held out"):
        Overlap(9, 1, 8, 0.9).refuse_small(1, 0, allow_small=True)
    with pytest.raises(DataError, match="no objects in common"):
        Overlap(0, 0, 0, 1.0).refuse_small(1, 0, allow_small=True)


def test_w_starts_orthonormal_or_as_a_layer_of_torch(lineage: Lineage, corpus: Corpus) -> None:
    wide = 400
    ours = fit_of(lineage, corpus, dim=wide).transform.affine()
    theirs = fit_of(lineage, corpus, "upgrade.objects=paper-code", dim=wide).transform.affine()
    layer = torch.nn.Linear(wide, 4, bias=False).weight
    assert ours is not None
    assert theirs is not None
    torch.testing.assert_close(ours[0] @ ours[0].T, torch.eye(4))
    for weight in (theirs[0].detach(), layer.detach()):
        assert 0.97 / 20 < float(weight.abs().max()) <= 1 / 20
        assert float(weight.std()) == pytest.approx(1 / 20 / 3**0.5, rel=0.05)


@pytest.mark.parametrize("transform", ["linear", "affine", "orthogonal"])
def test_a_closed_form_recovers_an_exact_map_without_the_held_out_objects(
    lineage: Lineage, corpus: Corpus, transform: str
) -> None:
    """New vectors are the old ones turned; those of held-out objects are made nonsense."""
    back = fit_of(
        lineage,
        corpus,
        "upgrade.method=post-closed",
        f"upgrade.transform={transform}",
        "upgrade.held_out=0.3",
        dim=4,
    )
    assert back.joint() is None
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draw))[0]
    turned = {side: vectors @ turn.T for side, vectors in back.past.items()}
    poisoned = {side: torch.where(back.aside[side][:, None], 100.0, turned[side]) for side in SIDES}
    back.finish(poisoned)
    affine = back.transform.affine()
    assert affine is not None
    torch.testing.assert_close(affine[0], turn.T, rtol=1e-3, atol=1e-3)
    assert not any(parameter.requires_grad for parameter in back.transform.parameters())
    assert back.error(turned).rms < 1e-3
    assert back.error(poisoned).rms > 10


@pytest.mark.parametrize(
    ("method", "start", "stays"),
    [
        ("evergram", 0.0, True),
        ("post-closed", 0.0, False),
        ("evergram", 0.2, False),
        ("evergram", float("nan"), False),
    ],
)
def test_a_trained_transform_stays_where_solving_gains_nothing(
    lineage: Lineage, corpus: Corpus, method: str, start: float, stays: bool
) -> None:
    """The ridge gives up to one percent of the error away; a trained map need not pay that. What a
    fit after the model starts from was never trained."""
    back = fit_of(lineage, corpus, f"upgrade.method={method}", "upgrade.transform=linear", dim=4)
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draw))[0]
    new = {side: vectors @ turn.T for side, vectors in back.past.items()}
    back.transform = LinearTransform.from_matrix(turn.T + start)
    trained = back.transform
    back.finish(new)
    assert (back.transform is trained) == stays
    assert back.error(new).rms < 1e-3
    assert not any(parameter.requires_grad for parameter in back.transform.parameters())
