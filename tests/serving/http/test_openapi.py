"""The description, and requests made from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.arrow_requests import ARROW
from tests.support.lineages import lineage_of
from tests.support.running_service import Running

from evergram.serving.settings import ServiceSettings

ROOT = Path(__file__).parents[3]
REQUESTS = 10_000


def test_it_says_routes_limits_and_how_to_refuse(served: Running) -> None:
    described = served.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/v1/embeddings",
        "/v1/search",
        "/v1/transform",
        "/v1/fold-in",
        "/v1/versions",
        "/v1/consumers",
        "/v1/dashboard",
        "/v1/models",
        "/v1/models/{model}",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    schemas = described["components"]["schemas"]
    limits = ServiceSettings()
    search = schemas["SearchRequest"]["properties"]
    assert search["k"]["maximum"] == limits.max_k
    assert search["vectors"]["anyOf"][0]["maxItems"] == limits.max_batch
    kinds = schemas["EmbeddingsRequest"]["properties"]["input"]["anyOf"]
    assert {k["maxItems"] for k in kinds if k.get("type") == "array"} == {limits.max_batch}
    for path in ("/v1/embeddings", "/v1/search", "/v1/transform"):
        post = described["paths"][path]["post"]
        assert set(post["requestBody"]["content"]) == {"application/json", ARROW}
        assert {"400", "401", "403", "404", "409", "413", "503", "504"} <= set(post["responses"])
    assert "HTTPValidationError" not in schemas


@pytest.mark.long
def test_ten_thousand_requests_meet_no_server_error(tmp_path: Path) -> None:
    """Made by schemathesis from the description; in a process of their own, see there."""
    lineage_of(tmp_path / "line", rows=20)
    command = [sys.executable, "-m", "tests.support.generated_requests"]
    run = subprocess.run(
        [*command, str(tmp_path / "line"), str(REQUESTS)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-6000:]
    statuses = json.loads(run.stdout)
    assert sum(statuses.values()) >= REQUESTS
    for route in ("embeddings", "search", "transform"):
        assert statuses[f"/v1/{route} 200"] > 100, statuses
