"""A lineage in which every backward transform is exact."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import torch
from tests.support.publishing import copy_of, publish_next
from torch import Tensor

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import LinearTransform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage

SIDE = "object"
DIMS = (4, 5, 6, 3, 4)
ROWS = 60


def vectors_of(number: int) -> Tensor:
    """z_n of a chain in which every step is exact: all are made from one matrix of rank 3, as
    z_{n-1} = B_n z_n would otherwise need D_n ≥ D_{n-1}."""
    draw = torch.Generator().manual_seed(7)
    base = torch.randn(ROWS, 3, generator=draw)
    own = torch.Generator().manual_seed(100 + number)
    return base @ torch.randn(3, DIMS[number], generator=own)


def exact_version(number: int, before: int | None) -> Artefact:
    """Version `number`, which leads to version `before`."""
    z = vectors_of(number)
    transform, error = None, None
    if before is not None:
        past = vectors_of(before)
        matrix = torch.linalg.lstsq(z.double(), past.double(), driver="gelsd").solution.T.float()
        transform = LinearTransform.from_matrix(matrix)
        error = StepError.of(z @ matrix.T, past)
    ids = pa.array([f"id{i}" for i in range(ROWS)])
    return Artefact(
        dim=DIMS[number],
        embeddings={SIDE: (ids, z)},
        transform=transform,
        metrics={"metrics": {"model": {}}},
        recipe={"number": number},
        canaries={SIDE: ids[:5]},
        error=error,
    )


def exact_lineage(folder: Path) -> Lineage:
    """Versions 0 and 1."""
    return copy_of("exact", _publish, folder)


def _publish(folder: Path) -> None:
    lineage = Lineage.create(folder, "shop")
    publish_next(lineage, exact_version(0, None))
    publish_next(lineage, exact_version(1, 0))
