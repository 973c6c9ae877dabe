"""A small lineage, and a service that shows it: what the dashboard's tests look at."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from tests.support.publishing import publish_next
from tests.support.running_service import listening

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import LinearTransform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.serving.app import dashboard_pages
from evergram.serving.dashboard import DashboardData


def publish(
    lineage: Lineage,
    dim: int,
    metrics: dict[str, Any],
    *,
    known: bool = True,
    probes: Sequence[dict[str, Any]] = (),
    promote: bool = True,
) -> None:
    """Publish a version of twenty objects; with `known`, with canaries and a certificate."""
    number = lineage.next_version
    ids = pa.array([f"object {i}" for i in range(20)])
    vectors = torch.randn(20, dim, generator=torch.Generator().manual_seed(number))
    transform, error = None, None
    if number:
        past = lineage.embeddings("object")[1]
        transform = LinearTransform(past.shape[1], dim)
        with torch.no_grad():
            transform.weight.copy_(torch.linalg.lstsq(vectors, past).solution.T)
            error = StepError.of(transform(vectors), past) if known else None
    publish_next(
        lineage,
        Artefact(
            dim=dim,
            embeddings={"object": (ids, vectors)},
            transform=transform,
            metrics={"metrics": metrics, "probes": list(probes)},
            recipe={},
            canaries={"object": ids} if known else {},
            error=error,
        ),
        promote=promote,
    )


def quality(number: int) -> dict[str, Any]:
    metrics = {
        "model": {"recall@20": 0.31 + 0.01 * number, "ndcg@20": 0.21},
        "popularity": {"recall@20": 0.12, "ndcg@20": 0.08},
    }
    return metrics | ({"alone": {"recall@20": 0.33, "ndcg@20": 0.22}} if number else {})


def make_lineage(path: Path, versions: int = 4, name: str = "films") -> Lineage:
    lineage = Lineage.create(path, name)
    for n in range(versions):
        publish(lineage, (12, 14, 13, 15)[n % 4], quality(n))
    return lineage


@dataclass
class Service:
    """The state of a served dashboard, which tests set and read."""

    url: str
    data: DashboardData
    token: str | None = None
    status: int = 200
    asked: list[float] = field(default_factory=list)


@contextmanager
def serve(data: DashboardData) -> Iterator[Service]:
    """Serve the dashboard's routes and nothing else, on a free port, for a `with` block."""
    service = Service("", data)

    app = FastAPI()

    @app.get("/v1/dashboard")
    def shown(request: Request) -> DashboardData:
        service.asked.append(time.monotonic())
        authorization = request.headers.get("authorization")
        if service.token is not None and authorization != f"Bearer {service.token}":
            raise HTTPException(401, "Unknown token.")
        if service.status != 200:
            raise HTTPException(service.status, "As the test wants it.")
        return service.data

    app.include_router(dashboard_pages())
    served = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2)
    with listening(uvicorn.Server(served)) as url:
        service.url = f"{url}/"
        yield service
