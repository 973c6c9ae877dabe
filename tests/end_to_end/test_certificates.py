"""An error that was not measured has no certificate and passes no gate."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests.support.command import Command, exit_code

from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.lineage.lineage import Lineage

RECIPE = """
name = "shop"
[data]
kind = "table"
path = "old.csv"
[model]
dim = [6, 8, 8]
[task]
penalty = 2.0
l2 = 0.1
[training]
epochs = 2
batch_size = 512
"""
QUERIES = [f"u{i}" for i in range(240)]
CANDIDATES = [f"i{i}" for i in range(120)]
OTHERS = [f"x{i}" for i in range(240)], [f"y{i}" for i in range(120)]


def interactions(name: str, queries: list[str], candidates: list[str]) -> None:
    """Write 4,000 interactions, in which every query likes candidates near its own place."""
    draw = random.Random(0)
    lines = ["query,candidate"]
    for n in range(4000):
        place = n % len(queries)
        row = (place + int(abs(draw.gauss(0, 5)))) % len(candidates)
        lines.append(f"{queries[place]},{candidates[row]}")
    Path(name).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lineage with version 0 in `l`; other data with none of its ids, and with thirty queries."""
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("r.toml").write_text(RECIPE)
        interactions("old.csv", QUERIES, CANDIDATES)
        interactions("none.csv", *OTHERS)
        interactions("few.csv", QUERIES[:30] + OTHERS[0][30:], OTHERS[1])
        assert exit_code("train r.toml --lineage l") == 0
    return folder


@pytest.fixture
def shop(
    trained: Path, tmp_path: Path, evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> Command:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return evergram


UPGRADE = "upgrade r.toml --lineage l --set upgrade.alone=false"
SMALL = "--set data.path=few.csv"


def versions() -> list[int]:
    return [m.version for m in Lineage.open("l").versions]


def test_a_small_overlap_is_asked_for_and_shown_wherever_the_version_is(shop: Command) -> None:
    refused = shop.refused(f"{UPGRADE} {SMALL}")
    assert "30 objects in common with version 0, and 40 are needed" in refused
    assert "--allow-small-overlap" in refused
    assert versions() == [0]
    done = shop(f"{UPGRADE} {SMALL} --allow-small-overlap")
    assert done.code == 0, done.err
    few = "Version 1: It has only 30 objects in common with the previous version."
    assert f"warning: {few}" in done.err
    for shown in (shop("lineage list l").out, shop("lineage check l").out):
        assert few in shown
        assert f"a certificate needs {LEAST_OBJECTS}" in shown
    facts = shop.json("lineage list l")["versions"]
    assert [len(version["warnings"]) for version in facts] == [0, 2]
    metrics = Lineage.open("l").metrics(1)
    assert metrics["overlap"]["small"]
    assert metrics["certificate"] == {}
    # The chain of every later version leads through it.
    later = shop(f"{UPGRADE} {SMALL} --json")
    assert set(later.json["certificate"]) == {"1"}
    checked = shop("lineage check l --max-bound 9")
    assert checked.code == 1
    assert "Version 0: its bound is unknown" in checked.err
    assert "the transform of version 1 was measured on 0 objects" in checked.err


def test_degradation_that_cannot_be_measured_fails(shop: Command) -> None:
    limit = "upgrade r.toml --lineage l --max-degradation 100"
    for options, words in {
        "--set upgrade.alone=false": "upgrade.alone",
        """--set 'metrics=["recall@7"]'""": "recall@20",
        f"{SMALL} --allow-small-overlap": "version 0 knew 0 test queries, and 30 are needed",
    }.items():
        assert words in shop.refused(f"{limit} {options}")
    assert versions() == [0]


def test_a_test_of_few_queries_says_so_wherever_the_version_is(shop: Command) -> None:
    interactions("all.csv", QUERIES, CANDIDATES)
    # All but one of the test pairs are in the training file, too.
    lines = Path("all.csv").read_text().splitlines()
    Path("test.csv").write_text("\n".join([*sorted(set(lines[1:]))[:200], "u3,i999"]))
    Path("test.csv").write_text("query,candidate\n" + Path("test.csv").read_text())
    test = "--set data.path=all.csv --set data.test=test.csv --set split.kind=given"
    trained = shop(f"train r.toml --lineage t {test} --json")
    assert (trained.json["data"]["test_pairs"], trained.json["data"]["in_training"]) == (1, 200)
    sentence = "tested on only 1 queries"
    assert sentence in trained.err
    assert sentence in shop.json("lineage list t")["versions"][0]["warnings"][0]
