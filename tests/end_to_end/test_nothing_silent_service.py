"""No client takes the service down, keeps others out of it, or reads what is not its own: a hostile
client's tries, over sockets, against the command as it is started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from evergram.cli import main
from evergram.errors import ServiceError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage

ARROW = "application/vnd.apache.arrow.stream"
ROUTES = ("embeddings", "search", "transform")
# Seconds that a test waits for what must come.
PATIENCE = 120
DIMS = (6, 8)


def published(folder: Path, versions: int = 2) -> Path:
    """A lineage of small vectors that came from files, 300 objects a version."""
    import torch

    from evergram.compatibility.transforms import LinearTransform

    lineage = Lineage.create(folder, "shop")
    draw = np.random.default_rng(0).normal(size=(300, max(DIMS))).astype(np.float32)
    for version in range(versions):
        dim = DIMS[version]
        back = LinearTransform.from_matrix(torch.eye(DIMS[version - 1], dim)) if version else None
        vectors = torch.from_numpy(np.ascontiguousarray(draw[:, :dim]))
        embeddings = {"object": (pa.array(range(300)), vectors)}
        lineage.publish(Artefact(dim, embeddings, back, {"metrics": {"model": {}}}, {}))
    return folder


def evergram(*arguments: str) -> None:
    """The command, in this process."""
    before = sys.argv
    sys.argv = ["evergram", *arguments]
    try:
        main()
    except SystemExit as done:
        if done.code:
            raise ServiceError(f"evergram {' '.join(arguments)} exits with {done.code}") from None
    finally:
        sys.argv = before


@dataclass
class Served:
    """A service in a process of its own, and a client of it."""

    process: subprocess.Popen[str]
    told: dict[str, Any]
    http: httpx.Client

    @property
    def url(self) -> str:
        return str(self.told["url"])

    @property
    def alive(self) -> bool:
        return self.process.poll() is None and self.http.get("/healthz").status_code == 200

    def post(self, route: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        return self.http.post(f"/v1/{route}", content=content, headers={**kind, **headers})

    def connect(self, sent: bytes = b"") -> socket.socket:
        port = int(self.url.rpartition(":")[2])
        found = socket.create_connection(("127.0.0.1", port), PATIENCE)
        found.sendall(sent)
        return found

    def peak(self) -> int:
        """Bytes of memory, at most so far."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("there is no VmHWM")


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[Served]:
    code = "import sys; from evergram.cli import main; sys.argv[0] = 'evergram'; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(folder), *arguments, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            told = json.loads(line)
            with httpx.Client(base_url=told["url"], timeout=PATIENCE) as http:
                yield Served(process, told, http)
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("service") / "shop")


