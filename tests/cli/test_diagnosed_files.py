"""`evergram vectors diagnose`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tests.support.command import Command
from tests.support.mixed_vectors import ROWS, encoded, meanings, mixed
from tests.support.own_tables import own_store

from evergram.vector_files.open_embeddings import write_vectors


def test_the_command_writes_models_and_its_code_says_whether_there_are_two(
    tmp_path: Path, evergram: Command
) -> None:
    vectors, foreign = mixed(0.1)
    file, out = tmp_path / "mixed.parquet", tmp_path / "models.parquet"
    write_vectors(file, [(pa.array(range(ROWS)), vectors)])
    ran = evergram("vectors diagnose", file, "--out", out)
    assert ran.code == 1
    assert "2 models" in ran.out
    table = pq.read_table(out)
    named = torch.tensor(table["model"].to_pylist()) == 1
    assert float((named == foreign).double().mean()) > 0.98
    assert "--force" in evergram("vectors diagnose", file, "--out", out).refusal()
    assert ".parquet" in evergram("vectors diagnose", file, "--out", tmp_path / "m.csv").refusal()
    write_vectors(file, [(pa.array(range(ROWS)), encoded(meanings(), 0))], overwrite=True)
    assert evergram("vectors diagnose", file, "--json").json["verdict"] == "one"


def test_a_table_of_ones_own_is_diagnosed_in_place(tmp_path: Path, evergram: Command) -> None:
    address = own_store("lance-table", tmp_path, rows=600)
    report = evergram("vectors diagnose", address, "--json").json
    assert (report["verdict"], report["rows"]) == ("one", 600)
    assert "--column" in evergram("vectors diagnose", address, "--column", "id=a").refusal()
    (tmp_path / "x.csv").write_text("id,vector\n")
    for name in ("x.csv", "none.csv", "none"):
        assert ".parquet, .pq, .arrow" in evergram("vectors diagnose", tmp_path / name).refusal()
    assert "does not exist" in evergram("vectors diagnose", tmp_path / "none.npy").refusal()
