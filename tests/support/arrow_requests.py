"""Requests and answers as Arrow streams."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from tests.support.running_service import Running

ARROW = "application/vnd.apache.arrow.stream"


def stream(columns: dict[str, Any], asked: Any, fingerprint: str | None = None) -> bytes:
    metadata = {"evergram.request": asked if isinstance(asked, str) else json.dumps(asked)}
    if fingerprint is not None:
        metadata["evergram.fingerprint"] = fingerprint
    table = pa.table(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def post_stream(served: Running, path: str, body: bytes) -> Any:
    return served.http.post(path, content=body, headers={"Content-Type": ARROW, "Accept": ARROW})


def table_of(answer: Any) -> pa.Table:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW
    return pa.ipc.open_stream(answer.content).read_all()
