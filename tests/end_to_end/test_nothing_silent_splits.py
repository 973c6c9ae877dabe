"""Trained pairs are never tested, and two upgrades at once are noticed: promises 1, 2 and 12."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command

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
