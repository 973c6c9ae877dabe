"""A recipe: what it reads, what it fills in, and that a key which is wrong or unused is named."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from evergram.data.corpus import Corpus
from evergram.errors import RecipeError
from evergram.kinds import KindSettings
from evergram.releasing.upgrade import train
from evergram.training.recipe import ModelRecipe, Recipe
from evergram.training.recipe.automatic import TABLE_RATE, batch_size_of, rate_of, strengths_of
from evergram.training.recipe.data import SplitRecipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.recipe.methods import METHODS
from evergram.training.recipe.presets import PAPER
from evergram.training.recipe.table import KindTable
from evergram.training.recipe.unknown_kinds import (
    refuse_unknown_kinds,
    unknown_kinds,
    without_unknown_kinds,
)
from evergram.training.recipe.upgrade import CompareRecipe, UpgradeRecipe
from evergram.training.recipe.values import flat, overridden

ROOT = Path(__file__).parents[3]


GOOD: dict[str, Any] = {"data": {"kind": "synthetic"}}


DEFAULTS = flat(Recipe.of(GOOD).model_dump(mode="json"))


TINY: dict[str, Any] = {
    "data": {"kind": "synthetic", "queries": 60, "candidates": 40, "interactions": 900},
    "split": {"kind": "random"},
    "model": {"dim": 4},
    "training": {"epochs": 1, "batch_size": 128},
}


# Overrides, and what the error must name beside the key of the last one.
WRONG = [
    ("model.dim=0", "0"),
    ("model.dim=[8, 0]", "0"),
    ("model.dims=8", "did you mean model.dim"),
    ("modle.dim=8", "key modle is unknown"),
    ("training.epochs=1.5", "whole number"),
    ("training.epochs=true", "true"),
    ("training.epochs=-1", "-1"),
    ("task.penalty=nan", "nan"),
    ("task.penalty=[1, 2]", "as long as"),
    ("task.query_measure=[0, 1]|task.candidate_measure=[0, 1]", "'auto' is one λ for one"),
    ("task.candidate_measure=inf", "0 to 16"),
    ("gramian.kind=adam", "'exact'"),
    ("gramian.rate=fast", "'auto'"),
    ("gramian.beta=2", "'1/n'"),
    ("gramian.batch_size=0|gramian.batch=independent", "gramian.batch_size"),
    ("gramian.kind=sagram|gramian.batch=previous", "'previous'"),
    ("gramian.kind=storm|gramian.batch=independent|gramian.sampler=adaptive", "'storm'"),
    ("task.query_orthogonal=0.1", "model.normalize"),
    ("model.popularity=auto", "model.normalize"),
    ("model.popularity=2.0", "-1 to 1"),
    ("prior.kind=files", "prior.query"),
    ("training.metric=hits@3", "recall@K"),
    ("metrics=['recall@0']", "recall@K"),
    ("metrics=[]", "at least 1"),
    ("model=3", "table"),
    ("data.columns.quer=user", "did you mean data.columns.query"),
    ("compare.seeds=[-1]", "[-1]"),
    ("split.kind=time|split.versions=[0.9, 0.8]", "ascending"),
    ("split.kind=time|split.versions=[0.5, 0.8]|split.end=0.8", "0.8"),
    ("split.kind=time|split.versions=[0.5]|split.last='5 %'", "split.versions"),
    ("split.kind=given", "data.test"),
    ("data.kind=movielens", "data.path"),
    ("seed=-1", "-1"),
    ("name='my films'", "my films"),
    ("dim", "key.path=value"),
    ("model..dim=3", "key.path=value"),
    ("seed.a=1", "seed"),
    ("preset=papr", "'paper'"),
    ("upgrade.method=magic", "keep-all"),
    ("upgrade.consumer_weight=1.0", "less than 1"),
    ("upgrade.consumer_weight=0.5|upgrade.consumers=['ads', 'ads']", "twice"),
    ("upgrade.consumer_weight=0.5|upgrade.transform=orthogonal", "linear"),
    ("upgrade.method=evergram|upgrade.solver=closed|upgrade.transform=residual_mlp", "closed form"),
    ("upgrade.objects=some", "paper-code"),
    ("training.epochs=0", "model.start"),
    ("training.epochs=0|model.start=svd", "posthoc"),
    ("training.epochs=0|model.start=svd|upgrade.start=previous", "new ids"),
    ("model.start=pca", "'pca'"),
    ("model.hash_rows=0", "0"),
    ("task.kind=pointwise|task.positives=whole_queries", "'pointwise'"),
    ("task.kind=softmax_all|task.positives=examples|task.denominator=unobserved", "denominator"),
    ("task.kind=softmax_all|task.positives=queries|task.positive_temperature=1.0", "positives"),
    ("task.kind=softmax_all|task.temperature=learned", "model.normalize"),
]


UNUSED = [
    "data.path=x.csv",
    "data.test=x.csv",
    "data.prefix=x",
    "data.shared_ids=true",
    "data.kind=python data.minimum_value=4.0",
    "data.kind=prepared data.path=p data.columns.query=user",
    "split.versions=[0.5]",
    "split.kind=time split.share=0.2",
    "model.kind=lightgcn model.ids=true",
    "model.kind=two_tower model.start=smooth",
    "model.hash_rows=9 model.start=svd",
    "model.hash_seed=1",
    "model.kind=lightgcn model.hash_rows=10",
    "model.kind=mean_of_candidates training.tables=mapped",
    "task.neighbours=3",
    "task.kind=softmax_all training.optimizer=als training.precondition=0.5",
    "training.optimizer=als gramian.rate=0.1",
    "training.precision=bfloat16",
    "training.optimizer=adam training.rescale_rows=true",
    "model.normalize=true training.rescale_rows=true",
    "upgrade.fit=none upgrade.transform=affine",
    "upgrade.consumers=['ads']",
    "upgrade.method=post-lin-sloss upgrade.consumer_weight=0.5",
    "upgrade.method=joint-notrans upgrade.transform_rate=0.1",
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


def test_a_key_that_changes_nothing_is_refused() -> None:
    missed = []
    for overrides in UNUSED:
        *others, last = overrides.split(" ")
        sentence = refusal([*others, last])
        if f"{last.split('=')[0].removesuffix('.query')} is used with" not in sentence:
            missed.append((overrides, sentence))
    assert missed == []
    # To write a default down looks as though it did something, too.
    with pytest.raises(RecipeError, match=r"gramian\.beta is used with"):
        Recipe.of({**TINY, "gramian": {"beta": "1/n"}})
    with pytest.raises(RecipeError, match=r"\(upgrade\.method = 'non-bc'\)"):
        Recipe.of(TINY, ["upgrade.method=non-bc", "upgrade.weight=3"])
    with pytest.raises(RecipeError, match=r"give task\.penalty a number"):
        Recipe.of(TINY, ["task.kind=softmax_all", "gramian.rate=0.1"])


def test_a_dumped_or_stored_recipe_is_never_refused() -> None:
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        recipe = Recipe.load(path)
        assert recipe.name == path.stem
        for values in (recipe.model_dump(), recipe.model_dump(mode="json")):
            assert Recipe.of(values) == Recipe.stored(values) == recipe
        assert Recipe.of(recipe.model_dump(exclude_unset=True)) == recipe
        # What a later Evergram adds, an older lineage does not have.
        older = recipe.model_dump()
        del older["data"]["drift"]
        assert Recipe.stored(older) == recipe
    with pytest.raises(RecipeError, match=r"--set: gramian\.form is used with"):
        Recipe.stored(older, ["gramian.form=pairs", "gramian.kind=exact", "task.penalty=1"])


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
        '[data]\nkind = "amazon"\npath = "ml"\nmetadata = "$EVERGRAM_DATA/beauty"\n'
        '[task]\nquery_measure = [0.5, "w.csv"]\ncandidate_measure = [1, 1]\npenalty = [1, 1]\n'
    )
    recipe = Recipe.load(path)
    assert recipe.data.path == str(tmp_path / "ml")
    assert recipe.data.metadata == str(tmp_path / "sets" / "beauty")
    assert recipe.task.measures_of("query") == [0.5, str(tmp_path / "w.csv")]
    moved = Recipe.load(path, ["data.path=ml"])
    assert moved.data.path == str(tmp_path / "elsewhere" / "ml")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "no recipe"), ("[data", "not TOML"), ("", "key data is missing")]
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
    assert recipe.model_dump()["model"]["hidden"] == Recipe.of(GOOD).model_dump()["model"]["hidden"]
    (line,) = caplog.messages
    assert "model.hidden, training.layer_rate" in line
    with pytest.raises(RecipeError, match=r"model\.hidden is used with"):
        Recipe.load(path, ["model.kind=factorization", "model.hidden=[4]"])
    # An override of a whole table replaces the keys that it puts out of use.
    path.write_text('[data]\nkind = "synthetic"\n[training]\nbatch_size = 8\n')
    assert Recipe.load(path, ["training={optimizer='als'}"]).training.batch_size == "auto"
    # A file that is wrong by itself is not made right by an override of something else.
    path.write_text('[data]\nkind = "synthetic"\n[model]\nhidden = [8]\n')
    with pytest.raises(RecipeError, match=r"model\.hidden is used with"):
        Recipe.load(path, ["seed=3"])


def test_a_key_that_any_method_of_a_comparison_uses_may_be_written() -> None:
    values = {**TINY, "split": {"kind": "time"}, "upgrade": {"fit_epochs": 7}}
    with pytest.raises(RecipeError, match="fit_epochs is used with"):
        Recipe.of(values)
    assert Recipe.of(values, comparing=True).upgrade.fit_epochs == 7
    compared = {**values, "compare": {"methods": ["post-lin-sloss"]}}
    assert Recipe.of(compared).upgrade.fit_epochs == 7
    with pytest.raises(RecipeError, match="fit_epochs is used with"):
        Recipe.of({**values, "compare": {"methods": ["bc-aligner", "post-closed"]}})


IDLE = [
    "; model.hidden=[9] model.ids=true model.layers=3 model.input_dim=7 task.temperature=3.0"
    " task.centred=false prior.value=2.0 prior.rank=3 gramian.beta=1 gramian.memory=0.0"
    " gramian.form=pairs gramian.sampler=sqrt gramian.batch_size=7 training.feature_rate=0.3"
    " training.layer_rate=0.3 training.watch_candidates=3 split.versions=[0.3]",
    "; gramian.sampler=adaptive gramian.pool_size=99",
    "task.l2=0; task.l2_measure=penalty",
    "gramian.batch=independent; gramian.pool_size=999",
    "task.kind=bpr task.penalty=0; gramian.kind=storm gramian.batch=independent prior.kind=svd"
    " training.precondition=0.5 task.query_measure=1.0",
    # "auto" is a penalty and an l2 of 0 where the loss keeps scores apart by itself.
    "task.kind=softmax_all; gramian.rate=0.1 prior.kind=svd training.precondition=0.5",
    "task.kind=bpr; task.loss=logistic task.target=value task.query_measure=1.0 gramian.kind=storm"
    " task.l2_measure=examples",
    "model.normalize=true; task.l2_measure=examples",
    "gramian.kind=exact; gramian.batch=independent gramian.rate=0.3 gramian.decay=0.5",
    "gramian.kind=sampled; gramian.rate=0.3 gramian.decay=0.5",
    "gramian.kind=sagram; gramian.rate=0.3 gramian.decay=0.5 gramian.form=pairs",
    "split.kind=time; split.share=0.4",
]


def test_refused_keys_would_have_changed_nothing() -> None:
    """The same training, to the bit, with the keys and without them; `stored` looks at no key."""
    for row in IDLE:
        base, keys = (part.split() for part in row.split(";"))
        for key in keys:
            with pytest.raises(RecipeError, match=key.split("=")[0]):
                Recipe.of(TINY, [*base, key])
        assert torch.equal(trained([*base, *keys]), trained(base)), keys


def unchecked(overrides: list[str]) -> Recipe:
    return Recipe.stored(overridden(TINY, overrides))


def trained(overrides: list[str]) -> torch.Tensor:
    return train(unchecked(overrides), progress=False).block("candidate")[1]


def test_each_version_is_tested_on_the_interval_after_it() -> None:
    for values, ends in (
        ({"versions": [0.6, 0.75]}, [0.6, 0.75, 0.9]),  # as far again
        ({"versions": [0.5, 0.9]}, [0.5, 0.9, 1.0]),  # but not past the end
        ({"versions": [0.5], "end": 0.6}, [0.5, 0.6]),
    ):
        settings: dict[str, Any] = {"kind": "time", **values}
        assert SplitRecipe(**settings).ends == pytest.approx(ends)


def test_a_model_as_of_a_version_is_that_one_at_every_version() -> None:
    model = ModelRecipe.of({"kind": "graphsage", "dim": [4, 8], "scale": 0.3, "layers": [1, 2]})
    first = model.as_of(0)
    assert [first.dim_of(version) for version in (0, 5)] == [4, 4]
    assert first.chosen.options(5)["layers"] == model.chosen.options(0)["layers"] == 1
    assert (first.kind, first.scale) == ("graphsage", 0.3)


def test_a_preset_fills_what_is_open_and_what_is_written_or_set_wins() -> None:
    values = flat(Recipe.of({"preset": "paper", **GOOD}).model_dump(mode="json"))
    expected = flat(PAPER) | {f"upgrade.{k}": v for k, v in METHODS["bc-aligner"].items()}
    expected |= {"task.penalty": [0.0], "preset": "paper"}
    assert values == DEFAULTS | expected
    written = {"preset": "paper", **GOOD, "training": {"epochs": 60}, "metrics": ["map@10"]}
    recipe = Recipe.of(written, ["model.dim=8", "task.l2=0.1"])
    assert (recipe.training.epochs, recipe.training.batch_size) == (60, 2048)
    assert (recipe.metrics, recipe.model.dim, recipe.task.l2) == (["map@10"], [8], 0.1)
    assert Recipe.of(GOOD, ["preset=paper"]).training.epochs == 500
    other = Recipe.of({"preset": "paper", **GOOD, "upgrade": {"method": "evergram"}})
    assert (other.upgrade.solver, other.upgrade.objects) == ("closed", "paper-code")
    # Had the preset been another one when it was stored, the stored values would still hold.
    stored = recipe.model_dump(mode="json")
    assert Recipe.stored(stored) == recipe
    stored["upgrade"]["weight"] = 7.0
    assert Recipe.stored(stored).upgrade.weight == 7.0


def test_the_documented_differences_of_the_preset_are_those_of_the_code() -> None:
    def shown(value: Any) -> str:
        (value,) = value if isinstance(value, list) and len(value) == 1 else (value,)
        return "" if value is None else f"`{json.dumps(value)}`"

    rows = ["| key | default | [BC]'s code |", "|---|---|---|"]
    for key, value in flat(PAPER).items():
        if value != DEFAULTS[key] and [value] != DEFAULTS[key]:
            rows.append(f"| `{key}` | {shown(DEFAULTS[key])} | {shown(value)} |")
    text = (ROOT / "docs" / "compare.md").read_text()
    table = text.split("<!-- paper-preset -->\n")[1].split("\n<!-- end paper-preset -->")[0]
    assert table == "\n".join(rows)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_names_settings_that_a_key_beside_it_overrides(method: str) -> None:
    settings = UpgradeRecipe(method=method)
    for key, value in METHODS[method].items():
        assert getattr(settings, key) == value
    assert UpgradeRecipe(method=method, steps="single").steps == "single"


def test_a_comparison_that_cannot_be_is_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"methods": ["best"]},
        {"methods": ["non-bc", "non-bc"]},
        {"seeds": [1, 1]},
        {"lambdas": [1.0], "lambda_methods": ["non-bc"]},
    ]
    for values in wrong:
        with pytest.raises(ValidationError, match=r"best|twice|no λ"):
            CompareRecipe.model_validate(values)
    joint = [name for name, settings in METHODS.items() if settings["fit"] == "joint"]
    assert CompareRecipe(lambdas=[1.0]).lambda_methods == joint


def test_joint_training_solves_for_its_transform_unless_something_else_is_written() -> None:
    for written, solver in (
        ({}, "closed"),
        ({"transform": "residual_mlp"}, "gradient"),
        ({"solver": "gradient"}, "gradient"),
        ({"fit": "posthoc"}, "gradient"),
        ({"method": "bc-aligner"}, "gradient"),
        ({"method": "post-closed"}, "closed"),
        ({"method": "evergram", "solver": "gradient"}, "gradient"),
    ):
        recipe = Recipe.of({"data": {"kind": "synthetic"}, "upgrade": written})
        assert recipe.upgrade.solver == solver
        # Read again as it is stored in a manifest, it stays what it was.
        assert Recipe.of(recipe.model_dump()).upgrade.solver == solver


def test_unknown_kinds_are_left_out_for_an_evaluation_and_nothing_else(small: Recipe) -> None:
    stored = small.model_dump(mode="json")
    assert unknown_kinds(stored) == {}
    assert without_unknown_kinds(stored) == stored
    theirs = {**stored, "gramian": {**stored["gramian"], "kind": "window", "batches": 3}}
    theirs["upgrade"] = {**stored["upgrade"], "transform": "diagonal"}
    theirs["task"] = {**stored["task"], "loss": "quartic"}
    assert unknown_kinds(theirs) == {
        "gramian.kind": "window",
        "upgrade.transform": "diagonal",
        "task.loss": "quartic",
    }
    read = Recipe.stored(without_unknown_kinds(theirs))
    assert (read.split, read.training, read.model) == (small.split, small.training, small.model)
    with pytest.raises(RecipeError, match=r"version 4 of films.*call evergram\.diagnose"):
        refuse_unknown_kinds(theirs, "version 4 of films")


class RoundSettings(KindSettings):
    """A shape without corners."""

    kind = "round"
    radius: int = 1


class SquareSettings(KindSettings):
    """A shape with four corners."""

    kind = "square"
    side: int = 2


class ShapeTable(KindTable):
    """A table that chooses among two shapes."""

    kinds: ClassVar[Any] = {"round": RoundSettings, "square": SquareSettings}
    kind: str = "round"
    colour: str = "red"


def test_a_kind_whose_key_means_another_thing_elsewhere_is_refused() -> None:
    class Clashing(KindSettings):
        """Its radius is of another type than that of `RoundSettings`."""

        kind = "third"
        radius: float = 1.0

    class Coloured(KindSettings):
        """Its colour is the table's own key."""

        kind = "third"
        colour: str = "red"

    for clashing, key in ((Clashing, "radius"), (Coloured, "colour")):

        class Wider(ShapeTable):
            kinds: ClassVar[Any] = {**ShapeTable.kinds, "third": clashing}

        # The others can be chosen as before.
        assert Wider.of({"radius": 3}).chosen == RoundSettings(radius=3)
        with pytest.raises(ValidationError, match=rf"'third' cannot be chosen.*'{key}'"):
            Wider.of({"kind": "third"})


def corpus(queries: int, candidates: int, each: int, **columns: float) -> Corpus:
    """Every query has met `each` candidates."""
    pairs = [(q, (q * 7 + i) % candidates) for q in range(queries) for i in range(each)]
    extra = {name: [value] * len(pairs) for name, value in columns.items()}
    query, candidate = zip(*pairs, strict=True)
    return Corpus.from_tables(pa.table({"query": query, "candidate": candidate, **extra}))


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
    shared = Corpus.from_tables(table, shared_ids=True)
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


@pytest.mark.parametrize("kind", ["bpr", "softmax", "second_order"])
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
    assert FitSettings.of(sweeping, corpus(100, 64, 8), 0).rates == {}


CORPUS = Corpus.from_tables(pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}))


VALUES: dict[str, Any] = {"data": {"kind": "synthetic"}, "seed": 7}


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
