"""The commands that train models, tune them and measure them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.command import Command
from tests.support.tiny_training import tiny_lineage

from evergram.data.corpus import Corpus
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train
from evergram.training.fit import fit_encoder
from evergram.training.recipe import Recipe
from evergram.training.tuning import trials


def test_a_version_that_loses_too_much_is_not_published(
    evergram: Command, growing_shop: Path
) -> None:
    train = ("train", "shop.toml", "--lineage", "lin", "--set", "seed=3", "--set", "model.dim=5")
    assert "popularity" in evergram(*train).out
    manifest = Lineage.open("lin").manifest(0)
    assert (manifest.dim, manifest.recipe["seed"]) == (5, 3)
    arguments = ("upgrade", "shop.toml", "--lineage", "lin", "--set", "training.table_rate=1e-6")
    refused = evergram(*arguments, "--max-degradation", "0.01")
    assert refused.code == 2
    assert "was not published" in refused.err
    assert "Its training is kept" in refused.err
    assert Lineage.open("lin").newest == 0
    assert list((growing_shop / "lin" / ".work").iterdir())
    again = evergram(*arguments, "--max-degradation", "100", "--no-promote")
    assert again.code == 0, again.err
    assert "Read as version 0" in again.out
    assert (Lineage.open("lin").newest, Lineage.open("lin").production) == (1, 0)
    assert evergram("evaluate", "lin", "--as", "stable", "--json").json["as"] == 0


def test_diagnose_prints_spectra_scores_and_errors_and_draws_them(
    evergram: Command, trained_lineage: Path, tmp_path: Path
) -> None:
    plots = tmp_path / "plots.png"
    few = ("--steps", 2, "--every", 1, "--batch", 8)
    ran = evergram("diagnose", trained_lineage, *few, "--out", plots)
    assert ran.code == 0, ran.err
    for words in (
        "Version 2",
        "Mean score of observed pairs ",
        "Errors over the second half of 2 steps",
        "sogram auto, |B| = 8",
        f"Plots: {plots}",
    ):
        assert words in " ".join(ran.out.split())
    assert plots.read_bytes().startswith(b"\x89PNG")
    facts = evergram.json("diagnose", trained_lineage, *few)
    assert (facts["lineage"], facts["version"]) == (str(trained_lineage), 2)
    assert len(facts["steps"]) == 2
    assert "sogram auto, |B| = 8" in facts["gramian_errors"]
    assert facts["sampled"] == {"query": 0, "candidate": 0}
    for options in (("--out", "plots.pdf"), ("--steps", 5, "--every", 6)):
        assert str(options[-1]) in evergram.refused("diagnose", trained_lineage, *options)


@pytest.mark.long
def test_a_comparison_is_a_table_and_one_json_object(
    compare_recipe: Path, tmp_path: Path, evergram: Command
) -> None:
    code, out, err = evergram("compare", compare_recipe, "--out", tmp_path / "out")
    assert code == 0
    for words in (
        "bc-aligner",
        "Keep-All itself: recall@50 0.",
        "activity is left out",
        "all numbers",
    ):
        assert words in out
    assert "seed 0, bc-aligner, version 1: epoch 3" in err
    code, out, _ = evergram("compare", compare_recipe, "--out", tmp_path / "out", "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "out" / "results.json").read_text())
    code, out, err = evergram(
        "compare", compare_recipe, "--out", tmp_path / "out", "--set", "training.epochs=2"
    )
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "training.epochs changed" in err
    assert "--fresh" in err


@pytest.mark.long
def test_the_demo_tells_its_story(evergram: Command, tmp_path: Path) -> None:
    ran = evergram(
        "demo", "--out", str(tmp_path / "d"), "--json",
        "--set", "data.interactions=20000", "--set", "training.epochs=6",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    versions = ran.json["versions"]
    assert [v["version"] for v in versions] == [0, 1, 2, 3]
    for version in versions[1:]:
        consumer = version["consumer"]
        assert consumer["auc_chain"] > 0.7
        assert consumer["auc_chain"] > consumer["auc_raw"] + 0.1
    report = (tmp_path / "d" / "report.html").read_text()
    assert "<svg" in report
    assert "src=" not in report
    assert 'href="http' not in report.replace('href="http://www.w3.org', "")
    assert f"{versions[3]['consumer']['auc_chain']:.4f}" in report


def test_a_corpus_that_was_passed_in_python_is_not_made_up(
    evergram: Command, growing_shop: Path
) -> None:
    recipe = Recipe.load("shop.toml", ["training.epochs=1"])
    clicks = pq.read_table("clicks.parquet")
    lineage = Lineage.create("lin", "shop")
    lineage.publish(train(recipe, Corpus.of(clicks), progress=False))
    upgrade = ("upgrade", "shop.toml", "--lineage", "lin")
    for command in (("evaluate", "lin"), ("diagnose", "lin"), upgrade):
        sentence = evergram.refused(*command)
        assert "Version 0 was trained on a corpus that was passed in Python" in sentence


TUNED = """
[data]
kind = "synthetic"
queries = 120
candidates = 80
interactions = 1200
[model]
dim = 4
[training]
epochs = 2
"""
QUICK = ("--device", "cpu", "--trials", 2)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TUNED)
    return path


def test_tune_prints_trials_and_writes_a_recipe_that_train_takes(
    evergram: Command, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    search = ("tune", recipe, "--over", "model.dim=2..6", "--out", out, "--set", "seed=3", *QUICK)
    ran = evergram(*search)
    assert ran.code == 0, ran.err
    assert "┃ dim ┃" in ran.out
    assert ran.out.count("finished") == 2
    facts = evergram.json(*search)
    values = [trial["value"] for trial in facts["trials"]]
    assert values == sorted(values, reverse=True)
    assert facts["ended"] == "trials"
    assert "model.dim" in Path(facts["picture"]).read_text()
    best = Recipe.load(out / "best.toml")
    assert best.model.dim == [facts["best"]["values"]["model.dim"]]
    assert best.seed == 3
    trained = evergram("train", out / "best.toml", "--lineage", tmp_path / "lineage")
    assert trained.code == 0, trained.err


def test_no_finished_trial_writes_no_recipe(
    evergram: Command, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    search = ("tune", recipe, "--over", "model.dim=2..6", "--out", out, "--minutes", 1e-9)
    assert "No trial of the search has finished" in evergram.refused(*search)
    assert not (out / "best.toml").exists()


def test_ctrl_c_writes_the_best_recipe_and_has_its_exit_code(
    evergram: Command, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = fit_encoder

    def interrupted(recipe: Recipe, split: Any, version: int, context: Any) -> Any:
        if context.title == "trial 2":
            raise KeyboardInterrupt
        return fit(recipe, split, version, context)

    monkeypatch.setattr(trials, "fit_encoder", interrupted)
    out = tmp_path / "tuned"
    ran = evergram("tune", recipe, "--over", "model.dim=2..6", "--out", out, *QUICK)
    assert ran.code == 130
    assert "it was interrupted" in ran.out
    assert (out / "best.toml").is_file()


@pytest.fixture
def lineage(tmp_path: Path) -> str:
    tiny_lineage(tmp_path / "l")
    return str(tmp_path / "l")


def test_a_sample_is_shown_with_its_errors_and_is_the_same_again(
    lineage: str, evergram: Command
) -> None:
    whole = evergram("evaluate", lineage, "--json").json
    assert "sampled" not in whole
    assert "±" not in evergram("evaluate", lineage).out
    part = evergram("evaluate", lineage, "--queries", "4", "--json").json
    assert part["sampled"]["queries"] == 4 < part["sampled"]["of"]
    assert set(part["metrics"]) == {"model", "popularity"} == set(part["sampled"]["errors"])
    assert evergram("evaluate", lineage, "--queries", "4", "--json").json == part
    shown = evergram("evaluate", lineage, "--queries", "4").out
    assert "±" in shown
    assert "Measured on 4 of" in shown
    assert evergram("evaluate", lineage, "--queries", "900", "--json").json == whole
    assert "--queries" in evergram("evaluate", lineage, "--queries", "1").err


def test_an_index_is_shown_with_its_recall(lineage: str, evergram: Command) -> None:
    pytest.importorskip("faiss")
    whole = evergram("evaluate", lineage, "--json").json
    by_index = evergram("evaluate", lineage, "--index", "hnsw", "--json").json
    assert by_index["index"]["kind"] == "hnsw"
    assert by_index["index"]["recall"] >= 0.95
    assert by_index["metrics"]["popularity"] == pytest.approx(whole["metrics"]["popularity"])
    found, exact = (r["metrics"]["model"]["recall@20"] for r in (by_index, whole))
    assert found == pytest.approx(exact, abs=0.1)
    assert "best candidates (measured on" in evergram("evaluate", lineage, "--index", "ivf").out
