"""The command as a person runs it: a file in, a lineage out, and one sentence for bad input."""

from __future__ import annotations

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
