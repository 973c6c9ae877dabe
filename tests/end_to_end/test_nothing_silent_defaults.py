"""A published split is trained on whole, and training ends in time: promises 7 and 11."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command

from evergram.lineage.lineage import Lineage

ROOT = Path(__file__).parents[2]
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


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A published split: two files, and a recipe of them."""
    draw = random.Random(0)
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for q in range(QUERIES):
        met = draw.sample(range(CANDIDATES), 20)
        parts["train"] += [(f"q{q}", f"c{c}") for c in met[:10]]
        parts["test"] += [(f"q{q}", f"c{c}") for c in met[10:]]
    # Candidates that a single pair knows: some of them are in the selection pairs alone.
    rare = [(f"q{q}", f"rare{q}") for q in range(QUERIES)]
    for name, pairs in (("train", parts["train"] + rare), ("test", parts["test"])):
        query, candidate = zip(*pairs, strict=True)
        pq.write_table(
            pa.table({"query": query, "candidate": candidate}), f"{tmp_path}/{name}.parquet"
        )
    (tmp_path / "published.toml").write_text(GIVEN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_7_a_published_split_is_refitted_on_its_whole_training_part(
    published: Path, evergram: Command
) -> None:
    report = evergram("train", "published.toml", "--lineage", "l", "--json").json
    rows = pq.read_table("train.parquet").num_rows
    training = report["training"]
    # As many steps as the best epoch had, which did not see the selection pairs.
    per_epoch = round(training["refit"]["steps"] / training["best_epoch"])
    assert training["refit"]["steps"] == per_epoch * training["best_epoch"]
    assert 0.6 * rows // 32 <= per_epoch < rows // 32
    assert training["refit"]["interactions"] == report["data"]["interactions"] == rows
    assert report["data"]["test_pairs"] == 10 * QUERIES
    # What is published are the entities of the whole training file.
    ids, _ = Lineage.open("l").embeddings("candidate")
    assert set(ids.to_pylist()) == set(pq.read_table("train.parquet")["candidate"].to_pylist())
    # The stored embeddings are judged by the same protocol.
    again = evergram("evaluate", "l", "--json").json["metrics"]
    for who in ("model", "popularity"):
        assert again[who] == pytest.approx(report["metrics"][who], abs=1e-6)


def test_7_every_known_pair_is_masked_those_that_chose_the_epoch_too(
    published: Path, evergram: Command
) -> None:
    """With all known pairs masked, of 30 + 40 candidates those of the test and at most 49 others
    are left for a query; of the 30 alone exactly 10 + 10."""
    train = pq.read_table("train.parquet")
    common = train.filter(pa.array([c.startswith("c") for c in train["candidate"].to_pylist()]))
    pq.write_table(common, "train.parquet")
    options = ("--lineage", "l", "--json", "--set", "training.refit=false")
    report = evergram("train", "published.toml", *options).json
    # 30 candidates, 10 of them known: a list of 20 holds all others, whatever the model.
    assert report["metrics"]["model"]["recall@20"] == 1.0
    assert report["metrics"]["popularity"]["recall@20"] == 1.0
    upgraded = evergram("upgrade", "published.toml", *options).json
    for ranking in upgraded["compatibility"]["0"]["ranking"].values():
        assert ranking["recall@20"] == 1.0
    assert (
        evergram("evaluate", "l", "--json", "--as", "0").json["metrics"]["model"]["recall@20"]
        == 1.0
    )


def test_7_a_pair_that_chose_the_epoch_is_no_test_pair(published: Path, evergram: Command) -> None:
    """The test file is the training file once more: nothing of it is held out."""
    options = ("--set", "data.test=train.parquet", "--set", "training.refit=false")
    refusal = evergram("train", "published.toml", "--lineage", "l", *options)
    assert refusal.code == 2
    assert "too few pairs" in refusal.err


def test_7_an_upgrade_and_the_model_alone_are_refitted_alike(
    published: Path, evergram: Command
) -> None:
    evergram("train", "published.toml", "--lineage", "l", "--json")
    report = evergram("upgrade", "published.toml", "--lineage", "l", "--json").json
    rows = pq.read_table("train.parquet").num_rows
    training = report["training"]
    assert training["refit"]["interactions"] == training["alone"]["refit"]["interactions"] == rows
    assert training["alone"]["refit"]["steps"] > 0
    lineage = Lineage.open("l")
    for side, count in (("query", QUERIES), ("candidate", CANDIDATES + QUERIES)):
        assert len(lineage.embeddings(side)[0]) == count
        assert len(lineage.view(0).embeddings(side)[0]) == count
    # The transform is of the published model: its error is measured on the published objects.
    assert report["compatibility"]["0"]["drift"]["known"]["objects"] == 2 * QUERIES + CANDIDATES


def test_7_a_refit_can_be_asked_of_any_split(published: Path, evergram: Command) -> None:
    random_ = ("--set", "split.kind=random", "--set", "training.refit=true")
    text = GIVEN.replace('test = "test.parquet"\n', "")
    Path("random.toml").write_text(text)
    report = evergram("train", "random.toml", "--lineage", "a", "--json", *random_).json
    data = report["data"]
    total = pq.read_table("train.parquet").num_rows
    # All that is not test: what is neither are pairs of queries or candidates that training lacks.
    assert total - data["interactions"] >= data["test_pairs"]
    assert data["interactions"] > 0.75 * total
    plain = evergram(
        "train", "random.toml", "--lineage", "b", "--json", "--set", "split.kind=random"
    ).json
    assert plain["training"]["refit"] is None
    assert plain["data"]["interactions"] < data["interactions"]
    refused = evergram(
        "train", "random.toml", "--lineage", "c", *random_, "--set", "split.selection=paper"
    )
    assert refused.code == 2
    assert "training.refit" in refused.err


SHOP = """
name = "shop"
[data]
kind = "synthetic"
queries = 150
candidates = 80
interactions = 4000
[split]
kind = "random"
[model]
dim = [4, 6]
"""


def test_11_training_ends_when_patience_runs_out(tmp_path: Path, evergram: Command) -> None:
    (tmp_path / "shop.toml").write_text(SHOP)
    options = ("--lineage", str(tmp_path / "l"), "--json", "--set", "training.patience=2")
    training = evergram("train", str(tmp_path / "shop.toml"), *options).json["training"]
    assert training["ended"] == "patience"
    assert (
        training["epochs"] == training["best_epoch"] + 2 == training["history"][-1]["epoch"] < 100
    )
    assert training["warnings"] == []


def test_11_a_best_epoch_that_is_the_last_is_warned_of(tmp_path: Path, evergram: Command) -> None:
    (tmp_path / "shop.toml").write_text(SHOP + "[task]\npenalty = 5.0\nl2 = 0.1\n")
    recipe, lineage = tmp_path / "shop.toml", ("--lineage", tmp_path / "l")
    short = ("--set", "training.epochs=2", "--set", "training.table_rate=0.02")
    trained = evergram("train", recipe, *lineage, *short, "--json")
    training = trained.json["training"]
    assert training["ended"] == "epochs"
    assert training["best_epoch"] == 2, "this training is not too short for the test"
    assert "raise training.epochs" in training["warnings"][0]
    assert training["warnings"][0] in trained.err
    upgraded = evergram("upgrade", recipe, *lineage, *short, "--json")
    assert "version 1 alone" in upgraded.err
    assert upgraded.json["training"]["alone"]["warnings"]
