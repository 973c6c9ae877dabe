"""The description, and requests made from it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.lineage.lines import DIMS, lineage_of
from tests.serving.running import Running, service_of
from tests.serving.test_routes import ARROW, stream

from evergram.serving.app import create_app
from evergram.serving.settings import Settings

REQUESTS = 10_000


def test_it_says_routes_limits_and_how_to_refuse(served: Running) -> None:
    found = served.get("/openapi.json").json()
    assert set(found["paths"]) == {
        "/v1/embeddings",
        "/v1/search",
        "/v1/transform",
        "/v1/versions",
        "/v1/consumers",
        "/v1/dashboard",
        "/v1/models",
        "/v1/models/{model}",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    schemas = found["components"]["schemas"]
    limits = Settings()
    search = schemas["SearchRequest"]["properties"]
    assert search["k"]["maximum"] == limits.max_k
    assert search["vectors"]["anyOf"][0]["maxItems"] == limits.max_batch
    kinds = schemas["EmbeddingsRequest"]["properties"]["input"]["anyOf"]
    assert {k["maxItems"] for k in kinds if k.get("type") == "array"} == {limits.max_batch}
    for path in ("/v1/embeddings", "/v1/search", "/v1/transform"):
        post = found["paths"][path]["post"]
        assert set(post["requestBody"]["content"]) == {"application/json", ARROW}
        assert {"400", "401", "403", "404", "409", "413", "503", "504"} <= set(post["responses"])
    assert "HTTPValidationError" not in schemas


def aim(case: Any, number: int) -> None:
    """Let every other request name versions and vectors that there are: what is drawn at random
    hardly ever does, and is refused before anything is read. Of streams every other is damaged."""
    body = case.body
    version = number // 2 % 3
    dim = DIMS[version]
    if case.media_type == ARROW:
        columns: Any = {"id": pa.array([number % 25])}
        if "embeddings" not in case.path:
            values = pa.array([float(number % 7)] * dim, pa.float32())
            columns = {"vector": pa.FixedSizeListArray.from_arrays(values, dim)}
        asked = {"source": version} if "transform" in case.path else {"version": version}
        whole = bytearray(stream(columns, asked))
        if number % 2:
            whole[number % len(whole)] ^= 1 << (number % 8)
        case.body = bytes(whole)
    elif isinstance(body, dict) and number % 2:
        for name in {"dimensions", "model", "side", "id_side", "ids"} & set(body):
            del body[name]
        if "source" in body:
            body["source"], body["target"] = version, f"v{version // 2}"
        else:
            body["version"] = version
        if isinstance(body.get("vector"), list):
            body["vector"] = [0.5] * dim
        if isinstance(body.get("vectors"), list):
            body["vectors"] = [[0.25] * dim] * min(len(body["vectors"]), 3)
        if isinstance(body.get("input"), list):
            body["input"] = [number % 25]


@pytest.mark.long
def test_ten_thousand_requests_meet_no_server_error(tmp_path: Path) -> None:
    """Made by schemathesis from the description, in this process."""
    lineage_of(tmp_path / "line", rows=20)
    app = create_app(service_of(tmp_path / "line"))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    statuses: Counter[tuple[str, int]] = Counter()
    operations: list[Any] = [cast(Any, o).ok() for o in schema.get_all_operations()]
    post = [o for o in operations if o.method == "post"]
    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
    ]
    for operation in operations:
        # Of a request without a body there is hardly more than one.
        count = REQUESTS // len(post) + 1 if operation in post else 200
        _ask(operation, count, checks, statuses)
    assert sum(statuses.values()) >= REQUESTS
    for operation in post:
        assert statuses[operation.path, 200] > 100, json.dumps(
            {f"{path} {status}": n for (path, status), n in statuses.items()}
        )


def _ask(operation: Any, count: int, checks: Any, statuses: Counter[tuple[str, int]]) -> None:
    numbers = itertools.count()

    @seed(0)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        aim(case, next(numbers))
        answer = case.call()
        statuses[operation.path, answer.status_code] += 1
        case.validate_response(answer, checks=checks)

    run()
