"""No test pair was trained on, a published split is trained on whole, and training ends in time."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command, exit_code

from evergram.lineage.lineage import Lineage

TRAIN, UPGRADE = "train shop.toml --lineage lin", "upgrade shop.toml --lineage lin"
RECIPE = """
name = "shop"
metrics = ["recall@20"]
[data]
kind = "table"
path = "clicks.parquet"
[model]
dim = 24
[task]
penalty = 1.0
l2 = 0.001
[training]
epochs = 10
evaluate_every = 10
batch_size = 256
table_rate = 0.3
"""
QUICK = "--set training.epochs=1"
# Between the recall@20 of chance, 0.17, and that of a model on its own training pairs, 0.8.
LEAKED = 0.35


def clicks(rows: int, seed: int = 0) -> pa.Table:
    """Clicks with nothing to learn but the very pairs.

    A model that is tested on its own training pairs scores high; no other model does.
    """
    draw = random.Random(seed)
    pairs = [(draw.randrange(150), f"item{draw.randrange(120)}") for _ in range(rows)]
    query, candidate = zip(*pairs, strict=True)
    times = [1_700_000_000 + 3600 * i for i in range(rows)]
    return pa.table({"query": query, "candidate": candidate, "time": times})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pq.write_table(clicks(3000), tmp_path / "clicks.parquet")
    (tmp_path / "shop.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a lineage of version 0."""
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pq.write_table(clicks(3000), "clicks.parquet")
        Path("shop.toml").write_text(RECIPE)
        assert exit_code(TRAIN) == 0
    return folder


@pytest.fixture
def shop(trained: Path, folder: Path) -> Path:
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    return folder


@pytest.mark.parametrize("change", ["rows", "seed", "share"])
def test_a_grown_lineage_is_not_tested_on_what_it_was_trained_on(
    shop: Path, evergram: Command, change: str
) -> None:
    first = Lineage.open("lin").metrics(0)["data"]
    pq.write_table(pa.concat_tables([clicks(3000), clicks(500, 1)]), "more.parquet")
    options = {"rows": "--set data.path=more.parquet", "seed": "--set seed=1"}
    second = evergram.json(f"{UPGRADE} {options.get(change, '--set split.share=0.3')}")
    assert second["metrics"]["model"]["recall@20"] < LEAKED
    new = pq.read_metadata("lin/versions/1/trained_pairs.parquet").num_rows
    if change == "rows":
        assert new > 200
    elif change == "seed":
        assert (second["data"]["test_pairs"], new) == (first["test_pairs"], 0)
    else:
        # What the larger share holds out was trained on, but for what was held out already.
        assert second["data"]["trained_before"] > 200
        assert second["data"]["test_pairs"] <= first["test_pairs"]


def test_a_lineage_keeps_its_salt(folder: Path, evergram: Command) -> None:
    evergram.json(f"{TRAIN} {QUICK} --set name=a")
    evergram.json(f"{UPGRADE} {QUICK} --set name=b")
    assert json.loads(Path("lin/lineage.json").read_text())["salt"] == "a"


QUERIES, CANDIDATES = 40, 30
# Of the 30 candidates each query has 10 in the training file and 10 in the test file.
GIVEN = """
name = "published"
metrics = ["recall@20", "recall@500"]
[data]
kind = "table"
path = "train.parquet"
test = "test.parquet"
[split]
kind = "given"
share = 0.3
[model]
dim = [4, 6]
[task]
penalty = 2.0
l2 = 0.1
[training]
epochs = 4
batch_size = 32
metric = "recall@20"
"""
PUBLISHED = "train published.toml --lineage l"


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A published split, two files and a recipe of them; return the rows of its training part."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for q in range(QUERIES):
        met = draw.sample(range(CANDIDATES), 20)
        parts["train"] += [(f"q{q}", f"c{c}") for c in met[:10]]
        parts["test"] += [(f"q{q}", f"c{c}") for c in met[10:]]
    # Candidates that a single pair knows: some of them are in the selection pairs alone.
    parts["train"] += [(f"q{q}", f"rare{q}") for q in range(QUERIES)]
    for name, pairs in parts.items():
        query, candidate = zip(*pairs, strict=True)
        pq.write_table(pa.table({"query": query, "candidate": candidate}), f"{name}.parquet")
    Path("published.toml").write_text(GIVEN)
    return len(parts["train"])


def test_a_published_split_is_refitted_on_its_whole_training_part(
    published: int, evergram: Command
) -> None:
    report = evergram.json(PUBLISHED)
    training = report["training"]
    # As many steps as the best epoch had, which did not see the selection pairs.
    per_epoch = round(training["refit"]["steps"] / training["best_epoch"])
    assert training["refit"]["steps"] == per_epoch * training["best_epoch"]
    assert 0.6 * published // 32 <= per_epoch < published // 32
    assert training["refit"]["interactions"] == report["data"]["interactions"] == published
    assert report["data"]["test_pairs"] == 10 * QUERIES
    ids, _ = Lineage.open("l").embeddings("candidate")
    assert set(ids.to_pylist()) == set(pq.read_table("train.parquet")["candidate"].to_pylist())
    again = evergram.json("evaluate l")["metrics"]
    for who in ("model", "popularity"):
        assert again[who] == pytest.approx(report["metrics"][who], abs=1e-6)
    # So are an upgrade and the model that is trained alone.
    upgraded = evergram.json(PUBLISHED.replace("train", "upgrade"))
    for refit in (upgraded["training"]["refit"], upgraded["training"]["alone"]["refit"]):
        assert refit["interactions"] == published
        assert refit["steps"] > 0
    assert len(Lineage.open("l").view(0).embeddings("candidate")[0]) == CANDIDATES + QUERIES
    # The transform's error is measured on the published objects.
    objects = upgraded["compatibility"]["0"]["drift"]["known"]["objects"]
    assert objects == 2 * QUERIES + CANDIDATES


def test_every_known_pair_is_masked(published: int, evergram: Command) -> None:
    """Also those that chose the epoch: of 30 candidates, 10 are known, and 20 left for a list."""
    train = pq.read_table("train.parquet")
    common = train.filter(pa.array([c.startswith("c") for c in train["candidate"].to_pylist()]))
    pq.write_table(common, "train.parquet")
    options = "--set training.refit=false"
    metrics = evergram.json(f"{PUBLISHED} {options}")["metrics"]
    upgraded = evergram.json(f"{PUBLISHED} {options}".replace("train", "upgrade", 1))
    rankings = [*metrics.values(), *upgraded["compatibility"]["0"]["ranking"].values()]
    rankings.append(evergram.json("evaluate l --as 0")["metrics"]["model"])
    assert {ranking["recall@20"] for ranking in rankings} == {1.0}
    # Of the training file, nothing is held out.
    same = "--set data.test=train.parquet --set training.refit=false"
    assert "too few pairs" in evergram.refused(f"train published.toml --lineage m {same}")
