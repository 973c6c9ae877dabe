"""Clients that say nothing, or not enough, over real sockets: none of them keeps others out."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.lineages import lineage_of
from tests.support.raw_http import ONE_ID, post_bytes, read_answer, read_until_closed
from tests.support.running_service import CountedStore, server, service_of
from uvicorn.config import LOOP_FACTORIES

from evergram.serving.app import create_app
from evergram.serving.http.connections import EXTRA, READ, LimitedProtocol, Wait
from evergram.serving.server import listen
from evergram.serving.settings import ServiceSettings

# Seconds that a test waits for what must come.
PATIENCE = 60


class Service:
    """A service behind a real server, and what it counted."""

    def __init__(self, url: str, handler: Any) -> None:
        self.url, self.handler = url, handler
        self._port = int(url.rpartition(":")[2])
        self._opened: list[socket.socket] = []

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self._port), PATIENCE)
        self._opened.append(connection)
        connection.sendall(sent)
        return connection

    def ended(self, why: str) -> float:
        count = self.handler.metrics.registry.get_sample_value(
            "evergram_connections_ended_total", {"why": why}
        )
        return 0.0 if count is None else float(count)

    def close(self) -> None:
        for one in self._opened:
            one.close()


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Service]:
    if not folder.exists():
        lineage_of(folder)
    app = create_app(service_of(folder), ServiceSettings(**settings))
    with server(app) as url:
        service = Service(url, app.state.handler)
        try:
            yield service
        finally:
            service.close()


@pytest.fixture(autouse=True, params=[pytest.param("asyncio", marks=pytest.mark.long), "uvloop"])
def event_loop_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the loop of a test, of the two that a service may run on."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    monkeypatch.setitem(LOOP_FACTORIES, "auto", LOOP_FACTORIES[request.param])
    return str(request.param)


def test_a_loop_reads_little_at_once(
    tmp_path: Path, event_loop_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    loops: set[str] = set()
    rounds = Counter[int]()
    round_of_loop = 0

    def next_round(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal round_of_loop
        round_of_loop += 1
        loop.call_soon(next_round, loop)

    receive = LimitedProtocol.data_received

    def counted(self: LimitedProtocol, data: bytes) -> None:
        if not sizes:
            next_round(self.loop)
        sizes.append(len(data))
        rounds[round_of_loop] += 1
        loops.add(type(self.loop).__module__.split(".")[0])
        receive(self, data)

    monkeypatch.setattr(LimitedProtocol, "data_received", counted)
    body = b'{"input": ["' + b"a" * (1 << 20) + b'"]}'
    with serving(tmp_path / "line") as service:
        assert read_answer(service.connect(post_bytes(body))).startswith(b"HTTP/1.1 4")
    assert sum(sizes) == len(post_bytes(body))
    assert max(sizes) <= READ
    assert max(rounds.values()) == 1
    assert loops == {event_loop_kind}


def test_a_connection_that_asks_for_nothing_is_closed(tmp_path: Path) -> None:
    with serving(tmp_path / "line", silence=0.2) as service:
        assert read_until_closed(service.connect()) == b""
        assert service.ended("silent") == 1


@pytest.mark.parametrize("before", [b"", post_bytes()])
def test_headers_that_do_not_end_are_refused(tmp_path: Path, before: bytes) -> None:
    with serving(tmp_path / "line", silence=0.4) as service:
        one = service.connect(before)
        if before:
            assert read_answer(one).startswith(b"HTTP/1.1 200")
        stop = threading.Event()

        def drip() -> None:
            for byte in b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 10_000:
                if stop.wait(0.05):
                    return
                try:
                    one.sendall(bytes([byte]))
                except OSError:
                    return

        sending = threading.Thread(target=drip)
        sending.start()
        answer = read_until_closed(one)
        stop.set()
        sending.join()
        assert answer.startswith(b"HTTP/1.1 408") or answer == b""
        assert service.ended("headers") == 1


def test_a_body_that_stops_coming_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "line", silence=0.3) as service:
        one = service.connect(post_bytes()[:-5])
        answer = read_until_closed(one)
        assert answer.startswith(b"HTTP/1.1 408")
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "slow"
        assert "0.3 seconds" in error["message"]
        assert service.ended("unread_body") == 1
        assert service.handler.bodies.held == 0


def test_a_body_that_nobody_reads_is_not_received_for_ever(tmp_path: Path) -> None:
    with serving(tmp_path / "line", silence=0.3, max_body=1000) as service:
        one = service.connect(post_bytes(Content_Length=10**9) + b" " * 2000)
        assert read_answer(one).startswith(b"HTTP/1.1 413")
        with suppress(OSError):
            while True:
                one.sendall(b" " * 1000)
        assert service.ended("unread_body") == 1


def test_an_answer_that_nobody_takes_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path / "line", silence=0.3) as service:
        asked = json.dumps({"input": [n % 300 for n in range(2048)]}).encode()
        one = service.connect()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # More than all buffers between take.
        for _ in range(40):
            try:
                one.sendall(post_bytes(asked))
            except OSError:
                break
        deadline = threading.Event()
        for _ in range(PATIENCE * 20):
            if service.ended("unread_answer"):
                break
            deadline.wait(0.05)
        assert service.ended("unread_answer") == 1
        assert not service.handler.connections.open


@pytest.mark.long
def test_a_slow_reader_is_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path / "line", silence=0.5) as service:
        asked = json.dumps({"input": [n % 300 for n in range(2048)]}).encode()
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(PATIENCE)
        one.connect(("127.0.0.1", int(service.url.rpartition(":")[2])))
        one.sendall(post_bytes(asked, Connection="close"))
        answer = b""
        pause = threading.Event()
        while part := one.recv(40_000):
            answer += part
            pause.wait(0.05)
        one.close()
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert len(answer.partition(b"\r\n\r\n")[2]) == length


@pytest.mark.parametrize("sent", [b"", b"POST /v1/embeddings HT"])
def test_silent_connections_keep_nobody_out(tmp_path: Path, sent: bytes) -> None:
    with serving(tmp_path / "line", max_connections=8) as service:
        silent = [service.connect(sent) for _ in range(30)]
        for _ in range(3):
            answered = httpx.post(
                f"{service.url}/v1/embeddings", json={"input": 1}, timeout=PATIENCE
            )
            assert answered.status_code == 200
        assert read_until_closed(silent[0]) == b""
        assert service.ended("full") >= 23
        assert len(service.handler.connections.open) <= 8


def test_a_connection_that_has_asked_is_kept_before_one_that_has_not(tmp_path: Path) -> None:
    with serving(tmp_path / "line", max_connections=3) as service:
        one = service.connect(post_bytes())
        assert read_answer(one).startswith(b"HTTP/1.1 200")
        silent = [service.connect() for _ in range(6)]
        assert [read_until_closed(s) for s in silent[:4]] == [b""] * 4
        one.sendall(post_bytes())
        assert read_answer(one).startswith(b"HTTP/1.1 200")


LARGE = json.dumps({"input": [n % 300 for n in range(2048)]}).encode()
# What a client sends to bring its connection into each state, and whether it then takes an answer.
STATES: dict[Wait, tuple[bytes, bool]] = {
    Wait.LINGER: (post_bytes(Content_Type="text/plain", Content_Length=100), True),
    Wait.END: (post_bytes(LARGE, Connection="close"), False),
    Wait.HEADERS: (b"POST /v1/embeddings HT", False),
    Wait.NEXT: (post_bytes(), True),
    Wait.READER: (post_bytes(LARGE), False),
    Wait.BODY: (post_bytes()[:-5], False),
    Wait.ANSWER: (post_bytes(json.dumps({"input": [299]}).encode()), False),
}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Requests for object 299 wait for this event, and the service's sockets hold little."""
    go = threading.Event()
    read, made = CountedStore._read, LimitedProtocol.connection_made

    def waiting(self: CountedStore, ids: Any) -> Any:
        assert ids.to_pylist() != [299] or go.wait(PATIENCE)
        return read(self, ids)

    def small(self: LimitedProtocol, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(self, transport)

    monkeypatch.setattr(CountedStore, "_read", waiting)
    monkeypatch.setattr(LimitedProtocol, "connection_made", small)
    yield go
    go.set()


@pytest.mark.parametrize("state", Wait)
def test_a_service_that_is_full_in_any_state_answers(
    tmp_path: Path, held: threading.Event, state: Wait
) -> None:
    sent, taken = STATES[state]
    with serving(tmp_path / "line", max_connections=3, timeout=PATIENCE) as service:
        connections = service.handler.connections
        full = []
        for _ in range(3):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(PATIENCE)
            one.connect(("127.0.0.1", int(service.url.rpartition(":")[2])))
            one.sendall(sent)
            full.append(one)
            if taken:
                read_answer(one)
        while [one.waits for one in connections.open] != [state] * 3:
            threading.Event().wait(0.01)
        late = [service.connect() for _ in range(EXTRA + 5)] if state is Wait.ANSWER else []
        with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
            for path in ("/healthz", "/readyz"):
                assert client.get(path, headers={"Connection": "close"}).status_code == 200
            answer = client.post("/v1/embeddings", json={"input": 1})
        if state is Wait.ANSWER:  # all are busy
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["code"] == "busy"
            assert service.ended("refused") >= 1 + 5
            held.set()
            assert all(read_answer(one).startswith(b"HTTP/1.1 200") for one in full)
        else:
            assert answer.status_code == 200
            assert service.ended("full") >= 1
        for one in (*full, *late):
            one.close()


def test_content_length_beside_transfer_encoding_is_refused(tmp_path: Path) -> None:
    body = b"e\r\n" + ONE_ID + b"\r\n0\r\n\r\n"
    hidden = b"GET /v1/versions HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serving(tmp_path / "line") as service:
        sent = post_bytes(body, Transfer_Encoding="chunked")
        answer = read_until_closed(service.connect(sent + hidden))
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"HTTP/1.1") == 1


