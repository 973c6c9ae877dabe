"""Methods side by side: zero where nothing changes, resumed bit for bit, one recipe a folder."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import time
import tomllib
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reproduction.bc.methods import RECIPES
from reproduction.comparison import compare as compare_module
from reproduction.comparison.__main__ import main
from reproduction.comparison.compare import claim_folder, compare, unmeasurable
from reproduction.comparison.consumer_scores import ConsumerScores
from reproduction.comparison.consumer_tasks import ConsumerTask, Examples
from reproduction.comparison.report import (
    budget_sentences,
    explanation,
    markdown,
    table_rows,
    write_comparison,
)
from reproduction.comparison.settings import CompareSettings, Comparison, Run
from reproduction.comparison.summary import degradation, spread, summarise
from reproduction.comparison.training_budget import (
    PAPER,
    Budget,
    last_gain,
    trained_models,
    training_length,
)
from reproduction.recipe import PaperRecipe
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.data.corpus import Corpus
from evergram.data.split import RowPairs, Split
from evergram.encoders.encoder import SIDES
from evergram.errors import RecipeError
from evergram.lineage.diagnosis import LEAST_QUERIES
from evergram.lineage.lineage import Lineage
from evergram.releasing.past_versions import known_vectors
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import load_corpus, split_for
from evergram.training.checkpoint import load_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe, flat
from evergram.training.recipe.recipe import FIXED
from evergram.training.recipe.tables import METHODS as ALL_METHODS

DOCUMENT = Path(__file__).parents[2] / "reproduction" / "comparison" / "README.md"
METHODS = ["keep-all", "fix-m0", "non-bc", "post-lin-sloss", "bc-aligner"]
TEXT = """
name = "tiny"
[data]
kind = "synthetic"
queries = 300
candidates = 200
interactions = 8000
[split]
kind = "time"
versions = [0.6, 0.7, 0.8]
[model]
dim = [8, 12, 10]
[task]
penalty = 5.0
l2 = 0.1
[training]
epochs = 4
batch_size = 256
table_rate = 0.1
metric = "recall@50"
[compare]
methods = ["keep-all", "fix-m0", "non-bc", "post-lin-sloss", "bc-aligner"]
hidden = [16]
dropout = [0.0]
consumers = 2
epochs = 10
minimum_ratings = 5
"""
VALUES = tomllib.loads(TEXT)


def comparison(*overrides: str, **upgrade: Any) -> Comparison:
    return Comparison.of({**VALUES, "upgrade": upgrade}, overrides)


# The recipe of the papers' experiments.


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("upgrade.select_after=100", "no epoch would be left"),
        ("upgrade.method=post-lin-mloss|upgrade.select_after=4", "passes over all objects"),
        ("training.feature_rate=0.3", "feature tables"),
        ("task.kind=softmax_all|training.short_batch=true", "batches of single pairs"),
        ("split.selection=paper|training.refit=true", "validation pairs apart from the test pairs"),
        ("gramian.gradient=sampled", "that samples entities"),
        ("model.kind=two_tower|model.repeats=true", "graphsage"),
    ],
)
def test_a_key_of_the_papers_that_cannot_be_used_is_named(overrides: str, named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        PaperRecipe.of({"data": {"kind": "synthetic"}}, overrides.split("|"))


# A value of each key of the papers, and what the settings then say.
SAYS: dict[str, tuple[Any, Callable[[Any], Any], Any]] = {
    "split.selection": ("paper", lambda s: s.selects_by, "paper"),
    "model.scale": (0.5, lambda s: s.start_scale, 0.5),
    "model.residual": (False, lambda s: s.options(0)["concatenate"], True),
    "model.repeats": (True, lambda s: s.options(0)["repeats"], True),
    "gramian.gradient": ("sampled", lambda s: s.samples_gradient, True),
    "gramian.correct_start": (
        False,
        lambda s: s.build(2, torch.ones(3), torch.zeros(3, 0)).correct_start,
        False,
    ),
    "training.short_batch": (True, lambda s: s.fills_batches, False),
    "training.feature_rate": (0.5, lambda s: s.feature_table_rate, 0.5),
    "upgrade.transform_rate": (0.5, lambda s: s.transform_training.rate, 0.5),
    "upgrade.objects": ("batch", lambda s: s.transform_training.objects, "batch"),
    "upgrade.rows": (7, lambda s: s.transform_training.rows, 7),
    "upgrade.fit_epochs": (7, lambda s: s.transform_training.epochs, 7),
    "upgrade.select_after": (7, lambda s: s.transform_training.select_after, 7),
}


def test_a_key_of_the_papers_is_what_the_settings_of_every_kind_say() -> None:
    assert SAYS.keys() == PaperRecipe.key_types().keys() - Recipe.key_types().keys()
    for path, (value, says, expected) in SAYS.items():
        table, key = path.split(".")
        kinds = [each for each in PaperRecipe.kinds[table].every() if key in each.model_fields]
        assert kinds
        for settings in kinds:
            batch = {"objects": "batch"} if key == "select_after" else {}
            assert says(settings(**batch, **{key: value})) == expected, (settings, key)


@pytest.mark.parametrize("path", SAYS)
def test_a_stored_recipe_of_the_papers_is_read_as_a_recipe_only_where_both_do_the_same(
    path: str,
) -> None:
    table, key = path.split(".")
    kinds = PaperRecipe.kinds[table].every()
    settings = next(each for each in kinds if key in each.model_fields)
    values = PaperRecipe.of({"data": {"kind": "synthetic"}}).model_dump(mode="json")
    values[table] = settings().model_dump(mode="json")
    assert Recipe.stored(values).data == Recipe.of_data(values).data
    values[table][key] = SAYS[path][0]
    reads = [Recipe.stored, *([Recipe.of_data] if table == "split" else [])]
    for read in reads:
        with pytest.raises(RecipeError, match=re.escape(f"{path} = {SAYS[path][0]!r}")):
            read(values)


def test_the_recipe_of_the_papers_has_the_values_of_every_recipe_and_more() -> None:
    values: dict[str, Any] = {"data": {"kind": "synthetic"}}
    plain, papers = (flat(r.of(values).model_dump(mode="json")) for r in (Recipe, PaperRecipe))
    assert plain.items() <= papers.items()
    fields = [
        (f"{table}.{key}", field.default)
        for table, kinds in PaperRecipe.kinds.items()
        for settings in kinds.every()
        for key, field in settings.model_fields.items()
    ]
    assert {path: value for path, value in fields if path in SAYS} == FIXED


# What is compared.


def test_each_method_takes_the_keys_that_it_uses_and_keeps_its_own() -> None:
    written = {
        "method": "evergram",
        "held_out": 0.2,
        "fit_epochs": 7,
        "weight": 2.0,
        "rows": 64,
        "select_after": 2,
    }
    made = comparison('compare.methods=["joint-notrans", "post-lin-mloss"]', **written)
    keep, joint, post = (
        made.recipes[name].upgrade.model_dump()
        for name in ("keep-all", "joint-notrans", "post-lin-mloss")
    )
    assert {each["alone"] for each in (keep, joint, post)} == {False}
    assert {each["held_out"] for each in (keep, joint, post)} == {0.2}
    assert (joint["weight"], joint["rows"], joint["select_after"]) == (2.0, 64, 2)
    assert joint["transform"] == {"kind": "truncate"}
    assert (post["fit_epochs"], post["select_after"]) == (7, 0)
    assert made.weight == 2.0


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ('compare.methods=["best"]', "compare.methods has 'best'"),
        ('compare.methods=["non-bc", "non-bc"]', "twice"),
        ("compare.seeds=0", "compare.seeds"),
        ("compare.seeds=[1, 1]", "seed twice"),
        ("compare.seeds=[-1]", "-1"),
        ("compare.dropout=[1.0]", "compare.dropout"),
        ("compare.seed=1", "did you mean compare.seeds"),
        ('compare.lambdas=[1]|compare.lambda_methods=["non-bc"]', "'non-bc'"),
        ("upgrade.select_after=4", "no epoch would be left"),
        ("upgrade.method=non-bc", "upgrade.method"),
        ("upgrade.weigth=1", "did you mean .weight."),
        ('upgrade.fit_epochs=7|compare.methods=["bc-aligner"]', "upgrade.fit_epochs is used by"),
        ("upgrade=3", "upgrade is 3"),
        ("training.epochs=0", "training.epochs is 0"),
        ("model.dims=3", "model.dim"),
    ],
)
def test_what_cannot_be_compared_is_named(overrides: str, named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        comparison(*overrides.split("|"))


def test_a_run_has_its_own_seed_epochs_and_strength() -> None:
    made = comparison("seed=5", "compare.seeds=3", "compare.protocol=paper", "training.epochs=500")
    assert list(made.seeds) == [5, 6, 7]
    assert comparison("compare.seeds=[9, 2]").seeds == [9, 2]
    recipe = made.recipe_of(Run("bc-aligner", 2.0), 7)
    assert (recipe.seed, recipe.split.selects_by) == (7, "paper")
    assert recipe.upgrade.model_dump()["weight"] == 2.0
    assert recipe.training.evaluate_share == "full"
    assert "recall@50" in recipe.metrics
    # What goes on from the model before has half of the epochs.
    every = comparison("training.epochs=500", f"compare.methods={list(ALL_METHODS)}")
    epochs = {name: every.recipe_of(Run(name), 0).training.epochs for name in ALL_METHODS}
    assert epochs.pop("finetune-m0") == 250
    assert set(epochs.values()) == {500}


def test_keep_all_comes_first_and_each_run_once() -> None:
    named = comparison('compare.methods=["non-bc", "keep-all"]')
    assert [run.name for run in named.runs] == ["keep-all", "non-bc"]
    swept = comparison(
        'compare.methods=["bc-aligner", "non-bc"]', "compare.lambdas=[16, 1, 4.5]",
        'compare.lambda_methods=["bc-aligner"]',
    )  # fmt: skip
    assert [(weight, run.name) for weight, run in swept.sweep["bc-aligner"].items()] == [
        (1, "bc-aligner-lambda-1"),
        (4.5, "bc-aligner-lambda-4.5"),
        (16, "bc-aligner"),
    ]
    assert len(swept.runs) == 5
    assert named.sweep == {}
    shared = [name for name in ALL_METHODS if Run(name).shares_models]
    assert shared == ["non-bc", "post-lin-sloss", "post-lin-mloss", "post-closed"]


def test_the_document_says_how_long_models_are_trained() -> None:
    text = DOCUMENT.read_text()
    path = RECIPES / "table3-movielens.toml"
    epochs = Comparison.load(path).base.training.epochs
    assert (PAPER.epochs, PAPER.batch_size, PAPER.short_batch) == (500, 2048, True)
    assert (
        f"A model of `reproduction/bc/recipes/{path.name}` has at most {epochs} passes over its "
        f"interactions, {100 * epochs / PAPER.epochs:g} % of [BC]'s {PAPER.epochs}."
    ) in text


# A whole comparison.


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """One comparison that most tests look at, and leave as it is."""
    out = tmp_path_factory.mktemp("comparison") / "out"
    return compare(comparison(), out), out


def numbers(results: dict[str, Any]) -> Any:
    """All but times."""
    text = json.loads(json.dumps(results))
    for row in text["table"]:
        del row["seconds"]
    for runs in text["runs"].values():
        for run in runs.values():
            del run["seconds"]
    return text


@pytest.mark.long
def test_methods_that_change_nothing_measure_zero(done: tuple[dict[str, Any], Path]) -> None:
    results, out = done
    rows = {row["method"]: row for row in results["table"]}
    assert list(rows) == METHODS
    for key in ("intended", "unintended", "total", "error"):
        assert rows["keep-all"][key]["mean"] == 0
    # Always M_0: consumers notice nothing.
    assert rows["fix-m0"]["unintended"]["mean"] == 0
    assert rows["fix-m0"]["error"]["mean"] == 0
    assert rows["fix-m0"]["intended"]["mean"] < 0
    # Keep-All's very models, by file.
    lineages = {name: Lineage.open(out / "seed-0" / name) for name in METHODS}
    for name in ("non-bc", "post-lin-sloss"):
        assert rows[name]["intended"]["mean"] == 0
        assert rows[name]["seconds"]["mean"] >= rows["keep-all"]["seconds"]["mean"] > 0
        for k in (1, 2):
            file = "encoder.safetensors"
            mine, theirs = (lineages[n].manifest(k).files[file] for n in (name, "keep-all"))
            assert mine == theirs
    assert rows["non-bc"]["unintended"]["mean"] < -5
    assert rows["bc-aligner"]["error"]["mean"] < rows["non-bc"]["error"]["mean"]
    # Version 0 is among the three versions, and the same for all.
    error = rows["bc-aligner"]
    assert error["error_after_first"]["mean"] == pytest.approx(1.5 * error["error"]["mean"])
    assert {lineage.newest for lineage in lineages.values()} == {2}
    first = {json.dumps(m.versions[0].files, sort_keys=True) for m in lineages.values()}
    assert len(first) == 1


@pytest.mark.long
def test_consumers_read_the_view_of_version_0(done: tuple[dict[str, Any], Path]) -> None:
    results, out = done
    base, run = (Lineage.open(out / "seed-0" / name) for name in ("fix-m0", "bc-aligner"))
    recipe = comparison().base
    training = split_for(recipe, load_corpus(recipe), 2).training
    total: list[float] = []
    for side, entities in (("query", training.queries), ("candidate", training.candidates)):
        (ids, read), (other, past) = (lineage.view(0).embeddings(side) for lineage in (run, base))
        assert ids.equals(other)
        assert ids.equals(entities.vocabulary.keys)
        # A factorization has a row for those that version 0 has seen alone.
        known = past.abs().sum(1) > 0
        total += (read - past)[known].double().pow(2).sum(1).sqrt().tolist()
    error = results["runs"][0]["bc-aligner"]["error"][2]
    assert error == pytest.approx(sum(total) / len(total), rel=1e-5)


@pytest.mark.long
def test_the_table_the_figures_and_all_numbers_are_written(
    done: tuple[dict[str, Any], Path],
) -> None:
    results, out = done
    assert numbers(json.loads((out / "results.json").read_text())) == numbers(results)
    table = (out / "table.md").read_text()
    assert all(f"| {name} |" in table for name in METHODS)
    assert "rating-deviation is left out" in table
    for name in ("over-time", "by-task"):
        assert (out / f"{name}.svg").read_text().startswith("<svg")
    assert not (out / "by-lambda.svg").exists()
    over = results["over_time"]["bc-aligner"]
    assert [list(over[key]) for key in ("intended", "unintended", "error")] == [
        [0, 1, 2],
        [1, 2],
        [0, 1, 2],
    ]


@pytest.mark.long
def test_an_interrupted_comparison_resumes_to_the_same_numbers(
    done: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real = compare_module.run_version

    def stops(recipe: Recipe, *rest: Any) -> Any:
        calls.append(str(recipe.upgrade.method))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(recipe, *rest)

    monkeypatch.setattr(compare_module, "run_version", stops)
    with pytest.raises(KeyboardInterrupt):
        compare(comparison(), tmp_path / "again")
    results = compare(comparison(), tmp_path / "again")
    # Four methods of two versions and Keep-All: nothing but what was stopped is done twice.
    assert len(calls) == 2 * len(METHODS) + 1
    assert numbers(results) == numbers(done[0])
    # Stopped while it was judging: what is missing is judged again, by the same consumers.
    monkeypatch.undo()
    missing = tmp_path / "again" / "seed-0" / "measured" / "bc-aligner" / "2.json"
    missing.unlink()
    (tmp_path / "again" / "seed-0" / "consumers" / "pair-rating.safetensors").unlink()
    assert numbers(compare(comparison(), tmp_path / "again")) == numbers(done[0])
    assert missing.exists()


@pytest.mark.long
def test_a_killed_comparison_resumes_to_the_same_numbers(
    done: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """The process itself, as soon as the second method has published its version 0."""
    child = get_context("fork").Process(target=compare, args=(comparison(), tmp_path / "killed"))
    child.start()
    until = time.monotonic() + 60
    while not (tmp_path / "killed/seed-0/non-bc/lineage.json").exists() and child.is_alive():
        assert time.monotonic() < until
        time.sleep(0.005)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not (tmp_path / "killed/results.json").exists()
    assert numbers(compare(comparison(), tmp_path / "killed")) == numbers(done[0])


@pytest.mark.long
def test_another_recipe_is_refused_and_a_longer_one_is_not(
    done: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(done[1], out)
    other = ("training.epochs=3", "compare.consumers=1")
    with pytest.raises(RecipeError, match=r"compare\.consumers, training\.epochs changed"):
        compare(comparison(*other), out)
    with pytest.raises(RecipeError, match=r"upgrade\.weight changed"):
        compare(comparison(weight=2.0), out)
    corpus = load_corpus(comparison().base)
    with pytest.raises(RecipeError, match="corpus changed"):
        compare(comparison(), out, corpus.restrict(torch.arange(7000)))
    few = comparison('compare.methods=["bc-aligner"]', "compare.seeds=[0]")
    assert compare(few, out)["table"][0]["unintended"] == done[0]["table"][-1]["unintended"]
    fresh = comparison(*other, 'compare.methods=["fix-m0"]')
    assert len(compare(fresh, out, fresh=True)["table"]) == 1
    names = {path.name for path in (out / "seed-0").iterdir()}
    assert names == {"m0", "keep-all", "fix-m0", "consumers", "measured"}


@pytest.mark.long
def test_a_corpus_without_ratings_leaves_tasks_out(tmp_path: Path) -> None:
    corpus = load_corpus(comparison().base)
    table = corpus.interactions.drop_columns(["value"])
    bare = Corpus(corpus.queries, corpus.candidates, table)
    short = 'compare.methods=["fix-m0"]'
    results = compare(comparison(short), tmp_path / "out", bare)
    assert list(results["tasks"]) == ["activity"]
    assert "no ratings" in results["left_out"][0]
    results = compare(comparison(short, "split.versions=[0.6, 0.7]"), tmp_path / "none", bare)
    assert results["table"][0]["unintended"] is None
    assert "| fix-m0 | -" in (tmp_path / "none" / "table.md").read_text()
    assert not (tmp_path / "none" / "by-task.svg").exists()


@pytest.mark.long
def test_a_sweep_of_lambda_and_seeds(tmp_path: Path) -> None:
    chosen = comparison(
        "compare.seeds=2", 'compare.methods=["bc-aligner"]', "compare.lambdas=[1, 16]",
        'compare.lambda_methods=["bc-aligner"]',
    )  # fmt: skip
    results = compare(chosen, tmp_path / "out")
    rows = results["by_lambda"]["bc-aligner"]
    assert [row["lambda"] for row in rows] == [1, 16]
    # λ = 16 is the method's own.
    assert rows[1]["error"] == results["table"][0]["error"]
    assert rows[0]["error"]["mean"] > rows[1]["error"]["mean"]
    assert len(rows[0]["error"]["each"]) == 2
    assert rows[0]["error"]["deviation"] > 0
    assert (tmp_path / "out" / "by-lambda.svg").exists()


def test_the_command_compares_few_candidates_by_a_metric_that_tells_models_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "few.toml", tmp_path / "out"
    path.write_text(TEXT)
    overrides = [
        "data={kind='synthetic', queries=90, candidates=15, interactions=500}",
        "split.versions=[0.7, 0.85]", "training={epochs=3, batch_size=64}",
        'compare.methods=["finetune-m0"]', "compare.consumers=1", "compare.epochs=2",
        "compare.minimum_ratings=2",
    ]  # fmt: skip
    asked = [str(path), "--out", str(out), *(w for each in overrides for w in ("--set", each))]
    assert main(asked) == 0
    printed = capsys.readouterr().out
    assert "finetune-m0" in printed
    assert str(out) in printed
    facts = json.loads((out / "results.json").read_text())
    assert facts["metric"] not in ("recall@20", "recall@15")
    runs = facts["runs"]["0"]
    assert all(0 < value < 1 for run in runs.values() for value in run["intended"].values())
    # What goes on from the model before has half of the epochs.
    passes = {name: run["trained"]["1"]["passes"] for name, run in runs.items()}
    assert passes == {"keep-all": 3, "finetune-m0": 1}
    for more, named in (
        (["--set", "seed=1"], "--fresh"),
        (["--set", "split.versions=[0.7]"], "split.versions"),
        (["--set", "split.kind=random"], "split.kind"),
    ):
        assert main([*asked, *more]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert named in error


# The folder of the results, and what is said before anything is trained.

CORPUS = Corpus.of(pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}))


def test_a_folder_belongs_to_one_recipe_and_corpus(tmp_path: Path) -> None:
    out = tmp_path / "out"
    claim_folder(out, comparison().identity, CORPUS, fresh=False)
    (out / "seed-0" / "m0").mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    more = comparison('compare.methods=["evergram"]', "compare.seeds=5", "compare.lambdas=[1]")
    before = (out / "recipe.json").read_bytes()
    claim_folder(out, more.identity, CORPUS, fresh=False)
    assert (out / "recipe.json").read_bytes() == before
    other = comparison("training.epochs=5").identity
    with pytest.raises(RecipeError, match=r"another recipe \(training\.epochs changed\)"):
        claim_folder(out, other, CORPUS, fresh=False)
    assert (out / "seed-0").is_dir()
    claim_folder(out, other, CORPUS, fresh=True)
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "recipe.json"]
    (out / "recipe.json").write_text("{")
    for place, named in ((out / "notes.txt", "is a file"), (out, "cannot be read")):
        with pytest.raises(RecipeError, match=named):
            claim_folder(place, other, CORPUS, fresh=False)


def split_of(objects: int, tested: int) -> Split:
    """So many queries and candidates, and so many test queries."""
    ids = list(range(objects))
    corpus = Corpus.of(pa.table({"query": ids, "candidate": ids}))
    rows = torch.arange(tested)
    return Split(corpus, RowPairs.none(), RowPairs(rows, rows), 0)


def task_of(corpus_rows: int, label: Sequence[bool]) -> ConsumerTask:
    rows = {"candidate": torch.arange(corpus_rows)}
    old, new = (Examples(k, rows, torch.tensor(label)) for k in (0, 1))
    return ConsumerTask("activity", old, old, {1: new})


def test_each_lack_is_a_sentence() -> None:
    task, whole = task_of(2, [True, False]), split_of(LEAST_QUERIES, LEAST_QUERIES)
    two = comparison("compare.seeds=2")
    assert unmeasurable(two, [whole, whole], [task], []) == []
    splits = [split_of(30, LEAST_QUERIES), split_of(40, 3)]
    few, unknown, seeds = unmeasurable(comparison(), splits, [task], [])
    assert few.startswith("Version 1 is tested on 3 queries")
    assert "25% of the objects of version 1 have no version-0 embedding" in unknown
    assert "compare.seeds" in seeds
    # An encoder of features embeds objects that it has never seen.
    features = comparison("compare.seeds=2", "model={kind='two_tower', dim=4}")
    assert len(unmeasurable(features, splits, [task], [])) == 1
    why, none = unmeasurable(two, [whole, whole], [], ["activity is left out."])
    assert why == "activity is left out."
    assert none.startswith("No consumer task is left")


# How long models were trained.

TINY = tiny_recipe("training.epochs=6", "training.patience=0", "upgrade.alone=false")
METRIC = TINY.training.metric


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """Versions 0 and 1 of `TINY`."""
    made = Lineage.create(tmp_path_factory.mktemp("trained") / "lineage", TINY.name)
    made.publish(train(TINY, progress=False))
    made.publish(upgrade(TINY, made, progress=False))
    return made


def test_a_model_counts_once_with_its_length(lineage: Lineage) -> None:
    trained = {"keep-all": {0, 1}, "bc-aligner": {1}, "finetune-m0": {1}}
    for method in (*trained, "non-bc", "post-lin-sloss", "fix-m0"):
        assert set(trained_models(Run(method), lineage, TINY)) == trained.get(method, set()), method
    length = trained_models(Run("keep-all"), lineage, TINY)[0]
    report = lineage.metrics(0)
    epochs, size = (report["training"][key] for key in ("epochs", "batch_size"))
    pairs = report["data"]["interactions"]
    assert length["passes"] == epochs == 6
    assert length["share_of_passes"] == epochs / 500
    assert length["share_of_steps"] == epochs * (pairs // size) / (500 * -(-pairs // 2048))
    values = [h[METRIC] for h in report["training"]["history"]]
    gain = max(0.0, max(values[4:]) / max(values[:4]) - 1)
    assert length["last_gain"] == pytest.approx(gain)
    assert length["on_plateau"] is (gain < 0.01)
    # Epochs that may not be selected do not count.
    update = {"upgrade": TINY.upgrade.model_copy(update={"select_after": 5})}
    joint = trained_models(Run("bc-aligner"), lineage, TINY.model_copy(update=update))[1]
    assert (joint["last_gain"], joint["on_plateau"]) == (None, None)


def history(*values: float) -> list[dict[str, float]]:
    return [{"epoch": epoch, METRIC: value} for epoch, value in enumerate(values, 1)]


def test_a_length_is_a_share_of_the_reference_on_the_same_pairs() -> None:
    length = training_length(Budget(30, 16_384), PAPER, 16_384 * 2, history(0.1, 0.2), METRIC)
    assert length.passes == 30
    assert length.share_of_passes == pytest.approx(0.06)
    assert length.share_of_steps == pytest.approx(30 * 2 / (500 * 16))
    assert length.on_plateau is None  # no evaluation is of the last fifth


def test_the_gain_is_of_the_last_fifth_over_the_best_before() -> None:
    for values, gain in [
        ((0.1, 0.2, 0.3, 0.4, 0.5), 0.25),
        ((0.1, 0.2, 0.3, 0.4, 0.402), 0.005),
        ((0.1, 0.5, 0.3, 0.4, 0.45), 0.0),  # the best came before
    ]:
        assert last_gain(history(*values), METRIC, 5) == pytest.approx(gain)
        length = training_length(Budget(5, 1), Budget(5, 1), 9, history(*values), METRIC)
        assert length.on_plateau is (gain < 0.01)


# What consumers read.

CPU, QUIET = torch.device("cpu"), Progress(quiet=True)
SETTINGS = CompareSettings(hidden=[4], dropout=[0.0], consumers=2, epochs=2)


@pytest.fixture(scope="module")
def lineages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lineage]:
    """Two lineages of the same two versions, that go by other names."""
    folder = tmp_path_factory.mktemp("scores")
    first = tiny_lineage(folder / "keep-all")
    recipe = tiny_recipe("upgrade.alone=false")
    first.publish(upgrade(recipe, first, progress=False, readings=False))
    shutil.copytree(folder / "keep-all", folder / "bc-aligner")
    return {"keep-all": first, "bc-aligner": Lineage.open(folder / "bc-aligner")}


def test_others_read_the_chain_and_what_is_in_files_is_not_made_again(
    lineages: dict[str, Lineage], tmp_path: Path
) -> None:
    corpus = split_for(tiny_recipe(), load_corpus(tiny_recipe()), 0).training
    count = corpus.counts("candidate")
    # Is a candidate met more than the median?
    task = task_of(len(count), (count > count.median()).tolist())
    scores = ConsumerScores(tmp_path, SETTINGS, [task], [corpus, corpus], CPU)
    first = scores.of(lineages, QUIET)
    assert first["keep-all"]["error"] == {0: 0.0, 1: 0.0}
    assert first["bc-aligner"]["known"] == {0: 1.0, 1: 1.0}
    assert len(first["bc-aligner"]["auc"]["activity"][1]) == SETTINGS.consumers
    # The error by hand: the mean distance of what is read from what version 0 has.
    lineage = lineages["bc-aligner"]
    past, _ = known_vectors(load_encoder(lineage, 0), corpus)
    new, _ = known_vectors(load_encoder(lineage, 1), corpus)
    back = torch.cat([lineage.chain.apply(new[s], 1, 0) - past[s] for s in SIDES])
    expected = float(back.double().square().sum(1).sqrt().mean())
    assert first["bc-aligner"]["error"][1] == pytest.approx(expected, rel=1e-5)

    path = tmp_path / "measured" / "bc-aligner" / "1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "error": 7.0}))
    consumers = tmp_path / "consumers" / "activity.safetensors"
    before = consumers.read_bytes()
    assert scores.of(lineages, QUIET)["bc-aligner"]["error"] == {0: 0.0, 1: 7.0}
    # One that is missing is measured by the same consumers; damaged ones are fitted again.
    for content in (before, b"cut"):
        consumers.write_bytes(content)
        path.unlink(missing_ok=True)
        assert scores.of(lineages, QUIET) == first
    assert consumers.read_bytes() == before


# The metrics, by hand.

POSITIVE = st.floats(0.05, 1.0)


def test_degradation_is_taken_after_averages() -> None:
    metrics = degradation(
        {0: 0.2, 1: 0.1, 2: 0.1},
        {"late": {2: 0.6}, "early": {1: 0.7, 2: 0.5}},
        {0: 0.0, 1: 0.3, 2: 0.6},
        {0: 0.2, 1: 0.2, 2: 0.1},
        {"late": {2: 0.8}, "early": {1: 0.7, 2: 0.7}},
    )
    # (0.4 - 0.5) / 0.5, and not the mean of 0, -50 and 0.
    assert metrics.intended == pytest.approx(-20)
    assert metrics.intended_at == pytest.approx({0: 0, 1: -50, 2: 0})
    # Tasks: 0.6 and 0.6 beside 0.8 and 0.7: (0.6 - 0.75) / 0.75.
    assert metrics.unintended == pytest.approx(-20)
    assert metrics.unintended_at == pytest.approx({1: 0, 2: 100 * (0.55 - 0.75) / 0.75})
    assert metrics.total == pytest.approx(-40)
    assert metrics.error == pytest.approx(0.3)
    # Over k >= 1 it is (K + 1) / K as much.
    assert metrics.error_after_first == pytest.approx(0.3 * 3 / 2)
    assert metrics.by_task["early"] == pytest.approx({1: 0, 2: 100 * -0.2 / 0.7})


@pytest.mark.long
@given(st.lists(POSITIVE, min_size=1, max_size=5), st.data())
def test_a_method_that_equals_keep_all_costs_nothing(
    values: list[float], data: st.DataObject
) -> None:
    intended = dict(enumerate(values))
    tasks = {
        name: data.draw(st.dictionaries(st.integers(1, 4), POSITIVE, min_size=1))
        for name in data.draw(st.sets(st.sampled_from("abc")))
    }
    metrics = degradation(intended, tasks, dict.fromkeys(intended, 0.0), intended, tasks)
    assert metrics.intended == 0
    assert metrics.error == 0
    assert (metrics.unintended is None) == (not tasks)
    assert not any(metrics.unintended_at.values())
    assert not any(any(by.values()) for by in metrics.by_task.values())


# Two seeds and two methods with numbers that are easy to sum.


def measured(
    intended: float, auc: float, error: float, gains: dict[int, float | None] | None = None
) -> dict[str, Any]:
    """Two versions; two consumers a task, around `auc`; 20 passes, with steps that are four times
    as large as the reference's."""
    length = {"passes": 20, "share_of_passes": 0.04, "share_of_steps": 0.01}
    return {
        "intended": {0: 0.2, 1: intended},
        "auc": {"activity": {1: [auc - 0.1, auc + 0.1]}, "pair-rating": {1: [auc, auc]}},
        "error": {0: 0.0, 1: error},
        "seconds": 2.0,
        "trained": {
            k: {**length, "last_gain": gain, "on_plateau": None if gain is None else gain < 0.01}
            for k, gain in (gains or {}).items()
        },
    }


