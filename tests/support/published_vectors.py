"""A publisher's folder: vectors of two models, a consumer's probe, and a lineage of the first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support import onnx_graphs
from tests.support.command import Command, CommandResult

from evergram.vector_files.writers import write_vectors

ROWS, DIM = 300, onnx_graphs.DIM
IDS = [f"id{i}" for i in range(ROWS)]


@pytest.fixture
def publisher_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A publisher's working directory: vectors of two models, and files of a consumer's probe."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(ROWS, DIM)).astype(np.float32)
    turn, _ = np.linalg.qr(draw.normal(size=(DIM, DIM)))
    for name, values in (("old", vectors), ("new", vectors @ turn.astype(np.float32))):
        write_vectors(Path(f"{name}.parquet"), [(pa.array(IDS), torch.from_numpy(values))])
    label = vectors.sum(axis=1) > 0
    pq.write_table(pa.table({"id": IDS, "label": label}), "data.parquet")
    Path("plain.onnx").write_bytes(onnx_graphs.plain().SerializeToString())
    return tmp_path


@pytest.fixture
def imported_lineage(evergram: Command, publisher_folder: Path) -> Path:
    """A lineage `l` with one version, imported from the old vectors."""
    assert evergram("vectors", "import", "old.parquet", "--lineage", "l").code == 0
    return publisher_folder / "l"


def add_probe(evergram: Command, model: str, *more: object) -> CommandResult:
    """Add the consumer "ads", with a model of this file as its probe."""
    probe = ("--pin", "v0", "--probe", model, "--data", "data.parquet")
    return evergram("consumer", "add", "l", "ads", *probe, *more)