@pytest.fixture(scope="module")
def opened(line: Path) -> Iterator[Served]:
    with serving(line) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A service that asks for tokens, and that of a consumer who reads version 0."""
    folder = published(tmp_path_factory.mktemp("guarded") / "shop")
    evergram("consumer-add", str(folder), "ads", "--pin", "v0")
    from evergram.lineage.consumers.registry import ConsumerRegistry

    token = ConsumerRegistry.open(folder).issue_token("ads")
    with serving(folder) as found:
        yield found, token


def stream(column: str, rows: Any, request: Any) -> bytes:
    """A request as an Arrow stream."""
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    schema = pa.schema([(column, rows.type)], {b"evergram.request": text})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([rows], schema))
    found: bytes = sink.getvalue().to_pybytes()
    return found


def vectors(rows: int = 1) -> pa.Array:
    flat = pa.array([0.5] * rows * DIMS[1], pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, DIMS[1])


def request(body: bytes, length: int | None = None, **headers: str) -> bytes:
    """A POST as it goes over the wire."""
    known = {
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "Content-Length": str(len(body) if length is None else length),
        **headers,
    }
    lines = ["POST /v1/embeddings HTTP/1.1", *(f"{k}: {v}" for k, v in known.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def heard(one: socket.socket) -> bytes:
    """All that the service says until it closes the connection."""
    found = b""
    try:
        while part := one.recv(65_536):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.mark.long
def test_13_a_batch_without_a_schema_is_refused(line: Path) -> None:
    batches = [
        pa.record_batch([kind], names=["id"]).serialize().to_pybytes()
        for n in (17, 21, 29, 31, 64)
        for kind in (pa.array(range(n)), pa.array(["a"] * n), vectors(n))
    ]
    assert 312 in map(len, batches)
    headers = {"Content-Type": ARROW, "Authorization": "Bearer anything"}
    with serving(line) as served:
        for route in ROUTES:
            for body in batches:
                answer = served.post(route, body, **headers)
                assert answer.status_code == 400, answer.text
                assert "send its schema first" in answer.json()["error"]["message"]
        assert served.alive


MANY = 16 * 2**20 - 100


def hostile_bodies() -> dict[str, tuple[str, str, bytes]]:
    """By name: the route, the type, and sixteen megabytes."""

    def of(before: bytes, unit: bytes, after: bytes) -> bytes:
        return before + unit * ((MANY - len(before) - len(after)) // len(unit)) + after

    plain = "application/json"
    ids = of(b'{"ids": [', b"[],", b"[]]}")
    return {
        "input of lists": ("embeddings", plain, of(b'{"input": [', b"[],", b"[]]}")),
        "input of objects": ("embeddings", plain, of(b'{"input": [', b"{},", b"{}]}")),
        "one object": (
            "embeddings",
            plain,
            of(b'{"input": {"features": {"a": [', b"[],", b"[]]}}}"),
        ),
        "ids": ("search", plain, ids.replace(b"{", b'{"id": 1, ', 1)),
        "vectors": ("transform", plain, of(b'{"source": 1, "vectors": [', b"[],", b"[]]}")),
        "one vector": ("search", plain, of(b'{"vector": [', b"[],", b"[]]}")),
        "ids of a stream": ("search", ARROW, stream("vector", vectors(), ids[: 2**20] + b"[]]}")),
    }


@pytest.mark.long
def test_14_one_body_exhausts_no_memory_and_stalls_nobody(line: Path) -> None:
    bodies = hostile_bodies()
    with serving(line) as served:
        assert served.post("embeddings", {"input": [1]}).status_code == 200
        before, stop, waited = served.peak(), threading.Event(), [0.0]

        def ask() -> None:
            with httpx.Client(base_url=served.url, timeout=PATIENCE) as http:
                while not stop.is_set():
                    started = time.monotonic()
                    assert http.post("/v1/embeddings", json={"input": [1]}).status_code == 200
                    waited.append(time.monotonic() - started)

        other = threading.Thread(target=ask)
        other.start()
        try:
            for name, (route, kind, body) in bodies.items():
                answer = served.post(route, body, **{"Content-Type": kind})
                assert answer.status_code == 413, (name, answer.text)
                assert len(answer.content) < 1000
        finally:
            stop.set()
            other.join()
        assert served.alive
        # Of one body it was gigabytes, and of a sixteenth of one 4.6 seconds for others.
        assert served.peak() - before < 300 * 2**20
        assert max(waited) < 3


@pytest.mark.long
@pytest.mark.parametrize("host", ["rebound.attacker.example", "localhost.attacker.example:8000"])
def test_15_a_name_that_leads_here_reads_nothing(opened: Served, host: str) -> None:
    for path in ("/", "/v1/versions", "/v1/dashboard", "/openapi.json", "/metrics", "/readyz"):
        answer = opened.http.get(path, headers={"Host": host})
        assert answer.status_code == 421
        assert "--allowed-host" in answer.json()["error"]["message"]
    assert opened.post("embeddings", {"input": [1]}, Host=host).status_code == 421


def test_15_a_page_of_another_origin_posts_nothing(opened: Served) -> None:
    for origin in ("https://attacker.example", "null", "http://127.0.0.1:1"):
        answer = opened.post("embeddings", {"input": [1]}, Origin=origin)
        assert answer.status_code == 403, answer.text
    own = opened.url
    assert opened.post("embeddings", {"input": [1]}, Origin=own).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_15_json_says_that_it_is(opened: Served, kind: str) -> None:
    for route in ROUTES:
        answer = opened.post(route, {"input": [1]}, **{"Content-Type": kind})
        assert answer.status_code == 415, answer.text


def test_15_a_redirect_never_names_a_foreign_host(opened: Served) -> None:
    for host in ("attacker.example", "127.0.0.1"):
        answer = opened.http.get("/v1/versions/", headers={"Host": host})
        assert "location" not in answer.headers
        assert answer.status_code in (404, 421)


@pytest.mark.long
def test_15_more_names_may_be_given(line: Path) -> None:
    with serving(line, "--allowed-host", "shop.example", "--allowed-host", "*.internal") as served:
        for host, status in (
            ("shop.example", 200),
            ("a.internal:443", 200),
            ("localhost", 200),
            ("other.example", 421),
        ):
            answer = served.http.get("/v1/versions", headers={"Host": host})
            assert answer.status_code == status
    with pytest.raises(ServiceError):
        evergram("serve", str(line), "--allowed-host", "http://shop.example")


@pytest.mark.long
def test_16_silent_connections_keep_nobody_out(line: Path) -> None:
    with serving(line, "--max-connections", "50") as served, ExitStack() as stack:
        for sent in (b"", b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"):
            for _ in range(200):
                stack.enter_context(served.connect(sent))
            for _ in range(3):
                assert served.post("embeddings", {"input": [1]}).status_code == 200
        found = served.http.get("/metrics").text
        assert 'evergram_connections_ended_total{why="full"}' in found


@pytest.mark.long
def test_16_what_is_half_sent_is_closed(line: Path) -> None:
    with serving(line, "--silence", "0.5") as served:
        asked = request(b'{"input": [1]}')
        with (
            served.connect() as nothing,
            served.connect(asked[:40]) as headers,
            served.connect(asked[:-3]) as body,
        ):
            assert heard(nothing) == b""
            assert heard(headers).startswith(b"HTTP/1.1 408")
            assert heard(body).startswith(b"HTTP/1.1 408")
        ended = served.http.get("/metrics").text
        for why in ("silent", "headers", "unread_body"):
            assert f'evergram_connections_ended_total{{why="{why}"}} 1.0' in ended


@pytest.mark.long
def test_16_an_answer_that_nobody_takes_is_given_up(line: Path) -> None:
    with serving(line, "--silence", "0.5") as served, ExitStack() as stack:
        asked = request(json.dumps({"input": list(range(300)) * 6}).encode())
        reader = stack.enter_context(served.connect())
        sending = threading.Thread(target=_send, args=(reader, asked * 100))
        sending.start()
        ended = 'evergram_connections_ended_total{why="unread_answer"} 1.0'
        while ended not in served.http.get("/metrics").text:
            time.sleep(0.05)
        sending.join()


def _send(one: socket.socket, content: bytes) -> None:
    """Until the other side takes no more, or is gone."""
    with suppress(OSError):
        one.sendall(content)


@pytest.mark.long
def test_16_a_connection_is_kept_longer_than_clients_keep_theirs(opened: Served) -> None:
    """httpx closes its own after 5 seconds."""
    asked = request(b'{"input": [1]}')
    with opened.connect(asked) as one:
        assert one.recv(12) == b"HTTP/1.1 200"
        time.sleep(6.5)
        one.setblocking(False)
        while True:
            try:
                assert one.recv(65_536), "the connection was closed"
            except BlockingIOError:
                break
        one.setblocking(True)
        one.sendall(asked)
        assert one.recv(12) == b"HTTP/1.1 200"


@pytest.mark.long
def test_16_bodies_are_held_within_one_budget(line: Path) -> None:
    arguments = ["--max-body", "1", "--max-buffered", "1"]
    with serving(line, *arguments) as served, ExitStack() as stack:
        half = request(b" " * 900_000, length=1_000_000)
        for _ in range(3):
            stack.enter_context(served.connect(half))
        refused = 'evergram_errors_total{code="busy"} 2.0'
        while refused not in served.http.get("/metrics").text:
            time.sleep(0.05)
        assert served.post("embeddings", {"input": [1]}).status_code == 200


@pytest.mark.parametrize("fingerprint", [5, ["a"], {}])
def test_20_a_fingerprint_that_is_no_text_is_refused(opened: Served, fingerprint: Any) -> None:
    for route, rest in (("search", {"version": 1}), ("transform", {"source": 1, "target": 0})):
        body = stream("vector", vectors(), {**rest, "fingerprint": fingerprint})
        answer = opened.post(route, body, **{"Content-Type": ARROW})
        assert answer.status_code == 400, answer.text
        assert "fingerprint" in answer.json()["error"]["message"]


@pytest.mark.long
def test_20_a_refusal_does_not_tell_which_versions_there_are(guarded: tuple[Served, str]) -> None:
    served, token = guarded
    said = set()
    for version in ("v1", "newest", "v7", "nightly"):
        body = {"input": [1], "version": version}
        answer = served.post("embeddings", body, Authorization=f"Bearer {token}")
        said.add((answer.status_code, answer.json()["error"]["message"].replace(version, "?")))
    assert len(said) == 1
    body = {"input": [1], "version": "v0"}
    assert served.post("embeddings", body, Authorization=f"Bearer {token}").status_code == 200


def test_20_two_tokens_in_one_request_are_refused(guarded: tuple[Served, str]) -> None:
    served, token = guarded
    both = request(b'{"input": [1]}', Connection="close").replace(
        b"Content-Length", f"Authorization: Bearer {token}\r\n".encode() * 2 + b"Content-Length"
    )
    with served.connect(both) as one:
        said = heard(one)
    assert said.startswith(b"HTTP/1.1 400")
    assert b"more than once" in said


def dashboard(served: Served) -> dict[str, Any]:
    answer = served.http.get("/v1/dashboard")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["live"]
    return found


@pytest.mark.long
def test_also_the_dashboard_shows_a_backfill_under_way(tmp_path: Path) -> None:
    folder, store = published(tmp_path / "shop", versions=1), f"object={tmp_path / 'store'}"
    evergram("fill", str(folder), "--store", store)
    published_again(folder)
    with serving(folder) as served:
        assert dashboard(served)["backfill"] == []
        evergram("backfill", "plan", str(folder), "--store", store, "--batch", "50")
        evergram("backfill", "apply", str(folder), "--store", store, "--rows", "100")
        expected = {"side": "object", "version": 1, "done": 100, "total": 300}
        assert dashboard(served)["backfill"] == [{**expected, "state": "under way"}]


def published_again(folder: Path) -> None:
    """One more version of the same objects."""
    import torch

    from evergram.compatibility.transforms import LinearTransform

    back = LinearTransform.from_matrix(torch.eye(DIMS[0], DIMS[1]))
    embeddings = {"object": (pa.array(range(300)), torch.ones(300, DIMS[1]))}
    artefact = Artefact(DIMS[1], embeddings, back, {"metrics": {"model": {}}}, {})
    Lineage.open(folder).publish(artefact)


def test_also_the_dashboard_shows_requests_at_once(line: Path) -> None:
    """At the first look, those that came before it."""
    with serving(line) as served:
        for _ in range(3):
            assert served.post("embeddings", {"input": [1]}).status_code == 200
        live = dashboard(served)
        assert sum(t["per_minute"] for t in live["traffic"]) == 3
        assert max(rate["per_minute"] for rate in live["rates"]) > 0


def test_also_the_service_says_which_files_were_checked(opened: Served) -> None:
    assert "embeddings/1/object.parquet" in opened.told["checked"]
    assert "versions/1/canary.parquet" in opened.told["unchecked"]
    for version in opened.http.get("/v1/versions").json()["data"]:
        assert version["checked"] or version["unchecked"]
