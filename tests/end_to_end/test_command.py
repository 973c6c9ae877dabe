"""The command as a person runs it: a file in, a lineage out, and one sentence for bad input."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command

from evergram.cli import app
from evergram.lineage.lineage import Lineage

RECIPE = """
name = "shop"
[data]
kind = "table"
path = "clicks.parquet"
[split]
versions = [0.5, 0.7]
kind = "time"
[model]
dim = [4, 6]
[task]
penalty = 2.0
[training]
epochs = 2
batch_size = 64
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and a table of 4,000 clicks, by people of four tastes."""
    draw = random.Random(0)
    queries = [draw.randrange(200) for _ in range(4000)]
    rows = [(q, f"item{4 * draw.randrange(15) + q % 4}") for q in queries]
    table = pa.table(
        {
            "query": [q for q, _ in rows],
            "candidate": [c for _, c in rows],
            "time": range(4000),
        }
    )
    pq.write_table(table, tmp_path / "clicks.parquet")
    (tmp_path / "shop.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
def test_the_whole_way(evergram: Command, shop: Path) -> None:
    trained = evergram("train", "shop.toml", "--lineage", "lin", "--json")
    assert trained.code == 0, trained.err
    assert trained.json["version"] == 0
    assert set(trained.json["metrics"]) == {"model", "popularity"}
    assert set(trained.json["metrics"]["model"]) == {"recall@20", "ndcg@20", "map@10"}
    assert "epoch 2 loss" in trained.err

    upgraded = evergram("upgrade", "shop.toml", "--lineage", "lin", "--json")
    assert upgraded.code == 0, upgraded.err
    assert set(upgraded.json["metrics"]) == {"model", "popularity", "alone"}
    assert set(upgraded.json["compatibility"]["0"]["ranking"]) == {
        "past",
        "chain",
        "raw",
        "chain_candidates",
        "raw_candidates",
    }

    listed = evergram("versions", "lin", "--json").json
    assert [(v["version"], v["dim"]) for v in listed["versions"]] == [(0, 4), (1, 6)]

    found = evergram("evaluate", "lin", "--json").json
    assert found["metrics"]["model"] == pytest.approx(upgraded.json["metrics"]["model"])
    as_past = evergram("evaluate", "lin", "--as", "0", "--json").json
    assert (as_past["version"], as_past["as"]) == (1, 0)

    for version, dim in (("0", 4), ("1", 6)):
        written = evergram(
            "export", "lin", "out.parquet", "--side", "candidate", "--as", version, "--force",
            "--json",
        )  # fmt: skip
        assert written.json["dim"] == dim
        table = pq.read_table("out.parquet")
        assert table["vector"].type == pa.list_(pa.float32(), dim)
        assert table.num_rows == written.json["rows"] == len(set(table["id"].to_pylist()))


@pytest.mark.long
def test_tables_for_people(evergram: Command, shop: Path) -> None:
    assert "popularity" in evergram("train", "shop.toml", "--lineage", "lin").out
    assert "Read as version 0" in evergram("upgrade", "shop.toml", "--lineage", "lin").out
    assert "shop, in lin" in evergram("versions", "lin").out
    assert "read as version 0" in evergram("evaluate", "lin", "--as", "0").out
    assert "read as version 1" in evergram("export", "lin", "o.parquet", "--side", "query").out


def test_an_upgrade_may_stay_beside_production(evergram: Command, shop: Path) -> None:
    evergram("train", "shop.toml", "--lineage", "lin")
    assert evergram("upgrade", "shop.toml", "--lineage", "lin", "--no-promote").code == 0
    listed = evergram("versions", "lin", "--json").json
    assert listed["labels"] == {"stable": 0}
    assert [v["held"] for v in listed["versions"]] == [True, True]
    assert evergram("evaluate", "lin", "--as", "stable", "--json").json["as"] == 0


def test_check_prints_and_holds_to_limits(evergram: Command, shop: Path) -> None:
    evergram("train", "shop.toml", "--lineage", "lin")
    evergram("upgrade", "shop.toml", "--lineage", "lin")
    found = evergram("check", "lin", "--json", "--max-error", "1000")
    assert found.code == 0, found.err
    (reading,) = found.json["readings"]
    assert 0 < reading["measured"]["relative"] < 1000
    assert reading["certificate"]["bound"] >= reading["certificate"]["estimate"] > 0
    assert "amplification" in evergram("check", "lin").out
    refused = evergram("check", "lin", "--max-error", "0", "--max-amplification", "0")
    assert refused.code == 1
    assert refused.err.count("Version 0: its") == 2


def test_a_version_that_loses_too_much_is_not_published(evergram: Command, shop: Path) -> None:
    evergram("train", "shop.toml", "--lineage", "lin")
    arguments = ("upgrade", "shop.toml", "--lineage", "lin", "--set", "training.table_rate=1e-6")
    refused = evergram(*arguments, "--max-degradation", "0.01")
    assert refused.code == 2
    assert "was not published" in refused.err
    assert Lineage.open("lin").newest == 0
    assert list((shop / "lin" / ".work").iterdir())
    again = evergram(*arguments, "--max-degradation", "100")
    assert again.code == 0, again.err
    assert Lineage.open("lin").newest == 1


def test_seed_and_set_change_the_run(evergram: Command, shop: Path) -> None:
    evergram("train", "shop.toml", "--lineage", "a", "--seed", "3", "--set", "model.dim=5")
    manifest = Lineage.open("a").manifest(0)
    assert (manifest.dim, manifest.recipe["seed"]) == (5, 3)


BAD = [
    (["train", "none.toml", "--lineage", "lin"], "There is no recipe none.toml"),
    (["train", "shop.toml", "--lineage", "lin", "--set", "model.dim=0"], "model.dim is 0"),
    (["train", "shop.toml", "--lineage", "lin", "--set", "model.dimm=1"], "key model.dimm"),
    (["train", "shop.toml", "--lineage", "lin", "--set", "data.path=no.csv"], "no.csv"),
    (["train", "shop.toml", "--lineage", "lin", "--set", "data.path=empty.csv"], "is empty"),
    (["train", "shop.toml", "--lineage", "lin", "--set", "data.path=nan.csv"], "row 2: value"),
    (["train", "shop.toml", "--lineage", "lin", "--set", "data.path=few.csv"], "too few"),
    (["train", "shop.toml", "--lineage", "lin", "--device", "tpu"], "--device tpu"),
    (["train", "shop.toml", "--lineage", "shop.toml"], "is a file"),
    (["upgrade", "shop.toml", "--lineage", "lin"], "not a lineage"),
    (["versions", "lin"], "not a lineage"),
    (["evaluate", "lin"], "not a lineage"),
    (["export", "lin", "out.parquet", "--side", "query"], "not a lineage"),
    (["demo", "--data", "nowhere", "--out", "lin"], "no file or folder"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda v: " ".join(v)[-40:])
def test_bad_input_is_one_sentence_and_writes_nothing(
    evergram: Command, shop: Path, arguments: list[str], message: str
) -> None:
    (shop / "empty.csv").touch()
    (shop / "nan.csv").write_text("query,candidate,value,time\n1,2,3.0,1\n1,3,nan,2\n")
    (shop / "few.csv").write_text("query,candidate,time\n1,2,3\n2,3,4\n")
    before = sorted(shop.rglob("*"))
    ran = evergram(*arguments)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert ran.out == ""
    assert sorted(shop.rglob("*")) == before


def test_bad_input_on_a_lineage(evergram: Command, shop: Path) -> None:
    assert evergram("train", "shop.toml", "--lineage", "lin").code == 0
    for arguments, message in (
        (["train", "shop.toml", "--lineage", "lin"], "already holds a lineage"),
        (["evaluate", "lin", "--as", "7"], "no version 7"),
        (["export", "lin", "o.parquet", "--side", "item"], "no side 'item'"),
        (["export", "lin", ".", "--side", "query"], "is a folder"),
        (["export", "lin", "no/o.parquet", "--side", "query"], "no is not there"),
    ):
        ran = evergram(*arguments)
        assert ran.code == 2
        assert message in ran.err
    (shop / "clicks.parquet").unlink()
    assert "clicks.parquet" in evergram("evaluate", "lin").err


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


def test_every_command_has_an_answer_for_machines() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        assert "as_json" in command.callback.__annotations__


@pytest.mark.long
@pytest.mark.parametrize("command", ["train", "upgrade"])
def test_a_killed_run_leaves_the_lineage_as_it_was(shop: Path, command: str) -> None:
    code = "from evergram.cli import main; main()"
    base = [sys.executable, "-c", code]
    if command == "upgrade":
        subprocess.run(
            [*base, "train", "shop.toml", "--lineage", "lin"], check=True, capture_output=True
        )
    draw, killed, whole = random.Random(0), 0, 3.0
    for attempt in range(8):
        started = time.monotonic()
        process = subprocess.Popen(
            [*base, command, "shop.toml", "--lineage", "lin"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # The first run tells how long one takes; the others die somewhere within.
        if attempt == 0:
            time.sleep(0.8)
        else:
            time.sleep(draw.uniform(0.5, 1.0) * whole)
        process.send_signal(signal.SIGKILL)
        code_of = process.wait()
        whole = max(whole, time.monotonic() - started) if code_of == 0 else whole
        done = code_of == 0
        killed += not done
        expected = [0] if command == "upgrade" else []
        if (shop / "lin" / "lineage.json").exists():
            found = Lineage.open("lin")
            versions = [m.version for m in found.versions]
            if versions != expected:
                # It had published before it died: then all of it is there.
                assert versions == [*expected, len(expected)]
                found.view(0).embeddings("query")
                break
            found.view(0).embeddings("query")
        else:
            assert command == "train"
    assert killed


@pytest.mark.long
def test_plain_lines_where_stderr_is_a_file(shop: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "from evergram.cli import main; main()",
         "train", "shop.toml", "--lineage", "lin", "--set", "task.penalty=10", "--set",
         "task.l2=0.1", "--set", "training.table_rate=0.1"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    lines = ran.stderr.splitlines()
    # The best of two epochs is the last, and that is said.
    assert len(lines) == 3
    assert all("examples/s" in line and "s left" in line for line in lines[:2])
    assert lines[2].startswith("warning: ")
    assert "\x1b" not in ran.stderr + ran.stdout