def results(*seeds: dict[str, Any]) -> dict[str, Any]:
    """The results of a comparison with these measures."""
    runs = dict(enumerate(seeds))
    return {
        "name": "planted",
        "protocol": "strict",
        "metric": "recall@50",
        "lambda": 16.0,
        "times": [0.5, 0.6],
        "seeds": list(runs),
        "reference_budget": {"epochs": 500, "batch_size": 2048},
        "tasks": {"activity": {}, "pair-rating": {}},
        "left_out": ["Something is left out."],
        **summarise(runs, ["keep-all", "new"], {"new": {1.0: "new-1", 16.0: "new"}}),
        "runs": runs,
    }


SEEDS = [
    {
        "keep-all": measured(0.2, 0.8, 0.0, {0: 0.004, 1: 0.02}),
        "new": measured(0.1, 0.6, 1.0, {1: None}),
        "new-1": measured(0.2, 0.4, 3.0),
    },
    {
        "keep-all": measured(0.3, 0.8, 0.0),
        "new": measured(0.3, 0.4, 2.0),
        "new-1": measured(0.3, 0.4, 3.0),
    },
]


def test_means_and_deviations_over_seeds() -> None:
    assert spread([1.0, 3.0]) == {"mean": 2.0, "deviation": math.sqrt(2), "each": [1.0, 3.0]}
    assert spread([1.0])["deviation"] is None
    summary = results(*SEEDS)
    keep, new = summary["table"]
    assert keep["total"]["each"] == [0, 0]
    # Seed 0: 0.15 beside 0.2; seed 1: 0.25 beside 0.25.
    assert new["intended"]["each"] == pytest.approx([-25, 0])
    # 0.6 beside 0.8, and 0.4 beside 0.8.
    assert new["unintended"]["each"] == pytest.approx([-25, -50])
    assert new["unintended"]["deviation"] == pytest.approx(25 / math.sqrt(2))
    assert new["total"]["each"] == pytest.approx([-50, -50])
    assert new["error"]["mean"] == pytest.approx(0.75)
    assert new["error_after_first"]["mean"] == pytest.approx(1.5)
    assert summary["keep_all"]["intended"]["each"] == pytest.approx([0.2, 0.25])
    assert summary["keep_all"]["unintended"]["mean"] == pytest.approx(0.8)
    assert summary["over_time"]["new"]["intended"][1]["each"] == pytest.approx([-50, 0])
    assert list(summary["over_time"]["new"]["unintended"]) == [1]
    assert summary["by_task"]["new"]["activity"][1]["each"] == pytest.approx([-25, -50])
    assert [row["lambda"] for row in summary["by_lambda"]["new"]] == [1.0, 16.0]
    assert summary["by_lambda"]["new"][0]["unintended"]["each"] == pytest.approx([-50, -50])
    assert summary["by_lambda"]["new"][1]["error"]["mean"] == pytest.approx(0.75)


