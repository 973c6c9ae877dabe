"""No connection that is silent, slow or one of many keeps others out: promise 16."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.support.raw_http import post_bytes, read_until_closed
from tests.support.serving_process import (
    serving,
)


@pytest.mark.long
def test_16_silent_connections_keep_nobody_out(two_versions: Path) -> None:
    with serving(two_versions, "--max-connections", "50") as served, ExitStack() as stack:
        for sent in (b"", b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"):
            for _ in range(200):
                stack.enter_context(served.connect(sent))
            for _ in range(3):
                assert served.post("embeddings", {"input": [1]}).status_code == 200
        metrics = served.http.get("/metrics").text
        assert 'evergram_connections_ended_total{why="full"}' in metrics


@pytest.mark.long
def test_16_a_half_sent_request_is_closed(two_versions: Path) -> None:
    with serving(two_versions, "--silence", "0.5") as served:
        request = post_bytes(b'{"input": [1]}')
        with (
            served.connect() as nothing,
            served.connect(request[:40]) as headers,
            served.connect(request[:-3]) as body,
        ):
            assert read_until_closed(nothing) == b""
            assert read_until_closed(headers).startswith(b"HTTP/1.1 408")
            assert read_until_closed(body).startswith(b"HTTP/1.1 408")
        metrics = served.http.get("/metrics").text
        for why in ("silent", "headers", "unread_body"):
            assert f'evergram_connections_ended_total{{why="{why}"}} 1.0' in metrics


@pytest.mark.long
def test_16_an_answer_that_nobody_takes_is_given_up(two_versions: Path) -> None:
    with serving(two_versions, "--silence", "0.5") as served, ExitStack() as stack:
        request = post_bytes(json.dumps({"input": list(range(300)) * 6}).encode())
        connection = stack.enter_context(served.connect())
        sending = threading.Thread(target=_send, args=(connection, request * 100))
        sending.start()
        ended = 'evergram_connections_ended_total{why="unread_answer"} 1.0'
        while ended not in served.http.get("/metrics").text:
            time.sleep(0.05)
        sending.join()


def _send(connection: socket.socket, content: bytes) -> None:
    """Send until the other side takes no more, or is gone."""
    with suppress(OSError):
        connection.sendall(content)


@pytest.mark.long
def test_16_a_connection_is_kept_longer_than_clients_keep_theirs(two_versions: Path) -> None:
    """httpx closes a connection that it has not used for 5 seconds."""
    request = post_bytes(b'{"input": [1]}')
    with serving(two_versions) as served, served.connect(request) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        time.sleep(6.5)
        connection.setblocking(False)
        while True:
            try:
                assert connection.recv(65_536), "the connection was closed"
            except BlockingIOError:
                break
        connection.setblocking(True)
        connection.sendall(request)
        assert connection.recv(12) == b"HTTP/1.1 200"


@pytest.mark.long
def test_16_bodies_are_held_within_one_budget(two_versions: Path) -> None:
    arguments = ["--max-body", "1", "--max-buffered", "1"]
    with serving(two_versions, *arguments) as served, ExitStack() as stack:
        half = post_bytes(b" " * 900_000, Content_Length=1_000_000)
        for _ in range(3):
            stack.enter_context(served.connect(half))
        refusals = 'evergram_errors_total{code="busy"} 2.0'
        while refusals not in served.http.get("/metrics").text:
            time.sleep(0.05)
        assert served.post("embeddings", {"input": [1]}).status_code == 200
