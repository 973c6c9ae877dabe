"""Trained pairs are never tested, and two upgrades at once are noticed: promises 1, 2 and 12."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.command import PROGRAM, Command

from evergram.data.corpus import Corpus
from evergram.data.pair_hash import PairHash
from evergram.lineage.lineage import Lineage

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

UPGRADE = ("upgrade", "shop.toml", "--lineage", "lin")
# Between the recall@20 of chance, 0.17, and that of a model on its own training pairs, 0.8.
LEAKED = 0.35


def clicks(rows: int, seed: int = 0) -> pa.Table:
    """Clicks with nothing to learn but the very pairs.

    A model that is tested on its own training pairs scores high; no other model does.
    """
    draw = random.Random(seed)
    pairs = [(draw.randrange(150), f"item{draw.randrange(120)}") for _ in range(rows)]
    return pa.table(
        {
            "query": [q for q, _ in pairs],
            "candidate": [c for _, c in pairs],
            "time": [1_700_000_000 + 3600 * i for i in range(rows)],
        }
    )


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pq.write_table(clicks(3000), tmp_path / "clicks.parquet")
    (tmp_path / "shop.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained_on(lineage: str, version: int) -> int:
    """Return how many pairs a version was the first to be trained on."""
    return int(pq.read_metadata(f"{lineage}/versions/{version}/trained_pairs.parquet").num_rows)


def upgraded(evergram: Command, *options: str) -> dict[str, Any]:
    """Publish the next version of the shop, and return its metrics."""
    metrics: dict[str, Any] = evergram.json(*UPGRADE, *options)
    return metrics


def test_1_a_model_of_these_clicks_knows_the_pairs_that_it_was_trained_on(
    shop: Path, evergram: Command
) -> None:
    """Otherwise a leak would not show in the tests below."""
    fair = evergram.json("train", "shop.toml", "--lineage", "lin")["metrics"]["model"]["recall@20"]
    lineage, table = Lineage.open("lin"), clicks(3000)
    (queries, q), (candidates, c) = (lineage.embeddings(s) for s in ("query", "candidate"))
    best = (q @ c.T).topk(20).indices
    lists = {
        query: {candidates[int(i)].as_py() for i in row}
        for query, row in zip(queries.to_pylist(), best, strict=True)
    }
    pairs = list(zip(table["query"].to_pylist(), table["candidate"].to_pylist(), strict=True))
    known = sum(candidate in lists.get(query, ()) for query, candidate in pairs) / len(pairs)
    assert fair < LEAKED < known - 0.2


@pytest.mark.parametrize("change", ["rows", "seed", "share"])
def test_1_a_grown_lineage_is_not_tested_on_what_it_was_trained_on(
    shop: Path, evergram: Command, change: str
) -> None:
    first = evergram.json("train", "shop.toml", "--lineage", "lin")
    pq.write_table(pa.concat_tables([clicks(3000), clicks(500, 1)]), shop / "more.parquet")
    options = {
        "rows": ["--set", "data.path=more.parquet"],
        "seed": ["--seed", "1"],
        "share": ["--set", "split.share=0.3"],
    }[change]
    second = upgraded(evergram, *options)
    assert second["metrics"]["model"]["recall@20"] < LEAKED
    if change == "seed":
        assert second["data"]["test_pairs"] == first["data"]["test_pairs"]
        assert trained_on("lin", 1) == 0
    if change == "share":
        # What the larger share holds out was trained on, but for what was held out already.
        assert second["data"]["trained_before"] > 200
        assert second["data"]["test_pairs"] <= first["data"]["test_pairs"]
    if change == "rows":
        assert trained_on("lin", 1) > 200


def test_1_evaluate_by_another_seed_tests_the_same_pairs(shop: Path, evergram: Command) -> None:
    published = evergram.json("train", "shop.toml", "--lineage", "lin")["metrics"]
    asked = evergram.json("evaluate", "lin", "--set", "split.share=0.1")["metrics"]
    assert asked["model"] == pytest.approx(published["model"])
    # More is held out by name, and all of it that the version was trained on is left out.
    wider = evergram.json("evaluate", "lin", "--set", "split.share=0.5")["metrics"]
    assert wider["model"]["recall@20"] < LEAKED


def test_1_a_given_test_file_is_cleared_of_what_was_trained_on(
    shop: Path, evergram: Command
) -> None:
    whole = clicks(3000)
    pq.write_table(whole.slice(0, 2500), shop / "train.parquet")
    pq.write_table(whole.slice(2500), shop / "test.parquet")
    first = ["--set", "split.kind=given", "--set", "data.path=train.parquet"]
    evergram.json(
        "train", "shop.toml", "--lineage", "lin", *first, "--set", "data.test=test.parquet"
    )
    # The other half is now the test: nearly all of it was trained on.
    pq.write_table(whole.slice(1000), shop / "train2.parquet")
    mixed = pa.concat_tables([whole.slice(0, 1000), clicks(300, 5)])
    pq.write_table(mixed, shop / "test2.parquet")
    other = ["--set", "split.kind=given", "--set", "data.path=train2.parquet"]
    second = upgraded(evergram, *other, "--set", "data.test=test2.parquet")
    assert second["data"]["trained_before"] > 700
    assert 0 < second["data"]["test_pairs"] < 300


def test_1_another_salt_than_the_lineages_is_refused(shop: Path, evergram: Command) -> None:
    evergram.json("train", "shop.toml", "--lineage", "lin", "--set", "split.salt=a")
    assert json.loads((shop / "lin" / "lineage.json").read_text())["salt"] == "a"
    sentence = evergram.refused(*UPGRADE, "--set", "split.salt=b")
    assert "split.salt is 'b' and the lineage holds out by 'a'" in sentence
    # The lineage's is taken where the recipe has none.
    upgraded(evergram)


def test_1_an_old_lineage_is_warned_of_and_has_no_test_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evergram: Command
) -> None:
    golden = Path(__file__).parents[1] / "golden" / "format-3" / "trained"
    shutil.copytree(golden, tmp_path / "lin")
    monkeypatch.chdir(tmp_path)
    recipe = Lineage.open("lin").recipe(2)
    assert recipe["data"]["kind"] == "synthetic"
    (tmp_path / "golden.toml").write_text(
        'name = "golden"\n[data]\nkind = "synthetic"\nqueries = 30\ncandidates = 20\n'
        'interactions = 400\n[split]\nkind = "time"\nversions = [0.5, 0.6, 0.7, 0.8]\n'
        "[model]\ndim = [4, 6, 3, 5]\n[training]\nepochs = 2\nbatch_size = 64\n"
    )
    upgrade = evergram("upgrade", "golden.toml", "--lineage", "lin")
    assert upgrade.code == 0
    warning = "warning: Version 3: No test figure: the training pairs of versions 0, 1, 2"
    assert warning in upgrade.err
    stored = Lineage.open("lin").metrics(3)
    assert set(stored["metrics"]["model"].values()) == {None}
    assert stored["data"]["test_pairs"] == 0
    assert "No test figure" in evergram.refused("evaluate", "lin")
    # A gate that cannot be measured fails.
    arguments = ["upgrade", "golden.toml", "--lineage", "lin", "--max-degradation", "99"]
    assert evergram(*arguments, "--set", "split.versions=[0.5, 0.6, 0.7, 0.8, 0.9]").code == 2


def test_2_a_window_rolls_with_the_data(shop: Path, evergram: Command) -> None:
    hours = pq.read_table(shop / "clicks.parquet")
    rolling = ["--set", "split.kind=time", "--set", 'split.last="5 %"']
    evergram.json("train", "shop.toml", "--lineage", "lin", *rolling)
    pq.write_table(clicks(3600), shop / "clicks.parquet")
    second = upgraded(evergram, *rolling)
    assert hours.num_rows < second["data"]["interactions"] + second["data"]["test_pairs"] <= 3600
    pq.write_table(clicks(4200), shop / "clicks.parquet")
    days = ["--set", "split.kind=time", "--set", 'split.last="7 days"']
    third = upgraded(evergram, *days)
    # A click an hour: 168 before the last one, and this, are in the window.
    assert third["data"]["interactions"] == 4200 - 169
    sentence = evergram.refused(*UPGRADE, *days[:2], "--set", "split.last=x")
    assert "'5 %', '36 hours', '7 days'" in sentence


def test_also_the_last_interval_is_as_long_as_the_one_before_it(
    shop: Path, evergram: Command
) -> None:
    by_time = ["--set", "split.kind=time", "--set", "split.versions=[0.5, 0.7]"]
    evergram.json(
        "train", "shop.toml", "--lineage", "lin", *by_time, "--set", "split.selection=paper"
    )
    data = upgraded(evergram, *by_time, "--set", "split.selection=paper")["data"]
    # 0.7 to 0.9 of 3,000 clicks by people who are all known: 600, less repeated pairs.
    assert 450 < data["test_pairs"] <= 600
    shorter = [*by_time, "--set", "split.end=0.75"]
    shutil.rmtree(shop / "lin")
    evergram.json("train", "shop.toml", "--lineage", "lin", *shorter)
    assert upgraded(evergram, *shorter)["data"]["test_pairs"] <= 150


@pytest.mark.long
def test_12_a_second_upgrade_is_noticed_when_it_begins(shop: Path, evergram: Command) -> None:
    evergram.json("train", "shop.toml", "--lineage", "lin")
    slow = [*UPGRADE, "--set", "training.epochs=100000"]
    first = subprocess.Popen([sys.executable, "-c", PROGRAM, *slow], stderr=subprocess.DEVNULL)
    try:
        owner = shop / "lin" / ".work" / "training.json"
        deadline = time.monotonic() + 120
        while not owner.exists():
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        sentence = evergram.refused(*UPGRADE)
        assert f"(process {first.pid})" in sentence
        assert "training the next version of lin" in sentence
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    # A claim ends with its process, however it ends.
    assert upgraded(evergram)["version"] == 1
    assert not (shop / "lin" / ".work").exists()


def test_12_an_upgrade_that_lost_the_race_keeps_its_model(
    shop: Path, evergram: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    evergram.json("train", "shop.toml", "--lineage", "lin")
    shutil.copytree("lin", "theirs")
    theirs = evergram("upgrade", "shop.toml", "--lineage", "theirs", "--seed", "7")
    assert theirs.code == 0
    publish = Lineage.publish

    def overtaken(self: Lineage, *args: Any, **kwargs: Any) -> int:
        # Another machine's version arrives between training and publication.
        shutil.copytree("theirs", "lin", dirs_exist_ok=True)
        return publish(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Lineage, "publish", overtaken)
        overtaken_upgrade = evergram(*UPGRADE)
    assert overtaken_upgrade.code == 2
    assert "its newest version is 1" in overtaken_upgrade.err
    assert "--kept" in overtaken_upgrade.err
    assert Lineage.open("lin").newest == 1
    sentence = evergram.refused(*UPGRADE, "--kept", "--seed", "3")
    assert "trained by another recipe (seed changed)" in sentence
    assert upgraded(evergram, "--kept")["version"] == 2
    assert Lineage.open("lin").newest == 2
    # It is the model that was trained as version 1, with a way back to the other version 1.
    assert "No model is kept" in evergram.refused(*UPGRADE, "--kept")


def test_1_the_salt_and_the_trained_pairs_are_published(shop: Path, evergram: Command) -> None:
    evergram.json("train", "shop.toml", "--lineage", "lin")
    history = Lineage.open("lin").pair_history
    assert history.salt == "shop"
    table = clicks(3000)
    hashes = PairHash("shop").of_pairs(table["query"], table["candidate"])
    trained = history.trained.has(hashes)
    corpus = Corpus.from_tables(table)
    assert len(corpus) == 3000
    # About a tenth of all pairs is held out, and what is not was trained on.
    assert 0.87 < trained.mean() < 0.93
    assert trained_on("lin", 0) == len(history.trained)
