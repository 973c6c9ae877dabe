"""Requests made from the service's own description, sent to a real server in this process.

    python -m tests.support.generated_requests FOLDER COUNT

FOLDER holds a lineage of three versions. Prints how often each route answered with which status, as
JSON, once no answer was one that the description does not have. In a process of its own: the
fuzzer keeps an event loop and sockets until the process ends, and recurses deeply.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.support.arrow_requests import ARROW, stream
from tests.support.lineages import DIMS
from tests.support.running_service import server, service_of

from evergram.serving.app import create_app

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
# Of a request without a body there is hardly more than one.
OF_ONE = 200


def aim(case: Any, number: int) -> None:
    """Let every other request name versions and vectors that exist: what is drawn at random
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
        refused = {"dimensions", "model", "side", "id_side", "ids", "filter", "fingerprint"}
        for name in refused & set(body):
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


def ask(operation: Any, url: str, count: int, statuses: Counter[str]) -> None:
    """Send requests for one route, and check every answer."""
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
        answer = case.call(base_url=url, session=session)
        statuses[f"{operation.path} {answer.status_code}"] += 1
        case.validate_response(answer, checks=list(CHECKS))

    with requests.Session() as session:
        run()


def main(arguments: Sequence[str]) -> None:
    # What it draws may be nested deeply, and is copied and checked by recursion.
    sys.setrecursionlimit(20_000)
    folder, count = Path(arguments[0]), int(arguments[1])
    app = create_app(service_of(folder))
    schema = schemathesis.openapi.from_dict(app.openapi())
    operations: list[Any] = [cast(Any, o).ok() for o in schema.get_all_operations()]
    post = [o for o in operations if o.method == "post"]
    statuses: Counter[str] = Counter()
    with server(app) as url:
        for operation in operations:
            many = count // len(post) + 1 if operation in post else OF_ONE
            ask(operation, url, many, statuses)
    sys.stdout.write(json.dumps(statuses))


if __name__ == "__main__":
    main(sys.argv[1:])
