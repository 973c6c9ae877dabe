"""A recipe: what it reads, what it fills in, and that a key which is wrong or unused is named."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.fits import changed

from evergram.data.corpus import Corpus
from evergram.encoders.kinds import ENCODERS
from evergram.errors import RecipeError
from evergram.training.build import (
    FitSettings,
    batch_size_of,
    rate_of,
    strengths_of,
)
from evergram.training.recipe import Recipe, flat
from evergram.training.recipe.recipe import overridden
from evergram.training.recipe.tables import METHODS, UPGRADES, TimeSplit

ROOT = Path(__file__).parents[3]


GOOD: dict[str, Any] = {"data": {"kind": "synthetic"}}


DEFAULTS = flat(Recipe.of(GOOD).model_dump(mode="json"))


TINY: dict[str, Any] = {
    "data": {"kind": "synthetic", "queries": 60, "candidates": 40, "interactions": 900},
    "split": {"kind": "random"},
    "model": {"dim": 4},
    "training": {"epochs": 1, "batch_size": 128},
}


# Overrides, and what the error must name.
WRONG = [
    ("model.dim=0", "0"),
    ("model.dims=8", "did you mean model.dim"),
    ("modle.dim=8", "key modle is unknown"),
    ("training.epochs=1.5", "training.epochs is 1.5; it must be an integer"),
    ("task.penalty=nan", "nan"),
    ("task.penalty=[1, 2]", "the same length"),
    ("task.query_measure=[0, 1]|task.candidate_measure=[0, 1]", "'auto' is only for one measure"),
    ("task.candidate_measure=inf", "0 to 16"),
    ("gramian.kind=adam", "'exact'"),
    ("gramian.rate=fast", "'auto'"),
    ("gramian.kind=sagram|gramian.beta=2", "'1/n'"),
    ("prior.kind=files", "prior.query"),
    ("training.metric=hits@3", "recall@K"),
    ("metrics=[]", "at least 1"),
    ("model=3", "table"),
    ("data={kind='table', path='a', columns={quer='user'}}", "did you mean data.columns.query"),
    ("split.kind=time|split.versions=[0.9, 0.8]", "ascending"),
    ("split.kind=time|split.versions=[0.5]|split.last='5 %'", "split.versions"),
    ("data.kind=movielens", "data.path"),
    ("seed=-1", "-1"),
    ("name='my films'", "my films"),
    ("dim", "key.path=value"),
    ("upgrade.method=magic", "keep-all"),
    ("upgrade.method=non-bc|upgrade.transform=affine", "a transform that is not fitted"),
    ("upgrade.method=post-closed|upgrade.transform=residual_mlp", "closed form"),
    # What needs something of another table: the key, and what it needs.
    ("split.kind=given", "split.kind is 'given', which needs a file of test pairs"),
    ("data={kind='python', columns={query='user'}}", "data.columns is {'query': 'user'}, which"),
    ("data={kind='prepared', path='p', test='x.csv'}", "split.kind = 'given'"),
    ("model.normalize=true|task.l2=0.1", "model.normalize = false"),
    ("model.normalize=true|task.l2_measure=penalty", "task.l2 above 0"),
    ("task.l2=0|task.l2_measure=penalty", "'penalty', which needs an L2 penalty"),
    ("task.kind=softmax_all|gramian.rate=0.1", "gramian.rate is 0.1, which needs a term with Gr"),
    ("task.kind=bpr|gramian.kind=exact", "gramian.kind is 'exact', which needs"),
    ("task.penalty=0|prior.kind=svd", "prior.kind is 'svd', which needs a penalty"),
    ("task.penalty=0|task.l2=0|task.query_measure=1.0", "a term with measures"),
    ("gramian.batch_size=7", "gramian.sampler"),
    ("training.optimizer=als|upgrade.method=post-closed|gramian.rate=0.1", "other than 'als'"),
    ("training.optimizer=als|model.normalize=true", "model.normalize = false"),
    ("training.optimizer=als|task.kind=softmax", "task.loss = 'squared'"),
    ("training.optimizer=als|model.kind=two_tower", "model.kind = 'factorization'"),
    ("training.layer_rate=0.3", "layers"),
    ("model.kind=lightgcn|training.table_rate=0.3", "id tables"),
    ("training.precision=bfloat16", "matrix products per batch"),
    ("model.kind=mean_of_candidates|training.tables=mapped", "can be read in part"),
    ("training.optimizer=adam|training.tables=mapped", "sparse updates"),
    ("training.optimizer=adam|training.rescale_rows=true", "model.normalize = true"),
    ("training.epochs=0", "model.start"),
    ("training.epochs=0|model.start=smooth", "post-closed"),
    ("training.epochs=0|model.start=smooth|upgrade.start=previous", "upgrade.start other than"),
]


def refusal(overrides: list[str]) -> str:
    try:
        Recipe.of(GOOD, overrides)
    except RecipeError as error:
        return str(error)
    return "accepted"


def test_what_is_wrong_is_named_in_one_line() -> None:
    missed = []
    for overrides, named in WRONG:
        keys = overrides.split("|")
        sentence = refusal(keys)
        if named not in sentence or "\n" in sentence:
            missed.append((overrides, sentence))
    assert missed == []


def test_a_dumped_or_stored_recipe_is_never_refused() -> None:
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        recipe = Recipe.load(path)
        assert recipe.name == path.stem
        for values in (recipe.model_dump(), recipe.model_dump(mode="json")):
            assert Recipe.of(values) == Recipe.stored(values) == recipe
        assert Recipe.of(recipe.model_dump(exclude_unset=True)) == recipe
        # What a later Evergram adds, an older lineage does not have.
        older = recipe.model_dump()
        del older["training"]["evaluate_share"]
        assert Recipe.stored(older) == recipe
    with pytest.raises(RecipeError, match=r"gramian\.beta is used only with"):
        Recipe.stored(older, ["gramian.beta=1", "gramian.kind=exact", "task.penalty=1"])
    # To write a default down looks as though it did something.
    with pytest.raises(RecipeError, match=r"training\.layer_rate is 0\.0002, which needs layers"):
        Recipe.of({**TINY, "training": {"layer_rate": 2e-4}})


def test_overrides_are_toml_or_bare_words() -> None:
    recipe = Recipe.of(GOOD, ["model.dim=[4, 8]", "name=shop", "task.penalty=2", "seed=7"])
    assert (recipe.name, recipe.seed, recipe.task.penalty) == ("shop", 7, [2.0])
    assert [recipe.model.dim_of(v) for v in range(4)] == [4, 8, 8, 8]
    assert overridden({}, ["a.b.c=true", "name='x=y'"]) == {"a": {"b": {"c": True}}, "name": "x=y"}


def test_paths_are_relative_to_the_recipe_and_overrides_to_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("EVERGRAM_DATA", str(tmp_path / "sets"))
    path = tmp_path / "r.toml"
    path.write_text(
        '[data]\nkind = "table"\npath = "ml"\nquery_features = "$EVERGRAM_DATA/beauty"\n'
        '[task]\nquery_measure = [0.5, "w.csv"]\ncandidate_measure = [1, 1]\npenalty = [1, 1]\n'
    )
    recipe = Recipe.load(path)
    assert recipe.data.model_dump()["path"] == str(tmp_path / "ml")
    assert recipe.data.model_dump()["query_features"] == str(tmp_path / "sets" / "beauty")
    assert recipe.task.measures_of("query") == [0.5, str(tmp_path / "w.csv")]
    moved = Recipe.load(path, ["data.path=ml"])
    assert moved.data.model_dump()["path"] == str(tmp_path / "elsewhere" / "ml")


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "Cannot read"), ("[data", "not valid TOML"), ("", "key data is missing")],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "r.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        Recipe.load(path)


def test_an_override_mends_a_table_of_the_wrong_type(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('seed = {a = 1}\n[data]\nkind = "synthetic"\n[model]\nkind = ["two_tower"]\n')
    with pytest.raises(RecipeError, match="seed is"):
        Recipe.load(path)
    mended = Recipe.load(path, ["seed=3", "model.kind=two_tower"])
    assert (mended.seed, mended.model.kind) == (3, "two_tower")


def test_an_override_puts_keys_of_the_file_out_of_use_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        '[data]\nkind = "synthetic"\n[model]\nkind = "two_tower"\nhidden = [8]\n'
        "[training]\nlayer_rate = 0.1\n"
    )
    with caplog.at_level(logging.WARNING, "evergram"):
        recipe = Recipe.load(path, ["model.kind=factorization"])
    assert recipe == Recipe.of(GOOD)
    (line,) = caplog.messages
    assert "model.hidden, training.layer_rate" in line
    with pytest.raises(RecipeError, match=r"model\.hidden is used only with"):
        Recipe.load(path, ["model.kind=factorization", "model.hidden=[4]"])
    # An override of a whole table replaces the keys that it puts out of use.
    path.write_text('[data]\nkind = "synthetic"\n[training]\nbatch_size = 8\n')
    assert Recipe.load(path, ["training={optimizer='als'}"]).training.sweeps
    # A file that is wrong by itself is not made right by an override of something else.
    path.write_text('[data]\nkind = "synthetic"\n[model]\nhidden = [8]\n')
    with pytest.raises(RecipeError, match=r"model\.hidden is used only with"):
        Recipe.load(path, ["seed=3"])


def test_each_version_is_tested_on_the_interval_after_it() -> None:
    for values, ends in (
        ({"versions": [0.6, 0.75]}, [0.6, 0.75, 0.9]),  # as far again
        ({"versions": [0.5, 0.9]}, [0.5, 0.9, 1.0]),  # but not past the end
        ({"versions": [0.5]}, [0.5, 1.0]),
    ):
        settings: dict[str, Any] = values
        assert TimeSplit(**settings).ends == pytest.approx(ends)


def test_a_model_as_of_a_version_is_that_one_at_every_version() -> None:
    model = ENCODERS.of({"kind": "graphsage", "dim": [4, 8], "ids": True, "layers": [1, 2]})
    first = model.as_of(0)
    assert [first.dim_of(version) for version in (0, 5)] == [4, 4]
    assert first.options(5)["layers"] == model.options(0)["layers"] == 1
    assert (first.kind, first.options(5)["ids"]) == ("graphsage", True)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_names_settings_that_a_key_beside_it_overrides(method: str) -> None:
    settings, named = UPGRADES.of({"method": method}), METHODS[method]
    assert (settings.fit, settings.steps, settings.start) == (named.fit, named.steps, named.start)
    assert settings.transform.kind == named.transform
    assert UPGRADES.of({"method": method, "start": "previous"}).start == "previous"
    stored = Recipe.of(TINY).model_dump()
    changed = Recipe.stored(stored, [f"upgrade.method={method}"]).upgrade
    assert (changed.start, changed.transform.kind) == (named.start, named.transform)


def test_joint_training_solves_for_its_transform_where_there_is_a_closed_form() -> None:
    for written, solver in (
        ({}, "closed"),
        ({"transform": "residual_mlp"}, "gradient"),
        ({"method": "bc-aligner"}, "gradient"),
        ({"method": "post-closed"}, "closed"),
    ):
        recipe = Recipe.of({"data": {"kind": "synthetic"}, "upgrade": written})
        assert recipe.upgrade.solver == solver
        # Read again as it is stored in a manifest, it stays what it was.
        assert Recipe.of(recipe.model_dump()) == recipe


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("gramian", "kind", "window"),
        ("upgrade", "transform", {"kind": "diagonal"}),
        ("task", "loss", "quartic"),
    ],
)
def test_kinds_of_another_process_are_refused_but_for_an_evaluation(
    small: Recipe, table: str, key: str, value: Any
) -> None:
    stored = changed(small, "training.refit=true").model_dump(mode="json")
    stored[table][key] = value
    read = Recipe.of_data(stored)
    assert (read.data, read.split, read.refits) == (small.data, small.split, True)
    with pytest.raises(RecipeError, match="one of"):
        Recipe.stored(stored)


def corpus(queries: int, candidates: int, each: int, **columns: float) -> Corpus:
    """Every query has met `each` candidates."""
    pairs = [(q, (q * 7 + i) % candidates) for q in range(queries) for i in range(each)]
    extra = {name: [value] * len(pairs) for name, value in columns.items()}
    query, candidate = zip(*pairs, strict=True)
    return Corpus.of(pa.table({"query": query, "candidate": candidate, **extra}))


def recipe(*overrides: str) -> Recipe:
    return Recipe.of({"data": {"kind": "synthetic"}}, overrides)


def test_by_hand() -> None:
    # 800 pairs of 100 queries and 64 candidates: an eighth of all, ten for each entity.
    strengths = strengths_of(recipe(), corpus(100, 64, 8))
    assert strengths.penalty == pytest.approx([66 / 8**0.25])
    assert strengths.l2 == pytest.approx(0.5 / 10)
    assert strengths.l2_measure == "penalty"


def test_repeats_and_strangers_change_nothing() -> None:
    once = corpus(100, 64, 8)
    twice = once.restrict(torch.arange(1600) % 800)
    assert strengths_of(recipe(), twice) == strengths_of(recipe(), once)
    # Pages are queries and candidates under one vocabulary; not all of them are both.
    query, candidate = once.column("query"), once.column("candidate")
    table = pa.table({"query": query.numpy() + 1000, "candidate": candidate.numpy()})
    shared = Corpus.of(table, shared_ids=True)
    assert len(shared.queries) == 164
    assert strengths_of(recipe(), shared) == strengths_of(recipe(), once)


def test_numbers_win_and_keep_their_measure() -> None:
    data = corpus(100, 64, 8)
    given = strengths_of(recipe("task.penalty=[3, 4]", *TWO, "task.l2=0.5"), data)
    assert (given.penalty, given.l2, given.l2_measure) == ([3.0, 4.0], 0.5, "examples")
    measured = recipe("task.l2=0.5", "task.l2_measure=penalty")
    assert strengths_of(measured, data).l2_measure == "penalty"
    assert strengths_of(recipe("task.l2_measure=examples"), data).l2_measure == "examples"


TWO = ("task.query_measure=[0, 1]", "task.candidate_measure=[0, 1]")


@pytest.mark.parametrize("kind", ["bpr", "softmax"])
def test_what_has_negatives_of_its_own_gets_neither(kind: str) -> None:
    strengths = strengths_of(recipe(f"task.kind={kind}"), corpus(100, 64, 8))
    assert (strengths.penalty, strengths.l2) == ([0.0], 0.0)


def test_l2_grows_with_the_values_to_reach() -> None:
    """Twice the values have twice the scores, of vectors √2 as long: l2 doubles with them."""
    one, two = (
        strengths_of(recipe("task.target=value"), corpus(100, 64, 8, value=value))
        for value in (2.0, 4.0)
    )
    assert two.l2 == pytest.approx(2 * one.l2)
    assert two.penalty == one.penalty


@pytest.mark.parametrize(("pairs", "batch"), [(3, 256), (16_384, 512), (300_000, 4096)])
def test_small_data_has_small_batches(pairs: int, batch: int) -> None:
    rows = torch.arange(pairs) % 800
    data = corpus(100, 64, 8).restrict(rows)
    assert batch_size_of(recipe(), data) == batch
    assert batch_size_of(recipe("training.batch_size=77"), data) == 77
    assert batch_size_of(recipe("model.kind=graphsage"), data) == 4096


def test_a_sweep_has_all_pairs_and_no_rate() -> None:
    sweeping = recipe("training.optimizer=als")
    assert batch_size_of(sweeping, corpus(100, 64, 8)) == 800
    assert rate_of(sweeping) == 0


CORPUS = Corpus.of(pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}))


VALUES: dict[str, Any] = {"data": {"kind": "synthetic"}, "seed": 7}


def test_each_version_has_a_seed_of_its_own_and_the_first_has_the_recipes() -> None:
    seeds = [FitSettings.of(Recipe.of(VALUES), CORPUS, v).version_seed for v in range(50)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 50
