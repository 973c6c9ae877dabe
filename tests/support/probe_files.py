"""A consumer with a probe whose files were never meant to be read."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from evergram.lineage.consumers import ConsumerRegistry, Probe
from evergram.lineage.lineage import Lineage


def add_probe(lineage: Lineage, folder: Path) -> Probe:
    save_file({"weight": torch.ones(1, 6)}, folder / "m.safetensors")
    (folder / "d.parquet").write_bytes(b"data")
    probe = Probe(
        model=str(folder / "m.safetensors"),
        data=str(folder / "d.parquet"),
        side="object",
        metric="auc",
    )
    added = ConsumerRegistry.open(lineage.path).add("ads", "v0", lineage.resolve, probe=probe).probe
    assert added is not None
    return added
