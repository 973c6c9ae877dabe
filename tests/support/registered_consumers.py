"""Consumers of `tiny_lineage` whose probes are linear models of version 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import save_file
from torch import Tensor

from evergram.lineage.consumers.record import Probe
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage


def register(
    lineage: Lineage, folder: Path, name: str, weight: Tensor, **changes: Any
) -> ConsumerRegistry:
    """Add a consumer whose probe is a linear model.

    Args:
        weight: [D] or [C, D].
        changes: of `side` ("candidate"), `metric` ("rmse"), `pinned` ("v0") and `ids`, by default
            those of the side.
    """
    side, pinned = changes.get("side", "candidate"), changes.get("pinned", "v0")
    ids = changes.get("ids")
    if ids is None:
        ids = lineage.embeddings(side)[0]
    model, data = folder / f"{name}.safetensors", folder / f"{name}.parquet"
    save_file({"weight": weight.contiguous()}, model)
    pq.write_table(pa.table({"id": ids, "label": [i % 2 for i in range(len(ids))]}), data)
    probe = Probe(model=str(model), data=str(data), side=side, metric=changes.get("metric", "rmse"))
    registry = ConsumerRegistry.open(lineage.path)
    registry.add(name, pinned, lineage.resolve, probe=probe)
    return registry
