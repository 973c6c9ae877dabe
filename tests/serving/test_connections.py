"""Clients that say nothing, or not enough, over real sockets: none of them keeps others out."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.lineages import lineage_of
from tests.support.running_service import CountedStore, server, service_of, until
from uvicorn.config import LOOP_FACTORIES

from evergram.serving.app import create_app
from evergram.serving.connections import EXTRA, READ, LimitedProtocol, Wait
from evergram.serving.server import listen
from evergram.serving.settings import ServiceSettings

ONE_ID = b'{"input": [1]}'


def post_bytes(body: bytes = ONE_ID, **headers: Any) -> bytes:
    """Return a POST to /v1/embeddings as it goes over the wire.

    Args:
        headers: beside the known ones, or in their place; `Content_Length` is Content-Length.
    """
    known = {
        "Host": "127.0.0.1",
        "Content-Type": "application/json",
        "Content-Length": len(body),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = ["POST /v1/embeddings HTTP/1.1", *(f"{k}: {v}" for k, v in known.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def read_until_closed(connection: socket.socket) -> bytes:
    """Return all that the service sends until it closes the connection."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def read_answer(connection: socket.socket) -> bytes:
    """Return one answer of a connection that stays open."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += connection.recv(1)
    length = int(text.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while length:
        part = connection.recv(length)
        text += part
        length -= len(part)
    return text


# Seconds that a test waits for what must come.
PATIENCE = 60
LARGE = json.dumps({"input": [n % 300 for n in range(2048)]}).encode()


class Service:
    """A service behind a real server, and what it counted."""

    def __init__(self, url: str, handler: Any, stack: ExitStack) -> None:
        self.url, self.handler, self._stack = url, handler, stack

    def connect(self, sent: bytes = b"", received: int | None = None) -> socket.socket:
        """Open a connection with a buffer of so many bytes, and send over it."""
        one = self._stack.enter_context(socket.socket())
        one.settimeout(PATIENCE)
        if received is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
        one.connect(("127.0.0.1", int(self.url.rpartition(":")[2])))
        one.sendall(sent)
        return one

    def ended(self, why: str) -> float:
        count = self.handler.metrics.registry.get_sample_value(
            "evergram_connections_ended_total", {"why": why}
        )
        return 0.0 if count is None else float(count)


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Service]:
    if not folder.exists():
        lineage_of(folder)
    app = create_app(service_of(folder), ServiceSettings(**settings))
    with server(app) as url, ExitStack() as stack:
        yield Service(url, app.state.handler, stack)


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
    # How many pieces are read in each round of the loop.
    rounds = [0]

    def next_round(loop: asyncio.AbstractEventLoop) -> None:
        rounds.append(0)
        loop.call_soon(next_round, loop)

    receive = LimitedProtocol.data_received

    def counted(self: LimitedProtocol, data: bytes) -> None:
        if not sizes:
            next_round(self.loop)
        sizes.append(len(data))
        rounds[-1] += 1
        loops.add(type(self.loop).__module__.split(".")[0])
        receive(self, data)

    monkeypatch.setattr(LimitedProtocol, "data_received", counted)
    body = b'{"input": ["' + b"a" * (1 << 20) + b'"]}'
    with serving(tmp_path / "line") as service:
        assert read_answer(service.connect(post_bytes(body))).startswith(b"HTTP/1.1 4")
    assert sum(sizes) == len(post_bytes(body))
    assert max(sizes) <= READ
    assert max(rounds) == 1
    assert loops == {event_loop_kind}


def test_a_client_that_says_no_more_is_answered_and_closed(tmp_path: Path) -> None:
    settings: dict[str, Any]
    for settings, sent, answers, why in (
        ({"silence": 0.2}, b"", b"", "silent"),
        ({"silence": 0.3}, post_bytes()[:-5], b"HTTP/1.1 408", "unread_body"),
        ({"keep_alive": 1}, post_bytes(), b"HTTP/1.1 200", "idle"),
    ):
        with serving(tmp_path / "line", **settings) as service:
            answer = read_until_closed(service.connect(sent))
            assert answer.startswith(answers)
            assert bool(answer) == bool(answers)
            assert (service.ended(why), service.handler.bodies.held) == (1, 0)
            if why == "unread_body":
                error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
                assert error["code"] == "slow"
                assert "0.3 seconds" in error["message"]


@pytest.mark.parametrize("before", [b"", post_bytes()])
def test_headers_that_do_not_end_are_refused(tmp_path: Path, before: bytes) -> None:
    with serving(tmp_path / "line", silence=0.4) as service:
        one = service.connect(before)
        if before:
            assert read_answer(one).startswith(b"HTTP/1.1 200")
        with suppress(OSError):
            for byte in b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 10_000:
                one.sendall(bytes([byte]))
                threading.Event().wait(0.05)
        answer = read_until_closed(one)
        assert answer.startswith(b"HTTP/1.1 408") or answer == b""
        assert service.ended("headers") == 1


def test_a_body_that_nobody_reads_is_not_received_for_ever(tmp_path: Path) -> None:
    with serving(tmp_path / "line", silence=0.3, max_body=1000) as service:
        one = service.connect(post_bytes(Content_Length=10**9) + b" " * 2000)
        assert read_answer(one).startswith(b"HTTP/1.1 413")
        with suppress(OSError):
            while True:
                one.sendall(b" " * 1000)
        assert service.ended("unread_body") == 1


def test_a_connection_is_kept_whose_refused_body_has_come(tmp_path: Path) -> None:
    with serving(tmp_path / "line", max_body=1000) as service:
        for large in (post_bytes(b" " * 200_000), post_bytes(b" " * 200_000, Content_Type="a/b")):
            one = service.connect(large)
            assert read_answer(one).startswith(b"HTTP/1.1 41")
            connections = service.handler.connections
            until(lambda: [o.waits for o in connections.open] == [Wait.NEXT], PATIENCE)  # noqa: B023
            one.sendall(post_bytes())
            assert read_answer(one).startswith(b"HTTP/1.1 200")
            one.close()
            until(lambda: not connections.open)  # noqa: B023


def test_nothing_is_left_of_a_connection_that_its_client_resets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = weakref.WeakSet[Any]()
    made = LimitedProtocol.connection_made

    def noted(self: LimitedProtocol, transport: Any) -> None:
        seen.add(self.inner)
        made(self, transport)

    monkeypatch.setattr(LimitedProtocol, "connection_made", noted)
    with serving(tmp_path / "line") as service:
        one = service.connect(post_bytes())
        assert read_answer(one).startswith(b"HTTP/1.1 200")
        assert len(seen) == 1
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
        until(lambda: gc.collect() >= 0 and not seen, PATIENCE)


def test_an_answer_that_nobody_takes_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path / "line", silence=0.3) as service:
        one = service.connect(received=4096)
        # More than all buffers between take.
        with suppress(OSError):
            for _ in range(40):
                one.sendall(post_bytes(LARGE))
        until(lambda: service.ended("unread_answer") == 1)
        assert not service.handler.connections.open


@pytest.mark.long
def test_a_slow_reader_is_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path / "line", silence=0.5) as service:
        one = service.connect(post_bytes(LARGE, Connection="close"), received=4096)
        answer = b""
        while part := one.recv(40_000):
            answer += part
            threading.Event().wait(0.05)
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert len(answer.partition(b"\r\n\r\n")[2]) == length


def test_a_connection_that_has_asked_is_kept_before_one_that_has_not(tmp_path: Path) -> None:
    with serving(tmp_path / "line", max_connections=3) as service:
        one = service.connect(post_bytes())
        assert read_answer(one).startswith(b"HTTP/1.1 200")
        silent = [service.connect() for _ in range(6)]
        assert [read_until_closed(s) for s in silent[:4]] == [b""] * 4
        one.sendall(post_bytes())
        assert read_answer(one).startswith(b"HTTP/1.1 200")


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
        full = []
        for _ in range(3):
            full.append(service.connect(sent, received=4096))
            if taken:
                read_answer(full[-1])
        connections = service.handler.connections
        until(lambda: [one.waits for one in connections.open] == [state] * 3)
        if state is Wait.ANSWER:
            for _ in range(EXTRA + 5):
                service.connect()
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


def test_a_part_of_a_request_that_came_during_an_answer_is_not_waited_for(
    tmp_path: Path, held: threading.Event
) -> None:
    with serving(tmp_path / "line", silence=0.3, keep_alive=2) as service:
        one = service.connect(STATES[Wait.ANSWER][0] + b"POST /v1/embeddings HT")
        until(lambda: [o.waits for o in service.handler.connections.open] == [Wait.ANSWER])
        held.set()
        assert read_answer(one).startswith(b"HTTP/1.1 200")
        assert read_until_closed(one).startswith(b"HTTP/1.1 408")
        assert service.ended("headers") == 1


def test_a_service_that_stops_answers_what_was_sent_and_says_so(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    with listen(tmp_path / "line", port=0) as stopping, ExitStack() as stack:
        service = Service(stopping.url, None, stack)
        thread = threading.Thread(target=stopping.run)
        thread.start()
        clients = [service.connect(post_bytes()) for _ in range(2)]
        for one in clients:
            assert b"connection: close" not in read_answer(one).lower()
        stopping.stop()
        clients.append(service.connect())
        until(lambda: stopping._uvicorn.connections.stopping)  # type: ignore[attr-defined]
        for one in clients:
            one.sendall(post_bytes())
        for one in clients:
            answer = read_until_closed(one)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer.lower()
            one.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()


MODELS = b"GET /v1/models HTTP/1.%d\r\n"
BOTH_LENGTHS = post_bytes(b"e\r\n" + ONE_ID + b"\r\n0\r\n\r\n", Transfer_Encoding="chunked")


def test_bytes_that_are_not_http_are_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "line") as service:
        for sent, status, code in (
            (b"nonsense\r\n\r\n", 400, "http"),
            (MODELS % 1 + b"\r\n", 400, "http"),
            (MODELS % 1 + b"Host: a\r\nHost: b\r\n\r\n", 400, "http"),
            (MODELS % 1 + b"X: " + b"x" * 40_000, 400, "http"),
            # The request that is hidden behind it is not answered.
            (BOTH_LENGTHS + MODELS % 1 + b"Host: 127.0.0.1\r\n\r\n", 400, "http"),
            # HTTP/1.0 names no host.
            (MODELS % 0 + b"\r\n", 200, None),
            (MODELS % 0 + b"Host: evil.example\r\n\r\n", 421, "host"),
        ):
            answer = read_until_closed(service.connect(sent))
            assert answer.startswith(b"HTTP/1.1 %d" % status), sent
            assert answer.count(b"HTTP/1.1") == 1
            body = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert body.get("error", {"code": None})["code"] == code
        assert service.ended("invalid") == 5
        one = service.connect(post_bytes() + b"nonsense\r\n\r\n")
        assert read_answer(one).startswith(b"HTTP/1.1 200")
        error = read_until_closed(one).partition(b"\r\n\r\n")[2]
        assert json.loads(error)["error"]["code"] == "http"


def test_bodies_are_held_within_one_budget(tmp_path: Path) -> None:
    large = post_bytes(Content_Length=900_000) + b" " * 800_000
    with serving(tmp_path / "line", max_buffered=2**20, max_body=2**20) as service:
        one = service.connect(large)
        until(lambda: service.handler.bodies.held >= 700_000)
        refusal = read_answer(service.connect(large))
        assert refusal.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in refusal.lower()
        response = httpx.post(f"{service.url}/v1/embeddings", json={"input": 1}, timeout=PATIENCE)
        assert response.status_code == 200
        one.sendall(b" " * (100_000 - len(ONE_ID)) + ONE_ID[:-1] + b"}")
        one.close()
        until(lambda: not service.handler.bodies.held)
