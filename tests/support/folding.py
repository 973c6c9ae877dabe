"""A lineage of two versions whose newest folds in new queries by a form of its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import torch
from tests.support.publishing import publish_next
from torch import Tensor

from evergram.compatibility.transforms import LinearTransform
from evergram.gramian.query_form import QueryForm, Term
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage

QUERIES, CANDIDATES, DIMS = 6, 20, (3, 4)
METRICS = {"metrics": {"model": {"recall@20": 0.25}}}


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def candidates_of(version: int) -> Tensor:
    return drawn(version, CANDIDATES, DIMS[version])


def names(count: int, letter: str) -> list[str]:
    return [f"{letter}{i}" for i in range(count)]


def form_of(version: int, *, values: bool = False) -> QueryForm:
    vectors = candidates_of(version).double()
    gramian = vectors.T @ vectors / CANDIDATES
    return QueryForm.of(
        "exact", [Term(2.0, 0.5, gramian, torch.zeros(DIMS[version]))], values=values
    )


def weight() -> Tensor:
    return drawn(7, DIMS[0], DIMS[1])


def folding_lineage(
    folder: Path, *, ids: str = "text", forms: bool = True, values: bool = False
) -> Lineage:
    """Publish both versions; candidates are "c0", "c1", …, or numbers."""
    lineage = Lineage.create(folder, "films")
    for version in (0, 1):
        keys = names(CANDIDATES, "c") if ids == "text" else list(range(CANDIDATES))
        artefact = Artefact(
            DIMS[version],
            {
                "query": (pa.array(names(QUERIES, "q")), drawn(3, QUERIES, DIMS[version])),
                "candidate": (pa.array(keys), candidates_of(version)),
            },
            LinearTransform.from_matrix(weight()) if version else None,
            METRICS,
            {"name": "films"},
            query_form=form_of(version, values=values) if forms else None,
        )
        publish_next(lineage, artefact)
    return lineage


def solved(rows: list[int], weights: list[float], target: float = 1.0) -> Tensor:
    """Return the minimum of version 1's form, float64 [D]: a solution of its normal equations."""
    vectors = candidates_of(1).double()
    own, w = vectors[rows], torch.tensor(weights, dtype=torch.float64)
    total = own.T @ (w[:, None] * own)
    total = total + 2.0 * w.sum() ** 0.5 * (vectors.T @ vectors / CANDIDATES)
    solution: Tensor = torch.linalg.solve(total, target * (w @ own))
    return solution
