"""What was trained on is never tested, and two upgrades at once are noticed: lines 1, 2 and 12."""

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

from evergram.cli import main
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
dim = 8
[task]
penalty = 2.0
[training]
epochs = 4
batch_size = 256
table_rate = 0.1
"""

# Between chance and what a model has on pairs that it was trained on.
LEAKED = 0.35


def clicks(rows: int, seed: int = 0) -> pa.Table:
    """Clicks with nothing to learn but the very pairs: who is tested on what it was trained on
    finds it, and nobody else does."""
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


def evergram(*arguments: str) -> int:
    """The exit code of the command, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["evergram", *arguments])
        try:
            main()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 0
    return 0


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON that a command prints."""
    capsys.readouterr()
    code = evergram(*arguments, "--json")
    out, err = capsys.readouterr()
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def trained_on(lineage: str, version: int) -> int:
    """How many pairs a version was trained on that none before it was."""
    return int(pq.read_metadata(f"{lineage}/versions/{version}/trained_pairs.parquet").num_rows)


def upgrades(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    return answer(capsys, "upgrade", "shop.toml", "--lineage", "lin", *options)


@pytest.mark.parametrize("change", ["rows", "seed", "share"])
def test_1_a_grown_lineage_is_not_tested_on_what_it_was_trained_on(
    shop: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    first = answer(capsys, "train", "shop.toml", "--lineage", "lin")
    pq.write_table(pa.concat_tables([clicks(3000), clicks(500, 1)]), shop / "more.parquet")
    options = {
        "rows": ["--set", "data.path=more.parquet"],
        "seed": ["--seed", "1"],
        "share": ["--set", "split.share=0.3"],
    }[change]
    second = upgrades(capsys, *options)
    # There is nothing to learn but the pairs themselves: by chance it is 0.2, and it was 0.54.
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


def test_1_evaluate_by_another_seed_tests_the_same_pairs(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = answer(capsys, "train", "shop.toml", "--lineage", "lin")["metrics"]
    asked = answer(capsys, "evaluate", "lin", "--set", "split.share=0.1")["metrics"]
    assert asked["model"] == pytest.approx(published["model"])
    # More is held out by name, and all of it that the version was trained on is left out.
    wider = answer(capsys, "evaluate", "lin", "--set", "split.share=0.5")["metrics"]
    assert wider["model"]["recall@20"] < LEAKED


def test_1_a_given_test_file_is_cleared_of_what_was_trained_on(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = clicks(3000)
    pq.write_table(whole.slice(0, 2500), shop / "train.parquet")
    pq.write_table(whole.slice(2500), shop / "test.parquet")
    given = ["--set", "split.kind=given", "--set", "data.path=train.parquet"]
    answer(
        capsys, "train", "shop.toml", "--lineage", "lin", *given, "--set", "data.test=test.parquet"
    )
    # The other half is now the test: nearly all of it was trained on.
    pq.write_table(whole.slice(1000), shop / "train2.parquet")
    mixed = pa.concat_tables([whole.slice(0, 1000), clicks(300, 5)])
    pq.write_table(mixed, shop / "test2.parquet")
    other = ["--set", "split.kind=given", "--set", "data.path=train2.parquet"]
    second = upgrades(capsys, *other, "--set", "data.test=test2.parquet")
    assert second["data"]["trained_before"] > 700
    assert 0 < second["data"]["test_pairs"] < 300


def test_1_another_salt_than_the_lineages_is_refused(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "train", "shop.toml", "--lineage", "lin", "--set", "split.salt=a")
    assert json.loads((shop / "lin" / "lineage.json").read_text())["salt"] == "a"
    assert evergram("upgrade", "shop.toml", "--lineage", "lin", "--set", "split.salt=b") == 2
    assert "split.salt is 'b' and the lineage holds out by 'a'" in capsys.readouterr().err
    # The lineage's is taken where the recipe has none.
    upgrades(capsys)


def test_1_an_old_lineage_is_told_and_has_no_test_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    capsys.readouterr()
    assert evergram("upgrade", "golden.toml", "--lineage", "lin") == 0
    err = capsys.readouterr().err
    assert "warning: Version 3: No test figure: the training pairs of versions 0, 1, 2" in err
    stored = Lineage.open("lin").metrics(3)
    assert set(stored["metrics"]["model"].values()) == {None}
    assert stored["data"]["test_pairs"] == 0
    assert evergram("evaluate", "lin") == 2
    assert "No test figure" in capsys.readouterr().err
    # A gate that cannot be measured fails.
    arguments = ["upgrade", "golden.toml", "--lineage", "lin", "--max-degradation", "99"]
    assert evergram(*arguments, "--set", "split.versions=[0.5, 0.6, 0.7, 0.8, 0.9]") == 2


def test_2_a_window_rolls_with_the_data(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hours = pq.read_table(shop / "clicks.parquet")
    rolling = ["--set", "split.kind=time", "--set", 'split.last="5 %"']
    answer(capsys, "train", "shop.toml", "--lineage", "lin", *rolling)
    pq.write_table(clicks(3600), shop / "clicks.parquet")
    second = upgrades(capsys, *rolling)
    assert hours.num_rows < second["data"]["interactions"] + second["data"]["test_pairs"] <= 3600
    pq.write_table(clicks(4200), shop / "clicks.parquet")
    days = ["--set", "split.kind=time", "--set", 'split.last="7 days"']
    third = upgrades(capsys, *days)
    # A click an hour: 168 before the last one, and this, are in the window.
    assert third["data"]["interactions"] == 4200 - 169
    assert (
        evergram("upgrade", "shop.toml", "--lineage", "lin", *days[:2], "--set", "split.last=x")
        == 2
    )
    assert "'5 %', '36 hours', '7 days'" in capsys.readouterr().err


def test_also_the_last_interval_is_as_long_as_the_one_before_it(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_time = ["--set", "split.kind=time", "--set", "split.versions=[0.5, 0.7]"]
    answer(
        capsys, "train", "shop.toml", "--lineage", "lin", *by_time, "--set", "split.selection=paper"
    )
    found = upgrades(capsys, *by_time, "--set", "split.selection=paper")["data"]
    # 0.7 to 0.9 of 3,000 clicks by people who are all known: 600, less repeated pairs.
    assert 450 < found["test_pairs"] <= 600
    shorter = [*by_time, "--set", "split.end=0.75"]
    shutil.rmtree(shop / "lin")
    answer(capsys, "train", "shop.toml", "--lineage", "lin", *shorter)
    assert upgrades(capsys, *shorter)["data"]["test_pairs"] <= 150


def test_12_a_second_upgrade_is_noticed_when_it_begins(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "train", "shop.toml", "--lineage", "lin")
    program = [sys.executable, "-c", "from evergram.cli import main; main()"]
    slow = ["upgrade", "shop.toml", "--lineage", "lin", "--set", "training.epochs=100000"]
    first = subprocess.Popen([*program, *slow], stderr=subprocess.DEVNULL)
    try:
        owner = shop / "lin" / ".work" / "training.json"
        deadline = time.monotonic() + 120
        while not owner.exists():
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert evergram("upgrade", "shop.toml", "--lineage", "lin") == 2
        said = capsys.readouterr().err
        assert f"(process {first.pid})" in said
        assert "training the next version of lin" in said
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    # A claim ends with its process, however it ends.
    assert upgrades(capsys)["version"] == 1
    assert not (shop / "lin" / ".work").exists()


def test_12_an_upgrade_that_lost_the_race_keeps_its_model(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(capsys, "train", "shop.toml", "--lineage", "lin")
    shutil.copytree("lin", "theirs")
    upgrades_of_theirs = evergram("upgrade", "shop.toml", "--lineage", "theirs", "--seed", "7")
    assert upgrades_of_theirs == 0
    publish = Lineage.publish

    def overtaken(self: Lineage, *args: Any, **kwargs: Any) -> int:
        # Another machine's version arrives between training and publication.
        shutil.copytree("theirs", "lin", dirs_exist_ok=True)
        return publish(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Lineage, "publish", overtaken)
        assert evergram("upgrade", "shop.toml", "--lineage", "lin") == 2
    said = capsys.readouterr().err
    assert "its newest version is 1" in said
    assert "--kept" in said
    assert Lineage.open("lin").newest == 1
    other = evergram("upgrade", "shop.toml", "--lineage", "lin", "--kept", "--seed", "3")
    assert other == 2
    assert "trained by another recipe (seed changed)" in capsys.readouterr().err
    found = upgrades(capsys, "--kept")
    assert found["version"] == 2
    line = Lineage.open("lin")
    assert line.newest == 2
    # It is the model that was trained as version 1, with a way back to the other version 1.
    assert evergram("upgrade", "shop.toml", "--lineage", "lin", "--kept") == 2
    assert "No model is kept" in capsys.readouterr().err


def test_1_the_salt_and_the_pairs_are_what_is_published(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "train", "shop.toml", "--lineage", "lin")
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
