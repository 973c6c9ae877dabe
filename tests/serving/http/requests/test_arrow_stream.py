"""Streams that were made to do harm: whatever they are, they are refused, and nothing dies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.arrow_requests import ARROW, post_stream, stream
from tests.support.lineages import lineage_of
from tests.support.running_service import Running

from evergram.errors import DataError
from evergram.serving.http.requests.arrow_stream import read_stream

ROOT = Path(__file__).parents[4]
STREAMS = 60_000


@pytest.mark.parametrize("rows", [1, 17, 21, 29, 64])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_a_batch_without_a_schema_is_refused(rows: int, kind: pa.DataType) -> None:
    """In a process of its own: read as a schema, some of them end it."""
    batch = pa.record_batch([pa.array(range(rows)).cast(kind)], names=["id"])
    code = (
        "import sys; from evergram.errors import DataError\n"
        "from evergram.serving.http.requests.arrow_stream import read_stream\n"
        "try: read_stream(sys.stdin.buffer.read(), 'id', 100)\n"
        "except DataError as error: print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=batch.serialize().to_pybytes(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()[-2000:]
    assert b"begins with a record batch; send its schema first" in run.stdout


def test_a_stream_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="not an Arrow stream"):
        read_stream(b"", "id", 10)


def test_a_refusal_names_only_a_few_columns(served: Running) -> None:
    columns = {f"{n:03}{'x' * 500}": pa.array([1]) for n in range(50)}
    answer = post_stream(served, "/v1/embeddings", stream(columns, {}))
    assert answer.status_code == 400
    assert "004xxx" in answer.text
    assert "005xxx" not in answer.text
    assert len(answer.content) < 1000


@pytest.mark.parametrize("route", ["embeddings", "search", "transform"])
@pytest.mark.parametrize(
    "asked",
    [
        '{"fingerprint": 5}',
        '{"fingerprint": ["a"]}',
        '{"version": [[]]}',
        "[]",
        "null",
        "{",
        "\xff",
    ],
)
def test_metadata_of_a_wrong_type_is_refused(served: Running, route: str, asked: str) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 10, pa.float32()), 10)
    columns = {"id": pa.array([1])} if route == "embeddings" else {"vector": vectors}
    answer = post_stream(served, f"/v1/{route}", stream(columns, asked))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "request"


@pytest.mark.parametrize("path", ["/v1/search", "/v1/transform"])
def test_a_fingerprint_may_be_a_field_of_the_request(served: Running, path: str) -> None:
    lineage = served.service.shared.reader.lineage
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 10, pa.float32()), 10)
    for version, status in ((2, 200), (0, 409)):
        named = {"source": 2, "target": 0} if path == "/v1/transform" else {"version": 2}
        asked = {**named, "fingerprint": lineage.manifest(version).fingerprint}
        body = stream({"vector": vectors}, asked)
        assert post_stream(served, path, body).status_code == status
        assert served.post(path, {"vectors": [[0.5] * 10], **asked}).status_code == status


@pytest.mark.long
def test_mutated_streams_are_refused_and_end_nothing(tmp_path: Path) -> None:
    """Every route that takes a stream, in a process whose death is the failure."""
    lineage_of(tmp_path / "numbers", rows=30)
    lineage_of(tmp_path / "texts", rows=30, text=True)
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.mutated_streams", str(tmp_path), str(STREAMS), "0"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=900,
        check=False,
    )
    last = (tmp_path / "last").read_bytes()
    assert run.returncode == 0, (run.returncode, last, run.stderr[-4000:])
    statuses = json.loads(run.stdout)
    assert sum(statuses.values()) == STREAMS
    assert {name.split()[1] for name in statuses} <= {"200", "400", "404", "409", "413"}, statuses
    for route in ("embeddings", "search", "transform"):
        # Neither is all of it refused at the first look, nor is nothing damaged.
        assert statuses[f"{route} 200"] > 500, statuses
        assert statuses[f"{route} 400"] > 500, statuses


def test_arrow_is_what_the_routes_take(served: Running) -> None:
    body = stream({"id": pa.array([1])}, {})
    answer = served.http.post(
        "/v1/embeddings", content=body, headers={"Content-Type": f"{ARROW}; x=1"}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not a stream",
        stream({"id": pa.array([1])}, {})[:-40],
        stream({"id": pa.array([1.5])}, {}),
        stream({"id": pa.array([1]), "more": pa.array([1])}, {}),
        stream({"id": pa.array([1, None])}, {}),
        stream({"id": pa.array([1])}, "no JSON"),
        stream({"id": pa.array(["a"]).dictionary_encode()}, {}),
        stream({"id": pa.nulls(3)}, {}),
    ],
)
def test_a_stream_that_is_none_is_refused(served: Running, body: bytes) -> None:
    answer = post_stream(served, "/v1/embeddings", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] in ("data", "request")


def test_a_compressed_stream_is_refused(served: Running) -> None:
    """Some bytes of zeros would be any number of rows."""
    table = pa.table({"id": pa.array(np.zeros(2000, np.int64))})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    answer = post_stream(served, "/v1/embeddings", sink.getvalue().to_pybytes())
    assert "compress" in answer.json()["error"]["message"]


def test_flipped_bits_of_a_stream_are_never_a_server_error(served: Running) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 30, pa.float32()), 10)
    whole = stream({"vector": vectors}, {"version": 2, "k": 1})
    draw = np.random.default_rng(0)
    for _ in range(300):
        bad = bytearray(whole)
        for at in draw.integers(0, len(bad), size=3):
            bad[at] ^= 1 << int(draw.integers(8))
        assert post_stream(served, "/v1/search", bytes(bad)).status_code < 500
