"""The commands that train models and measure them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.command import Command

from evergram.data.corpus import Corpus
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train
from evergram.training.recipe import Recipe


@pytest.mark.long
def test_people_get_tables(evergram: Command, growing_shop: Path) -> None:
    assert "popularity" in evergram("train", "shop.toml", "--lineage", "lin").out
    assert "Read as version 0" in evergram("upgrade", "shop.toml", "--lineage", "lin").out
    assert "shop, in lin" in evergram("lineage", "list", "lin").out
    assert "read as version 0" in evergram("evaluate", "lin", "--as", "0").out
    assert (
        "read as version 1"
        in evergram("vectors", "export", "lin", "o.parquet", "--side", "query").out
    )


def test_an_upgrade_may_stay_beside_production(evergram: Command, growing_shop: Path) -> None:
    evergram("train", "shop.toml", "--lineage", "lin")
    assert evergram("upgrade", "shop.toml", "--lineage", "lin", "--no-promote").code == 0
    listed = evergram("lineage", "list", "lin", "--json").json
    assert listed["labels"] == {"stable": 0}
    assert [v["held"] for v in listed["versions"]] == [True, True]
    assert evergram("evaluate", "lin", "--as", "stable", "--json").json["as"] == 0


def test_a_version_that_loses_too_much_is_not_published(
    evergram: Command, growing_shop: Path
) -> None:
    evergram("train", "shop.toml", "--lineage", "lin")
    arguments = ("upgrade", "shop.toml", "--lineage", "lin", "--set", "training.table_rate=1e-6")
    refused = evergram(*arguments, "--max-degradation", "0.01")
    assert refused.code == 2
    assert "was not published" in refused.err
    assert "Its training is kept" in refused.err
    assert Lineage.open("lin").newest == 0
    assert list((growing_shop / "lin" / ".work").iterdir())
    again = evergram(*arguments, "--max-degradation", "100")
    assert again.code == 0, again.err
    assert Lineage.open("lin").newest == 1


def test_seed_and_set_change_the_run(evergram: Command, growing_shop: Path) -> None:
    evergram("train", "shop.toml", "--lineage", "a", "--seed", "3", "--set", "model.dim=5")
    manifest = Lineage.open("a").manifest(0)
    assert (manifest.dim, manifest.recipe["seed"]) == (5, 3)


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
    (low, high) = facts["mean_gramian_interval"]["this run"]
    assert low == high == facts["mean_gramian_error"]["this run"]


def test_diagnose_refuses_what_would_draw_or_measure_nothing(
    evergram: Command, trained_lineage: Path
) -> None:
    sentence = evergram.refused("diagnose", trained_lineage, "--out", "plots.pdf")
    assert "--out plots.pdf must end in .png" in sentence
    sentence = evergram.refused("diagnose", trained_lineage, "--steps", 5, "--every", 6)
    assert "--every 6 is more than --steps 5; nothing would be measured" in sentence


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--checkpoint-every", "soon"), "--checkpoint-every soon is not understood; give a time"),
        (("--keep-checkpoints", "0"), "--keep-checkpoints 0 keeps none"),
        (("--resume", "always"), "--resume always is not known; it must be auto or never"),
    ],
)
@pytest.mark.parametrize("command", ["train", "upgrade"])
def test_options_of_checkpoints_are_checked_before_a_training(
    evergram: Command, growing_shop: Path, command: str, options: tuple[str, str], words: str
) -> None:
    ran = evergram(command, "shop.toml", "--lineage", "other", *options)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


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


@pytest.mark.long
def test_the_demo_prints_at_most_twenty_lines_and_explains_its_columns(
    evergram: Command, tmp_path: Path
) -> None:
    ran = evergram(
        "demo", "--out", str(tmp_path / "d"),
        "--set", "data.interactions=20000", "--set", "training.epochs=2",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    # So few epochs are warned of; the demo's own are not.
    lines = ran.err.splitlines()
    progress = [line for line in lines if not line.startswith("warning: ")]
    out = ran.out.splitlines()
    assert len(out) + len(progress) <= 20
    assert [line.split(",")[0] for line in progress] == [
        "Training version 0 of 0 to 3",
        *(f"Training version {version}" for version in (1, 2, 3)),
    ]
    explained = {line.partition(":")[0] for line in out[-6:]}
    assert explained >= {"recall@20", "AUC chain", "AUC raw", "drift", "Report"}


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