def test_the_table_the_explanation_and_the_figures(tmp_path: Path) -> None:
    two, one = results(*SEEDS), results(SEEDS[0])
    text = markdown(two)
    assert "| new | -12.50 ± 17.68 | -37.50 ± 17.68 | -50.00 ± 0.00 | 0.750 ± 0.354 | 2.0 |" in text
    assert "Keep-All itself: recall@50 0.2250 ± 0.0354, ROC-AUC 0.8000 ± 0.0000." in text
    for comparison_, words in ((one, "1 seed, "), (two, "2 seeds, ")):
        first, *_, tasks, left_out = explanation(comparison_)
        assert f"planted, {words}strict selection, versions at 0.5, 0.6, λ = 16" in first
        assert tasks == "Consumer tasks: activity, pair-rating."
        assert left_out == "Something is left out."
    write_comparison(tmp_path, two)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"table.md", "over-time.svg", "by-task.svg", "by-lambda.svg"}
    # One seed has no deviation, and a reference of 0 no percentage.
    zero = {name: {**run, "intended": {0: 0.0, 1: 0.0}} for name, run in SEEDS[0].items()}
    assert table_rows(results(zero))[1][1:3] == ["–", "-25.00"]


def test_every_model_has_its_gain_and_what_was_not_measured_is_said() -> None:
    one = results(SEEDS[0])
    length, plateau = budget_sentences(one)
    assert "20 passes over its interactions: 4 % of the 500 of [BC]'s code" in length
    assert "1 % of its steps, which are of 2,048 pairs" in length
    assert "less than 1% for 1 of 3 models, which end on a plateau; 1 do not" in plateau
    assert plateau.endswith("and of 1 it is not measured.")
