"""The command as a person runs it: a file in, a lineage out, and one sentence for bad input."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.command import Command


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
