"""The command as a person runs it: a file in, a lineage out, and one sentence for bad input."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command

from evergram.lineage.lineage import Lineage


@pytest.mark.long
def test_the_whole_way(evergram: Command, growing_shop: Path) -> None:
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

    evaluated = evergram("evaluate", "lin", "--json").json
    assert evaluated["metrics"]["model"] == pytest.approx(upgraded.json["metrics"]["model"])
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
    evergram: Command, growing_shop: Path, arguments: list[str], message: str
) -> None:
    (growing_shop / "empty.csv").touch()
    (growing_shop / "nan.csv").write_text("query,candidate,value,time\n1,2,3.0,1\n1,3,nan,2\n")
    (growing_shop / "few.csv").write_text("query,candidate,time\n1,2,3\n2,3,4\n")
    before = sorted(growing_shop.rglob("*"))
    ran = evergram(*arguments)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert ran.out == ""
    assert sorted(growing_shop.rglob("*")) == before


def test_bad_input_on_a_lineage(evergram: Command, growing_shop: Path) -> None:
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
    (growing_shop / "clicks.parquet").unlink()
    assert "clicks.parquet" in evergram("evaluate", "lin").err


@pytest.mark.long
@pytest.mark.parametrize("command", ["train", "upgrade"])
def test_a_killed_run_leaves_the_lineage_as_it_was(growing_shop: Path, command: str) -> None:
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
        if (growing_shop / "lin" / "lineage.json").exists():
            lineage = Lineage.open("lin")
            versions = [m.version for m in lineage.versions]
            if versions != expected:
                # It had published before it died: then all of it is there.
                assert versions == [*expected, len(expected)]
                lineage.view(0).embeddings("query")
                break
            lineage.view(0).embeddings("query")
        else:
            assert command == "train"
    assert killed


@pytest.mark.long
def test_plain_lines_where_stderr_is_a_file(growing_shop: Path) -> None:
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


def numbers(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a comparison without its times."""
    for row in results["table"]:
        del row["seconds"]
    for runs in results["runs"].values():
        for metrics in runs.values():
            del metrics["seconds"]
    return results


@pytest.mark.long
def test_killed_and_started_again_it_finds_the_same(
    compare_recipe: Path, tmp_path: Path, evergram: Command
) -> None:
    out = tmp_path / "killed"
    command = [sys.executable, "-c", "from evergram.cli import main; main()"]
    process = subprocess.Popen(
        [*command, "compare", str(compare_recipe), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    there = out / "seed-0" / "non-bc" / "lineage.json"
    limit = time.monotonic() + 60
    while not there.exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert there.exists()
    assert not (out / "results.json").exists()
    code, text, _ = evergram("compare", compare_recipe, "--out", out, "--json")
    assert code == 0
    _, whole, _ = evergram("compare", compare_recipe, "--out", tmp_path / "whole", "--json")
    assert numbers(json.loads(text)) == numbers(json.loads(whole))
