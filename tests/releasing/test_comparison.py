"""Methods side by side: zero where nothing changes, resumed bit for bit, one recipe a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.tiny_training import tiny_lineage, tiny_recipe

from evergram.data.corpus import Corpus
from evergram.data.split import RowPairs, Split
from evergram.encoders.features import SIDES
from evergram.errors import RecipeError
from evergram.evaluation.consumer_tasks import ConsumerTask, Examples
from evergram.lineage.lineage import Lineage
from evergram.lineage.version_warnings import LEAST_QUERIES
from evergram.releasing.comparison.compare import compare
from evergram.releasing.comparison.consumer_scores import ConsumerScores
from evergram.releasing.comparison.results_folder import claim_folder
from evergram.releasing.comparison.runs import Run, recipe_of, runs_of, seeds_of, sweep_of
from evergram.releasing.comparison.scope import unmeasurable
from evergram.releasing.comparison.trained_models import trained_models
from evergram.releasing.past_versions import known_vectors
from evergram.releasing.upgrade import train, upgrade
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus, split_for
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe
from evergram.training.recipe.methods import METHODS as ALL_METHODS
from evergram.training.recipe.upgrade import CompareSettings, PosthocUpgrade

METHODS = ["keep-all", "fix-m0", "non-bc", "post-lin-sloss", "bc-aligner"]


RECIPE = Recipe.of(
    {
        "name": "tiny",
        "data": {"kind": "synthetic", "queries": 300, "candidates": 200, "interactions": 8000},
        "split": {"kind": "time", "versions": [0.6, 0.7, 0.8]},
        "model": {"dim": [8, 12, 10]},
        "task": {"penalty": 5.0, "l2": 0.1},
        "training": {
            "epochs": 4,
            "batch_size": 256,
            "table_rate": 0.1,
            "metric": "recall@50",
        },
        "compare": {
            "methods": METHODS,
            "hidden": [16],
            "dropout": [0.0],
            "consumers": 2,
            "epochs": 10,
            "minimum_ratings": 5,
        },
    }
)


VALUES = RECIPE.model_dump(exclude_unset=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """One comparison that most tests look at, and leave as it is."""
    out = tmp_path_factory.mktemp("comparison") / "out"
    return compare(RECIPE, out), out


@pytest.mark.long
def test_methods_that_change_nothing_measure_zero(done: tuple[dict[str, Any], Path]) -> None:
    results, _ = done
    rows = {row["method"]: row for row in results["table"]}
    assert list(rows) == METHODS
    for key in ("intended", "unintended", "total", "error"):
        assert rows["keep-all"][key]["mean"] == 0
    # Always M_0: consumers notice nothing.
    assert rows["fix-m0"]["unintended"]["mean"] == 0
    assert rows["fix-m0"]["error"]["mean"] == 0
    assert rows["fix-m0"]["intended"]["mean"] < 0
    # Keep-All's very models.
    for name in ("non-bc", "post-lin-sloss"):
        assert rows[name]["intended"]["mean"] == 0
        assert rows[name]["seconds"]["mean"] >= rows["keep-all"]["seconds"]["mean"] > 0
    assert rows["non-bc"]["unintended"]["mean"] < -5
    assert rows["bc-aligner"]["error"]["mean"] < rows["non-bc"]["error"]["mean"]
    # Version 0 is among the three versions.
    error = rows["bc-aligner"]
    assert error["error_after_first"]["mean"] == pytest.approx(1.5 * error["error"]["mean"])


@pytest.mark.long
def test_the_table_the_figures_and_all_numbers_are_written(
    done: tuple[dict[str, Any], Path],
) -> None:
    results, out = done
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(results))
    table = (out / "table.md").read_text()
    assert all(f"| {name} |" in table for name in METHODS)
    assert "rating-deviation is left out" in table
    for name in ("over-time", "by-task"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "by-lambda.png").exists()
    over = results["over_time"]["bc-aligner"]
    assert [list(over[key]) for key in ("intended", "unintended", "error")] == [
        [0, 1, 2],
        [1, 2],
        [0, 1, 2],
    ]


@pytest.mark.long
def test_another_recipe_is_refused_and_a_longer_one_is_not(
    done: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(done[1], out)
    other = Recipe.of(VALUES, ["training.epochs=3", 'compare.methods=["fix-m0"]'])
    with pytest.raises(RecipeError, match=r"training\.epochs changed"):
        compare(other, out)
    few = Recipe.of(VALUES, ['compare.methods=["bc-aligner"]', "compare.seeds=[0]"])
    assert compare(few, out)["table"][0]["unintended"] == done[0]["table"][-1]["unintended"]
    assert len(compare(other, out, fresh=True)["table"]) == 1
    made = {"m0", "keep-all", "fix-m0", "consumers", "measured"}
    assert {p.name for p in (out / "seed-0").iterdir()} == made


@pytest.mark.long
def test_a_corpus_without_ratings_leaves_tasks_out(tmp_path: Path) -> None:
    corpus = load_corpus(RECIPE)
    table = corpus.interactions.drop_columns(["value"])
    bare = Corpus(corpus.queries, corpus.candidates, table)
    short = Recipe.of(VALUES, ['compare.methods=["fix-m0"]'])
    results = compare(short, tmp_path / "out", bare)
    assert list(results["tasks"]) == ["activity"]
    assert "no ratings" in results["left_out"][0]
    two = Recipe.of(short.model_dump(exclude_unset=True), ["split.versions=[0.6, 0.7]"])
    results = compare(two, tmp_path / "none", bare)
    assert results["table"][0]["unintended"] is None
    assert "| fix-m0 | -" in (tmp_path / "none" / "table.md").read_text()
    assert not (tmp_path / "none" / "by-task.png").exists()


@pytest.mark.long
def test_a_sweep_of_lambda_and_seeds(tmp_path: Path) -> None:
    chosen = Recipe.of(
        VALUES,
        [
            "compare.seeds=2",
            'compare.methods=["bc-aligner"]',
            "compare.lambdas=[1, 16]",
            'compare.lambda_methods=["bc-aligner"]',
        ],
    )
    assert [run.name for run in runs_of(chosen)] == [
        "keep-all",
        "bc-aligner",
        "bc-aligner-lambda-1",
    ]
    results = compare(chosen, tmp_path / "out")
    rows = results["by_lambda"]["bc-aligner"]
    assert [row["lambda"] for row in rows] == [1, 16]
    # λ = 16 is the method's own.
    assert rows[1]["error"] == results["table"][0]["error"]
    assert rows[0]["error"]["mean"] > rows[1]["error"]["mean"]
    assert len(rows[0]["error"]["each"]) == 2
    assert rows[0]["error"]["deviation"] > 0
    assert (tmp_path / "out" / "by-lambda.png").exists()


def test_bad_settings_are_refused() -> None:
    for overrides, named in (
        (['compare.methods=["best"]'], "'best'"),
        (["compare.seeds=0"], "compare.seeds"),
        (["compare.seeds=[1, 1]"], "compare.seeds"),
        (["compare.dropout=[1.0]"], "compare.dropout"),
        (["upgrade.select_after=4"], "no epoch would be left"),
        (["compare.lambdas=[1]", 'compare.lambda_methods=["non-bc"]'], "which has no λ"),
    ):
        with pytest.raises(RecipeError, match=named):
            Recipe.of(VALUES, overrides)


def test_what_cannot_be_compared_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    untrained = {"training": RECIPE.training.model_copy(update={"epochs": 0})}
    for recipe, named in (
        (Recipe.of(VALUES, ["upgrade.consumer_weight=0.5"]), r"consumer_weight is 0\.5"),
        (Recipe.of(VALUES, ["split.versions=[0.5]"]), "along time"),
        (RECIPE.model_copy(update=untrained), r"set training\.epochs above 0"),
    ):
        with pytest.raises(RecipeError, match=named):
            compare(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


CORPUS = Corpus.from_tables(pa.table({"query": ["a", "b"], "candidate": ["x", "y"]}))
PLAIN: dict[str, Any] = {
    "seed": 0,
    "training": {"epochs": 4, "metric": "recall@20"},
    "compare": {
        "epochs": 9,
        "methods": ["non-bc"],
        "seeds": 1,
        "lambdas": [],
        "lambda_methods": [],
    },
}


def test_another_recipe_or_corpus_is_refused_by_name_and_fresh_removes_its_runs(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    claim_folder(out, PLAIN, CORPUS, fresh=False)
    (out / "seed-0" / "m0").mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    other = {**PLAIN, "training": {"epochs": 5, "metric": "recall@20"}}
    with pytest.raises(RecipeError, match=r"another recipe \(training\.epochs changed\)"):
        claim_folder(out, other, CORPUS, fresh=False)
    turned = Corpus.from_tables(pa.table({"query": ["b", "a"], "candidate": ["y", "x"]}))
    with pytest.raises(RecipeError, match=r"another recipe \(corpus changed\)"):
        claim_folder(out, PLAIN, turned.restrict(turned.column("query")[:1]), fresh=False)
    assert (out / "seed-0").is_dir()
    claim_folder(out, other, CORPUS, fresh=True)
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "recipe.json"]


def test_a_file_or_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="is a file; a comparison is written into a folder"):
        claim_folder(tmp_path / "file", PLAIN, CORPUS, fresh=False)
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(RecipeError, match=r"recipe\.json cannot be read .*; choose another folder"):
        claim_folder(tmp_path, PLAIN, CORPUS, fresh=False)


def runs_recipe(*overrides: str) -> Recipe:
    values = {"data": {"kind": "synthetic"}, "compare": {"methods": ["bc-aligner", "non-bc"]}}
    return Recipe.of(values, overrides)


def test_keep_all_comes_first_and_each_run_once() -> None:
    assert [run.name for run in runs_of(runs_recipe())] == ["keep-all", "bc-aligner", "non-bc"]
    named = runs_recipe('compare.methods=["non-bc", "keep-all"]')
    assert [run.name for run in runs_of(named)] == ["keep-all", "non-bc"]


def test_a_sweep_has_a_run_for_each_other_weight() -> None:
    swept = runs_recipe("compare.lambdas=[16, 1, 4.5]", 'compare.lambda_methods=["bc-aligner"]')
    # λ = 16 is the method's own.
    assert [(w, run.name) for w, run in sweep_of(swept)["bc-aligner"].items()] == [
        (1, "bc-aligner-lambda-1"),
        (4.5, "bc-aligner-lambda-4.5"),
        (16, "bc-aligner"),
    ]
    assert len(runs_of(swept)) == 5
    assert sweep_of(runs_recipe()) == {}


def test_only_methods_that_leave_the_model_as_it_is_share_keep_alls() -> None:
    shared = [name for name in ALL_METHODS if Run(name).shares_models]
    assert shared == ["non-bc", "post-lin-sloss", "post-lin-mloss", "post-closed"]


def test_a_number_of_seeds_starts_at_the_recipes() -> None:
    assert list(seeds_of(runs_recipe("seed=5", "compare.seeds=3"))) == [5, 6, 7]
    assert list(seeds_of(runs_recipe("seed=5", "compare.seeds=[9, 2]"))) == [9, 2]


def test_a_methods_settings_win_over_those_of_the_recipe() -> None:
    other = runs_recipe(
        "upgrade.transform=affine", "upgrade.held_out=0.2", "training.metric=recall@50"
    )
    chosen = recipe_of(other, Run("post-lin-mloss", 2.0), 7, "paper")
    upgrade = chosen.upgrade
    assert isinstance(upgrade, PosthocUpgrade)
    assert (upgrade.transform.kind, upgrade.steps) == ("linear", "multi")
    assert (upgrade.held_out, upgrade.alone) == (0.2, False)
    assert (chosen.seed, chosen.split.selects_by) == (7, "paper")
    joint = recipe_of(other, Run("bc-aligner", 2.0), 7, "paper").upgrade
    assert joint.model_dump()["weight"] == 2.0
    assert "recall@50" in chosen.metrics


def test_what_goes_on_from_the_model_before_has_half_of_the_epochs() -> None:
    paper = runs_recipe("training.epochs=500")
    epochs = {name: recipe_of(paper, Run(name), 0, "paper").training.epochs for name in ALL_METHODS}
    assert epochs.pop("finetune-m0") == 250
    assert set(epochs.values()) == {500}
    assert recipe_of(
        runs_recipe("training.epochs=1"), Run("finetune-m0"), 0, "paper"
    ).training.epochs


def split_of(objects: int, tested: int) -> Split:
    """So many queries and candidates, and so many test queries."""
    ids = list(range(objects))
    corpus = Corpus.from_tables(pa.table({"query": ids, "candidate": ids}))
    rows = torch.arange(tested)
    return Split(corpus, RowPairs.none(), RowPairs(rows, rows), 0)


@pytest.fixture
def task() -> ConsumerTask:
    examples = Examples(0, {"candidate": torch.arange(2)}, torch.tensor([True, False]))
    return ConsumerTask("activity", examples, examples, {1: examples})


def test_each_lack_is_a_sentence(task: ConsumerTask) -> None:
    first, second = split_of(30, LEAST_QUERIES), split_of(40, 3)
    splits = [first, second]
    few, unknown, seeds = unmeasurable(splits, [task], [], seeds=1, reads_features=False)
    assert few.startswith("Version 1 is tested by 3 queries")
    assert "of the objects of version 1, 25% have no embedding" in unknown
    assert seeds == "With one seed no deviation is measured; set compare.seeds for more."
    why, *_ = unmeasurable(splits, [], ["activity is left out."], seeds=2, reads_features=False)
    assert why == "activity is left out."
    whole = [split_of(LEAST_QUERIES, LEAST_QUERIES)] * 2
    assert unmeasurable(whole, [task], [], seeds=2, reads_features=False) == []
    # An encoder of features embeds objects that it has never seen.
    assert len(unmeasurable(splits, [task], [], seeds=2, reads_features=True)) == 1


ROOT = Path(__file__).resolve().parents[2]

TINY = tiny_recipe("training.epochs=6", "training.patience=0", "upgrade.alone=false")


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """Versions 0 and 1 of `TINY`."""
    made = Lineage.create(tmp_path_factory.mktemp("trained") / "lineage", TINY.name)
    made.publish(train(TINY, progress=False))
    made.publish(upgrade(TINY, made, progress=False))
    return made


def test_a_model_counts_once(lineage: Lineage) -> None:
    trained = {"keep-all": {0, 1}, "bc-aligner": {1}, "finetune-m0": {1}}
    for method in (*trained, "non-bc", "post-lin-sloss", "fix-m0"):
        assert set(trained_models(Run(method), lineage, TINY)) == trained.get(method, set()), method


def test_lengths_come_from_the_metrics_of_the_version(lineage: Lineage) -> None:
    length = trained_models(Run("keep-all"), lineage, TINY)[0]
    report = lineage.metrics(0)
    epochs, size = (report["training"][key] for key in ("epochs", "batch_size"))
    pairs = report["data"]["interactions"]
    assert length["passes"] == epochs == 6
    assert length["share_of_passes"] == epochs / 500
    assert length["share_of_steps"] == epochs * (pairs // size) / (500 * -(-pairs // 2048))
    values = [h[TINY.training.metric] for h in report["training"]["history"]]
    gain = max(0.0, max(values[4:]) / max(values[:4]) - 1)
    assert length["last_gain"] == pytest.approx(gain)
    assert length["on_plateau"] is (gain < 0.01)


def test_epochs_that_a_joint_run_may_not_select_do_not_count(lineage: Lineage) -> None:
    update = {"upgrade": TINY.upgrade.model_copy(update={"select_after": 5})}
    late = TINY.model_copy(update=update)
    joint = trained_models(Run("bc-aligner"), lineage, late)[1]
    assert joint["last_gain"] is None
    assert joint["on_plateau"] is None
    assert trained_models(Run("bc-aligner"), lineage, TINY)[1]["last_gain"] is not None
    alone = trained_models(Run("keep-all"), lineage, late)[1]
    assert alone == trained_models(Run("keep-all"), lineage, TINY)[1]


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


@pytest.fixture
def training() -> list[Corpus]:
    corpus = split_for(tiny_recipe(), load_corpus(tiny_recipe()), 0).training
    return [corpus, corpus]


def activity(corpus: Corpus) -> ConsumerTask:
    """Is a candidate met more than the median?"""
    count = corpus.counts("candidate")
    label = count > count.median()
    rows = torch.arange(len(count))
    examples = {k: Examples(k, {"candidate": rows}, label) for k in (0, 1)}
    return ConsumerTask("activity", examples[0], examples[0], {1: examples[1]})


def test_keep_all_reads_version_0_itself_and_others_read_the_chain(
    lineages: dict[str, Lineage], training: list[Corpus], tmp_path: Path
) -> None:
    task = activity(training[0])
    scores = ConsumerScores(tmp_path, SETTINGS, [task], training, CPU).of(lineages, QUIET)
    assert scores["keep-all"]["error"] == {0: 0.0, 1: 0.0}
    assert scores["bc-aligner"]["known"] == {0: 1.0, 1: 1.0}
    assert len(scores["bc-aligner"]["auc"]["activity"][1]) == SETTINGS.consumers
    # The error by hand: the mean distance of what is read from what version 0 has.
    lineage = lineages["bc-aligner"]
    past, _ = known_vectors(load_encoder(lineage, 0), training[1])
    new, _ = known_vectors(load_encoder(lineage, 1), training[1])
    back = torch.cat([lineage.chain.apply(new[s], 1, 0) - past[s] for s in SIDES])
    expected = float(back.double().square().sum(1).sqrt().mean())
    assert scores["bc-aligner"]["error"][1] == pytest.approx(expected, rel=1e-5)


def test_scores_and_consumers_in_files_are_not_made_again(
    lineages: dict[str, Lineage], training: list[Corpus], tmp_path: Path
) -> None:
    task = activity(training[0])
    first = ConsumerScores(tmp_path, SETTINGS, [task], training, CPU).of(lineages, QUIET)
    path = tmp_path / "measured" / "bc-aligner" / "1.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps({**kept, "error": 7.0}))
    consumers = tmp_path / "consumers" / "activity.safetensors"
    before = consumers.read_bytes()
    again = ConsumerScores(tmp_path, SETTINGS, [task], training, CPU).of(lineages, QUIET)
    assert again["bc-aligner"]["error"] == {0: 0.0, 1: 7.0}
    # One that is missing is measured by the same consumers; damaged ones are fitted again.
    path.unlink()
    for content in (before, b"cut"):
        consumers.write_bytes(content)
        path.unlink(missing_ok=True)
        assert (
            ConsumerScores(tmp_path, SETTINGS, [task], training, CPU).of(lineages, QUIET) == first
        )
    assert consumers.read_bytes() == before
