"""The command as a person runs it: a file in, a lineage out, and one sentence for bad input."""

from __future__ import annotations

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
from tests.support.command import PROGRAM, Command, run_process

from evergram.lineage.lineage import Lineage


@pytest.mark.long
def test_a_lineage_is_trained_upgraded_evaluated_and_exported(
    evergram: Command, growing_shop: Path
) -> None:
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

    listed = evergram("lineage", "list", "lin", "--json").json
    assert [(v["version"], v["dim"]) for v in listed["versions"]] == [(0, 4), (1, 6)]

    evaluated = evergram("evaluate", "lin", "--json").json
    assert evaluated["metrics"]["model"] == pytest.approx(upgraded.json["metrics"]["model"])
    as_past = evergram("evaluate", "lin", "--as", "0", "--json").json
    assert (as_past["version"], as_past["as"]) == (1, 0)

    for version, dim in (("0", 4), ("1", 6)):
        written = evergram(
            "vectors", "export", "lin", "out.parquet", "--side", "candidate", "--as", version,
            "--force", "--json",
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
    (["lineage", "list", "lin"], "not a lineage"),
    (["evaluate", "lin"], "not a lineage"),
    (["vectors", "export", "lin", "out.parquet", "--side", "query"], "not a lineage"),
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
        (["vectors", "export", "lin", "o.parquet", "--side", "item"], "no side 'item'"),
        (["vectors", "export", "lin", ".", "--side", "query"], "is a folder"),
        (["vectors", "export", "lin", "no/o.parquet", "--side", "query"], "no is not there"),
    ):
        ran = evergram(*arguments)
        assert ran.code == 2
        assert message in ran.err
    (growing_shop / "clicks.parquet").unlink()
    assert "clicks.parquet" in evergram("evaluate", "lin").err


@pytest.mark.long
@pytest.mark.parametrize("command", ["train", "upgrade"])
def test_a_killed_run_leaves_the_lineage_as_it_was(
    evergram: Command, growing_shop: Path, command: str
) -> None:
    """Killed at random times: test_nothing_silent_trust.py kills at each operation on a file."""
    arguments = (command, "shop.toml", "--lineage", "lin", "--set", "training.epochs=30")
    before = [0] if command == "upgrade" else []
    if before:
        assert evergram("train", *arguments[1:]).code == 0
    draw, killed, seconds = random.Random(0), 0, 3.0
    for attempt in range(5):
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # The first dies while it imports or reads; the others anywhere within a whole run.
        time.sleep(0.8 if attempt == 0 else draw.uniform(0.5, 1.0) * seconds)
        process.send_signal(signal.SIGKILL)
        ended = process.wait() == 0
        killed += not ended
        seconds = max(seconds, time.monotonic() - started) if ended else seconds
        if not (growing_shop / "lin" / "lineage.json").exists():
            assert command == "train"
            continue
        lineage = Lineage.open("lin")
        versions = [m.version for m in lineage.versions]
        lineage.view(0).embeddings("query")
        if versions != before:
            # It published before it died, and then all of the version is there.
            assert versions == [*before, len(before)]
            break
    assert killed


@pytest.mark.long
def test_progress_is_plain_lines_where_stderr_is_a_file(growing_shop: Path) -> None:
    result = run_process(
        "train", "shop.toml", "--lineage", "lin", "--set", "task.penalty=10", COLUMNS="100"
    )
    assert result.code == 0, result.err
    lines = result.err.splitlines()
    # The best of two epochs is the last, so a warning follows.
    assert len(lines) == 3
    assert all("examples/s" in line and "s left" in line for line in lines[:2])
    assert lines[2].startswith("warning: ")
    assert "\x1b" not in result.err + result.out


def without_times(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a comparison without its times."""
    for row in results["table"]:
        del row["seconds"]
    for runs in results["runs"].values():
        for metrics in runs.values():
            del metrics["seconds"]
    return results


@pytest.mark.long
def test_a_killed_comparison_resumes_and_ends_with_the_same_numbers(
    compare_recipe: Path, tmp_path: Path, evergram: Command
) -> None:
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "compare", str(compare_recipe), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    second_method = out / "seed-0" / "non-bc" / "lineage.json"
    limit = time.monotonic() + 60
    while not second_method.exists() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert second_method.exists()
    assert not (out / "results.json").exists()
    resumed = evergram.json("compare", compare_recipe, "--out", out)
    whole = evergram.json("compare", compare_recipe, "--out", tmp_path / "whole")
    assert without_times(resumed) == without_times(whole)
