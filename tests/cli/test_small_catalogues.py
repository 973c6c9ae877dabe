"""Few candidates: what is measured can tell one model from another, or the data is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import Command

from evergram.lineage.lineage import Lineage

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
[compare]
methods = ["finetune-m0"]
hidden = [4]
dropout = [0.0]
consumers = 1
epochs = 2
minimum_ratings = 2
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "few.toml"
    path.write_text(RECIPE)
    return path


def test_training_selects_by_shorter_lists_than_the_catalogue(
    evergram: Command, recipe: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    # λ is open, so that pilots choose it where they do so.
    where = ("--lineage", tmp_path / "lin", "--set", "task.penalty='auto'")
    trained = evergram("train", recipe, *where, "--report", report)
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
    assert metric in report.read_text()
    upgraded = evergram("upgrade", recipe, *where, "--report", report)
    assert upgraded.code == 0, upgraded.err
    later = lineage.metrics(1) if lineage.newest else Lineage.open(tmp_path / "lin").metrics(1)
    assert any("recall@20" in sentence for sentence in later["training"]["warnings"])
    assert "recall@20" not in later["metrics"]["model"]
    assert evergram("evaluate", tmp_path / "lin", "--json").code == 0


def test_tune_ranks_trials_by_it(evergram: Command, recipe: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "tuned", "--trials", 2, "--over", "model.dim=2..6")
    facts = evergram.json("tune", recipe, *out)
    assert facts["metric"] not in ("recall@20", "recall@15")
    assert all(0 < trial["value"] < 1 for trial in facts["trials"])


def test_compare_compares_by_it(evergram: Command, recipe: Path, tmp_path: Path) -> None:
    facts = evergram.json("compare", recipe, "--out", tmp_path / "out")
    assert facts["metric"] not in ("recall@20", "recall@15")
    runs = facts["runs"]["0"]
    assert all(0 < value < 1 for run in runs.values() for value in run["intended"].values())
    # What goes on from the model before has half of the epochs.
    passes = {name: run["trained"]["1"]["passes"] for name, run in runs.items()}
    assert passes == {"keep-all": 3, "finetune-m0": 1}


def test_one_candidate_left_to_rank_is_refused(
    evergram: Command, recipe: Path, tmp_path: Path
) -> None:
    rows = [f"q{i},x,{i}" for i in range(40)]
    (tmp_path / "one.csv").write_text("\n".join(["query,candidate,time", *rows]))
    recipe.write_text(
        RECIPE.replace('kind = "synthetic"', 'kind = "table"\npath = "one.csv"')
        .replace("queries = 90\ncandidates = 15\ninteractions = 500\n", "")
        .replace('kind = "time"\nversions = [0.7, 0.85]', "share = 0.2")
    )
    refused = evergram("train", recipe, "--lineage", tmp_path / "lin")
    assert refused.code != 0
    assert "candidate" in refused.err
