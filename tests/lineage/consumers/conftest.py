"""A probe whose files were never meant to be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from evergram.lineage.consumers.record import Baseline, Probe


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    model, data = tmp_path / "m.safetensors", tmp_path / "d.parquet"
    model.write_bytes(b"weights")
    data.write_bytes(b"rows")
    return Probe(
        model=str(model),
        data=str(data),
        side="candidate",
        metric="auc",
        min=0.7,
        baseline=Baseline(version=2, value=0.8, objects=5),
    )
