"""`evergram init` and `evergram prepare`: from a file to a recipe or a prepared folder."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.command import Command
from tests.support.prepared import assert_same

from evergram.data.prepared.mapped_corpus import load_prepared
from evergram.data.tables import load_table
from evergram.lineage.lineage import Lineage


@pytest.fixture
def clicks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    draw = random.Random(0)
    lines = ["user_id,page_id,stars,ts,shop"]
    for i in range(900):
        user = draw.randrange(40)
        page = (3 * user + int(draw.expovariate(0.3))) % 60
        lines.append(f"{user},p{page},{draw.randrange(1, 6)},{1_700_000_000 + 3600 * i},x")
    (tmp_path / "clicks.csv").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_recipe_of_a_file_trains(evergram: Command, clicks: Path) -> None:
    said = evergram("init", "clicks.csv")
    assert (said.code, said.err) == (0, "")
    assert "900 interactions of 40 queries with 60 candidates" in said.out
    assert "Guessed from column names: query, candidate, value, time" in said.out
    assert "Not used: shop; --column weight=NAME uses one." in said.out
    assert "evergram train recipe.toml --lineage lineages/clicks" in said.out
    trained = evergram("train", "recipe.toml", "--lineage", "l", "--set", "training.epochs=2")
    assert trained.out.endswith("Next: evergram serve l\n")
    metrics = Lineage.open("l").metrics(0)
    assert metrics["data"]["queries"] <= 40
    assert metrics["dim"] == 16


def test_the_first_training_says_that_pilots_run_first(evergram: Command, clicks: Path) -> None:
    assert evergram("init", "clicks.csv").code == 0
    trained = evergram("train", "recipe.toml", "--lineage", "l", "--json")
    assert "8 short training runs (pilots)" in trained.err
    assert "Pilot 8 of at most 8" in trained.err
    assert trained.json["training"]["optimizer"] == "als"
    assert len(trained.json["training"]["pilots"]) == 8
    upgraded = evergram("upgrade", "recipe.toml", "--lineage", "l", "--minutes", 0, "--json")
    assert upgraded.json["training"]["ended"] == "minutes"
    assert upgraded.json["training"]["alone"]["ended"] == "minutes"
    assert upgraded.json["training"]["optimizer"] == "adaptive"


def test_a_training_is_limited_by_minutes(evergram: Command, clicks: Path) -> None:
    evergram("init", "clicks.csv")
    limited = evergram.json("train", "recipe.toml", "--lineage", "l", "--minutes", 0)
    assert (limited["training"]["ended"], limited["training"]["epochs"]) == ("minutes", 1)
    assert len(limited["training"]["pilots"]) == 1


def test_a_recipe_is_overwritten_only_if_it_is_asked_for(evergram: Command, clicks: Path) -> None:
    Path("recipe.toml").write_text("mine")
    sentence = evergram.refused("init", "clicks.csv")
    assert "recipe.toml already exists; use --force" in sentence
    assert Path("recipe.toml").read_text() == "mine"
    assert evergram("init", "clicks.csv", "--force").code == 0
    assert "[data]" in Path("recipe.toml").read_text()


TEXT = "user,item,stars,when\n7,a,5,3\n9,b,1,1\n7,b,4,2\n7,a,3,4\n"
COLUMNS = ("--column", "query=user", "--column", "candidate=item", "--column", "time=when")


def test_files_become_a_folder(tmp_path: Path, evergram: Command) -> None:
    (tmp_path / "events.csv").write_text(TEXT)
    result = evergram("prepare", tmp_path / "events.csv", tmp_path / "out", *COLUMNS)
    assert result.code == 0
    assert "4 interactions of 2 queries with 2 candidates." in result.out
    assert "reading 1 source\n" in result.err
    names = {"query": "user", "candidate": "item", "time": "when"}
    assert_same(load_table(tmp_path / "events.csv", columns=names), load_prepared(tmp_path / "out"))


def test_options_and_json(tmp_path: Path, evergram: Command) -> None:
    (tmp_path / "f.csv").write_text("id,kind\na,x\nb,y\n")
    for name in ("1.csv", "2.csv"):
        (tmp_path / name).write_text(TEXT)
    arguments = [tmp_path / "1.csv", tmp_path / "2.csv", tmp_path / "out", *COLUMNS]
    arguments += ["--column", "value=stars"]
    arguments += ["--candidate-features", tmp_path / "f.csv", "--memory", "256MiB"]
    facts = evergram.json("prepare", *arguments)
    assert (facts["rows_read"], facts["interactions"]) == (8, 8)
    assert facts["columns"]["value"] == "float32"
    assert "already a prepared corpus; --overwrite" in evergram.refused("prepare", *arguments)
    assert evergram.json("prepare", *arguments, "--overwrite")["interactions"] == 8
    assert load_prepared(tmp_path / "out").column("time").tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
