"""Methods side by side: zero where nothing changes, resumed bit for bit, one recipe a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.errors import RecipeError
from evergram.lineage.lineage import Lineage
from evergram.releasing.comparison import compare as compare_module
from evergram.releasing.comparison.compare import compare
from evergram.releasing.comparison.runs import runs_of
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe

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


@pytest.fixture
def recipe() -> Recipe:
    return RECIPE


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """One comparison that most tests look at, and leave as it is."""
    out = tmp_path_factory.mktemp("comparison") / "out"
    return compare(RECIPE, out), out


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
def test_all_start_from_the_same_version_0_and_are_lineages(
    done: tuple[dict[str, Any], Path],
) -> None:
    _, out = done
    lineages = [Lineage.open(out / "seed-0" / name) for name in METHODS]
    assert {lineage.newest for lineage in lineages} == {2}
    assert len({json.dumps(m.versions[0].files, sort_keys=True) for m in lineages}) == 1
    # Non-BC's models are Keep-All's, by file.
    keep, non = (lineages[METHODS.index(name)] for name in ("keep-all", "non-bc"))
    for k in (1, 2):
        name = "encoder.safetensors"
        assert keep.manifest(k).files[name] == non.manifest(k).files[name]


@pytest.mark.long
def test_consumers_read_the_view_of_version_0(
    done: tuple[dict[str, Any], Path], recipe: Recipe
) -> None:
    results, out = done
    base, run = (Lineage.open(out / "seed-0" / name) for name in ("fix-m0", "bc-aligner"))
    corpus = load_corpus(recipe)
    training = split_for(recipe, corpus, 2).training
    total: list[float] = []
    for side, entities in (("query", training.queries), ("candidate", training.candidates)):
        (ids, read), (other, past) = (lineage.view(0).embeddings(side) for lineage in (run, base))
        assert ids.equals(other)
        assert ids.equals(entities.vocabulary.keys)
        # A factorization has a row for those that version 0 has seen alone.
        known = past.abs().sum(1) > 0
        total += (read - past)[known].double().pow(2).sum(1).sqrt().tolist()
    assert results["runs"][0]["bc-aligner"]["error"][2] == pytest.approx(
        sum(total) / len(total), rel=1e-5
    )


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
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "by-lambda.png").exists()
    over = results["over_time"]["bc-aligner"]
    assert [list(over[key]) for key in ("intended", "unintended", "error")] == [
        [0, 1, 2],
        [1, 2],
        [0, 1, 2],
    ]


@pytest.mark.long
def test_an_interrupted_comparison_resumes_to_the_same_numbers(
    done: tuple[dict[str, Any], Path],
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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
        compare(recipe, tmp_path / "again")
    results = compare(recipe, tmp_path / "again")
    # Four methods of two versions and Keep-All: nothing but what was stopped is done twice.
    assert len(calls) == 2 * len(METHODS) + 1
    assert numbers(results) == numbers(done[0])
    # Stopped while it was judging: what is missing is judged again, by the same consumers.
    monkeypatch.undo()
    missing = tmp_path / "again" / "seed-0" / "measured" / "bc-aligner" / "2.json"
    missing.unlink()
    (tmp_path / "again" / "seed-0" / "consumers" / "pair-rating.safetensors").unlink()
    assert numbers(compare(recipe, tmp_path / "again")) == numbers(done[0])
    assert missing.exists()


@pytest.mark.long
def test_another_recipe_is_refused_and_a_longer_one_is_not(
    done: tuple[dict[str, Any], Path], recipe: Recipe, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(done[1], out)
    values = recipe.model_dump(exclude_unset=True)
    other = Recipe.of(values, ["training.epochs=3", "compare.consumers=1"])
    with pytest.raises(RecipeError, match=r"compare\.consumers, training\.epochs changed"):
        compare(other, out)
    with pytest.raises(RecipeError, match="corpus changed"):
        compare(recipe, out, load_corpus(recipe).restrict(torch.arange(7000)))
    few = Recipe.of(values, ['compare.methods=["bc-aligner"]', "compare.seeds=[0]"])
    assert compare(few, out)["table"][0]["unintended"] == done[0]["table"][-1]["unintended"]
    fresh = Recipe.of(other.model_dump(exclude_unset=True), ['compare.methods=["fix-m0"]'])
    assert len(compare(fresh, out, fresh=True)["table"]) == 1
    assert {p.name for p in (out / "seed-0").iterdir()} == {
        "m0",
        "keep-all",
        "fix-m0",
        "consumers",
        "measured",
    }
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="is a file"):
        compare(recipe, tmp_path / "file")
    with pytest.raises(RecipeError, match="along time"):
        compare(Recipe.of(values, ["split.versions=[0.5]"]), tmp_path / "one")


@pytest.mark.long
def test_a_corpus_without_ratings_leaves_tasks_out(recipe: Recipe, tmp_path: Path) -> None:
    corpus = load_corpus(recipe)
    table = corpus.interactions.drop_columns(["value"])
    bare = Corpus(corpus.queries, corpus.candidates, table)
    short = Recipe.of(recipe.model_dump(exclude_unset=True), ['compare.methods=["fix-m0"]'])
    results = compare(short, tmp_path / "out", bare)
    assert list(results["tasks"]) == ["activity"]
    assert "no ratings" in results["left_out"][0]
    two = Recipe.of(short.model_dump(exclude_unset=True), ["split.versions=[0.6, 0.7]"])
    results = compare(two, tmp_path / "none", bare)
    assert results["table"][0]["unintended"] is None
    assert "| fix-m0 | -" in (tmp_path / "none" / "table.md").read_text()
    assert not (tmp_path / "none" / "by-task.png").exists()


@pytest.mark.long
def test_a_sweep_of_lambda_and_seeds(recipe: Recipe, tmp_path: Path) -> None:
    chosen = Recipe.of(
        recipe.model_dump(exclude_unset=True),
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


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ('compare.methods=["best"]', "compare.methods has 'best'; a method is one of keep-all"),
        ("compare.seeds=0", "compare.seeds"),
        ("compare.seeds=[1, 1]", "names a seed twice"),
        ("compare.dropout=[1.0]", "compare.dropout"),
        ("upgrade.select_after=4", "no epoch would be left"),
    ],
)
def test_bad_settings_are_one_sentence(recipe: Recipe, override: str, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Recipe.of(recipe.model_dump(exclude_unset=True), [override])


def test_a_comparison_has_no_consumers_to_weigh_errors_by(recipe: Recipe, tmp_path: Path) -> None:
    values = recipe.model_dump(exclude_unset=True)
    weighed = Recipe.of(values, ["upgrade.consumer_weight=0.5"])
    with pytest.raises(
        RecipeError, match=r"consumer_weight is 0\.5, and the lineages of a compari"
    ):
        compare(weighed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_comparison_trains(recipe: Recipe, tmp_path: Path) -> None:
    training = recipe.training.model_copy(update={"epochs": 0})
    with pytest.raises(RecipeError, match=r"set training\.epochs above 0"):
        compare(recipe.model_copy(update={"training": training}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_sweep_is_of_joint_methods(recipe: Recipe) -> None:
    with pytest.raises(RecipeError, match="which has no λ"):
        Recipe.of(
            recipe.model_dump(exclude_unset=True),
            ["compare.lambdas=[1]", 'compare.lambda_methods=["non-bc"]'],
        )
