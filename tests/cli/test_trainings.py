"""The commands that train models, tune them and measure them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Command

from evergram.lineage.lineage import Lineage
from evergram.training import tuning
from evergram.training.fit import fit_encoder
from evergram.training.recipe import Recipe


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
    assert "goes on from its checkpoints" in refused.err
    assert Lineage.open("lin").newest == 0
    assert list((growing_shop / "lin" / ".work").iterdir())
    again = evergram(*arguments, "--max-degradation", "100", "--no-promote")
    assert again.code == 0, again.err
    assert "Read as version 0" in again.out
    assert (Lineage.open("lin").newest, Lineage.open("lin").production) == (1, 0)
    assert evergram("evaluate", "lin", "--as", "stable", "--json").json["as"] == 0
    assert "±" in evergram("evaluate", "lin", "--queries", 4).out


def test_diagnose_prints_spectra_scores_and_errors(
    evergram: Command, trained_lineage: Path
) -> None:
    few = ("--steps", 2, "--batch", 8)
    ran = evergram("diagnose", trained_lineage, *few)
    assert ran.code == 0, ran.err
    for words in (
        "Version 2",
        "Mean score of observed pairs ",
        "Errors over the second half of 2 steps",
        "sogram auto, |B| = 8",
    ):
        assert words in " ".join(ran.out.split())
    facts = evergram.json("diagnose", trained_lineage, *few)
    assert (facts["lineage"], facts["version"]) == (str(trained_lineage), 2)
    assert len(facts["steps"]) == 2
    assert "sogram auto, |B| = 8" in facts["gramian_errors"]
    assert facts["scores"]["observed_mean"] > facts["scores"]["random_mean"]
    assert all(1 <= each["effective_rank"] <= each["dim"] for each in facts["sides"].values())


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
    assert ran.out.count("complete") == 2
    facts = evergram.json(*search)
    values = [trial["value"] for trial in facts["trials"]]
    assert values == sorted(values, reverse=True)
    assert facts["ended"] == "trials"
    best = Recipe.load(out / "best.toml")
    assert best.model.dim == [facts["best"]["values"]["model.dim"]]
    assert best.seed == 3
    trained = evergram("train", out / "best.toml", "--lineage", tmp_path / "lineage")
    assert trained.code == 0, trained.err


def test_no_complete_trial_writes_no_recipe(
    evergram: Command, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    search = ("tune", recipe, "--over", "task.sparse=weight", "--out", out, "--trials", 1)
    assert "No trial of the search is complete" in evergram.refused(*search)
    assert not (out / "best.toml").exists()


def test_ctrl_c_writes_the_best_recipe_and_has_its_exit_code(
    evergram: Command, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = fit_encoder

    def interrupted(recipe: Recipe, split: Any, version: int, context: Any) -> Any:
        if context.title == "trial 2":
            raise KeyboardInterrupt
        return fit(recipe, split, version, context)

    monkeypatch.setattr(tuning, "fit_encoder", interrupted)
    out = tmp_path / "tuned"
    ran = evergram("tune", recipe, "--over", "model.dim=2..6", "--out", out, *QUICK)
    assert ran.code == 130
    assert "interrupted" in ran.err
    assert (out / "best.toml").is_file()


RECIPE = """
name = "few"
[data]
kind = "synthetic"
queries = 90
candidates = 15
interactions = 500
[split]
kind = "time"
versions = [0.7, 0.85]
[model]
dim = 4
[task]
penalty = 1.0
l2 = 0.1
[training]
epochs = 3
batch_size = 64
"""


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.toml"
    path.write_text(RECIPE)
    return path


def test_training_selects_by_shorter_lists_than_the_catalogue(
    evergram: Command, few: Path, tmp_path: Path
) -> None:
    # λ is open, so that pilots choose it where they do so.
    where = ("--lineage", tmp_path / "lin", "--set", "task.penalty='auto'")
    trained = evergram("train", few, *where)
    assert trained.code == 0, trained.err
    lineage = Lineage.open(tmp_path / "lin")
    metric = lineage.recipe(0)["training"]["metric"]
    kind, length = metric.split("@")
    assert kind == "recall"
    assert 1 <= int(length) < 8  # of 15, some of them masked
    said = [line for line in trained.err.splitlines() if "recall@20" in line and metric in line]
    assert len(said) == 1
    figures = lineage.metrics(0)
    assert any(metric in sentence for sentence in figures["training"]["warnings"])
    assert 0 < figures["metrics"]["model"][metric] < 1
    assert all(0 < record[metric] < 1 for record in figures["training"]["history"])
    for pilot in figures["training"].get("pilots", []):
        assert 0 < pilot[metric] < 1
    upgraded = evergram("upgrade", few, *where)
    assert upgraded.code == 0, upgraded.err
    later = lineage.metrics(1) if lineage.newest else Lineage.open(tmp_path / "lin").metrics(1)
    assert any("recall@20" in sentence for sentence in later["training"]["warnings"])
    assert "recall@20" not in later["metrics"]["model"]
    assert evergram("evaluate", tmp_path / "lin", "--json").code == 0
