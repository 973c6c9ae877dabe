"""Versions whose transform halves every vector: exact on nothing, half as long on all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from tests.support.publishing import publish_next

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import LinearTransform, Transform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage

IDS = pa.array([f"id{i}" for i in range(200)])


VECTORS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))


def add_halving_version(
    lineage: Lineage,
    recipe: dict[str, Any],
    overlap: dict[str, Any] | None = None,
    objects: int = 100,
    transform: Transform | None = None,
    error: StepError | None = None,
    vectors: torch.Tensor = VECTORS,
) -> None:
    """Publish a version whose transform halves every vector, unless it is another one."""
    number = lineage.next_version
    back = LinearTransform.from_matrix(0.5 * torch.eye(3)) if transform is None else transform
    if error is None:
        error = StepError(torch.eye(3, dtype=torch.float64) / 4, objects, 3.0)
    publish_next(
        lineage,
        Artefact(
            dim=3,
            embeddings={"object": (IDS, vectors)},
            transform=back if number else None,
            metrics={
                "metrics": {"model": {}},
                **({} if overlap is None else {"overlap": overlap}),
            },
            recipe=recipe,
            canaries={"object": (IDS, vectors)},
            error=error if number else None,
        ),
        promote=False,
    )