def test_http_1_0_names_no_host(tmp_path: Path) -> None:
    with serving(tmp_path / "line") as service:
        answer = read_until_closed(service.connect(b"GET /v1/models HTTP/1.0\r\n\r\n"))
        assert answer.startswith(b"HTTP/1.1 200")
        foreign = b"GET /v1/models HTTP/1.0\r\nHost: evil.example\r\n\r\n"
        assert read_until_closed(service.connect(foreign)).startswith(b"HTTP/1.1 421")


def test_a_service_that_stops_answers_what_was_sent_and_says_so(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    with listen(tmp_path / "line", port=0) as stopping:
        port = int(stopping.url.rpartition(":")[2])
        thread = threading.Thread(target=stopping.run)
        thread.start()
        clients = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(2)]
        for one in clients:
            one.sendall(post_bytes())
            assert b"connection: close" not in read_answer(one).lower()
        stopping.stop()
        late = socket.create_connection(("127.0.0.1", port), PATIENCE)
        while not stopping._uvicorn.connections.stopping:  # type: ignore[attr-defined]
            threading.Event().wait(0.01)
        for one in (*clients, late):
            one.sendall(post_bytes())
        for one in (*clients, late):
            answer = read_until_closed(one)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer.lower()
            one.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_bytes_that_are_not_http_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "line") as service:
        for sent in (
            b"nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000,
        ):
            refusal = read_until_closed(service.connect(sent))
            assert refusal.startswith(b"HTTP/1.1 400"), sent
            assert json.loads(refusal.partition(b"\r\n\r\n")[2])["error"]["code"] == "http"
        assert service.ended("invalid") == 4


def test_bodies_are_held_within_one_budget(tmp_path: Path) -> None:
    with serving(tmp_path / "line", max_buffered=2**20, max_body=2**20) as service:
        large = [service.connect(post_bytes(Content_Length=900_000) + b" " * 800_000)]
        while service.handler.bodies.held < 700_000:
            threading.Event().wait(0.01)
        refusal = read_answer(service.connect(post_bytes(Content_Length=900_000) + b" " * 800_000))
        assert refusal.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in refusal.lower()
        response = httpx.post(f"{service.url}/v1/embeddings", json={"input": 1}, timeout=PATIENCE)
        assert response.status_code == 200
        large[0].sendall(b" " * (100_000 - len(ONE_ID)) + ONE_ID[:-1] + b"}")
        large[0].close()
        while service.handler.bodies.held:
            threading.Event().wait(0.01)


def test_an_idle_connection_is_closed_at_last(tmp_path: Path) -> None:
    with serving(tmp_path / "line", keep_alive=1) as service:
        one = service.connect(post_bytes())
        assert read_answer(one).startswith(b"HTTP/1.1 200")
        assert read_until_closed(one) == b""
        assert service.ended("idle") == 1
