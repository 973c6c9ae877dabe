"""Serving from Python, the limits of a process, and two hundred requests at once."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.lineages import lineage_of
from tests.support.serving_process import ServingProcess, serving
from tests.support.store_kinds import STORES

from evergram.errors import ServiceError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.retrieval.fill import fill
from evergram.serving import Client, ServiceSettings, listen
from evergram.serving.process_limits import FILES, allowed_connections


def test_a_lineage_is_served_until_it_is_stopped(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    server = listen(tmp_path / "line", port=0)
    facts, files = server.as_json(), server.service.files()
    assert (facts["url"], facts["version"], facts["open"]) == (server.url, 2, True)
    assert facts["checked"] == [name for name, done in files.items() if done]
    thread = threading.Thread(target=server.run)
    # Before it runs, a client that connects waits.
    with Client(server.url) as client:
        thread.start()
        assert client.embed([1, 2], 0).vectors.shape == (2, 6)
    server.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_an_address_that_is_taken_is_refused_before_stores_are_filled(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"127.0.0.1:{port} cannot be listened on"):
            listen(tmp_path / "line", port=port)
    assert not (tmp_path / "line" / "stores").exists()
    with listen(tmp_path / "line", port=port):  # is free again, though it never ran
        pass
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_service_that_others_reach_needs_a_token(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line")
    settings = ServiceSettings(host="0.0.0.0")
    with pytest.raises(ServiceError, match="others can reach the service"):
        listen(tmp_path / "line", port=0, settings=settings)
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add("ads", "v0", lineage.resolve)
    consumers.issue_token("ads")
    with listen(tmp_path / "line", port=0, settings=settings) as server:
        assert not server.is_open


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "evergram.serving.http.connections", raising=False)
    with pytest.raises(ServiceError) as refusal:
        listen("line")
    assert str(refusal.value) == "Serving needs uvicorn: pip install 'evergram[serve]'."


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft and the hard limit of files, which the process is told and may change."""
    values = [FILES, FILES + 40]

    def change(_: int, changed: tuple[int, int]) -> None:
        if resource.RLIM_INFINITY != values[1] < changed[0]:
            raise ValueError("not allowed to raise maximum limit")
        values[:] = changed

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(values))
    monkeypatch.setattr(resource, "setrlimit", change)
    return values


def test_the_limit_is_raised_as_far_as_it_is_needed(limits: list[int]) -> None:
    assert allowed_connections(30) == 30
    assert limits == [FILES + 30, FILES + 40]


def test_connections_past_the_limit_are_logged_and_left_out(
    limits: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert allowed_connections(100) == 40
    assert f"it takes 40 connections at once, not 100; 'ulimit -n {FILES + 100}'" in caplog.text


def test_without_a_limit_all_are_allowed(
    limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits[:] = [resource.RLIM_INFINITY] * 2
    assert allowed_connections(10**6) == 10**6
    limits[:] = [10, resource.RLIM_INFINITY]
    assert allowed_connections(10**6) == 10**6
    assert limits[0] == 10**6 + FILES
    limits[:] = [10, 10]
    assert allowed_connections(30) == 1
    monkeypatch.setitem(sys.modules, "resource", None)
    assert allowed_connections(7) == 7


AT_ONCE = 200
# Seconds that one answer may take, however busy the machine is.
PATIENCE = 240
JSON = {"Content-Type": "application/json"}


def resident(process: subprocess.Popen[str]) -> int:
    """Bytes of memory of a process."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.parametrize(("kind", "requests"), [("snapshot", 4_000), ("pgvector", 2_000)])
def test_two_hundred_at_once(tmp_path: Path, kind: str, requests: int) -> None:
    lineage = lineage_of(tmp_path / "line")
    arguments = ["--timeout", str(PATIENCE)]
    with ExitStack() as stack:
        if kind != "snapshot":
            store = stack.enter_context(STORES[kind](tmp_path, "int64"))
            fill(lineage, store, "object")
            arguments += ["--store", f"object={store.address}"]
        service = stack.enter_context(serving(tmp_path / "line", *arguments))
        statuses, before, after = asyncio.run(_load(service, requests))
    assert statuses == {200: requests}
    assert after < before * 1.05 + 4 * 2**20, (before, after)


async def _load(service: ServingProcess, requests: int) -> tuple[dict[int, int], int, int]:
    """Return statuses, and the memory once all was warm and at the end."""
    statuses: dict[int, int] = {}
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
    kinds: list[tuple[str, Any]] = [
        ("/v1/embeddings", {"model": "line@v0", "input": list(range(100))}),
        ("/v1/embeddings", {"input": list(range(50)), "encoding_format": "base64"}),
        ("/v1/search", {"id": 5, "version": 1, "k": 10}),
        ("/v1/transform", {"vectors": [[0.5] * 10] * 5, "source": 2, "target": 0}),
    ]
    bodies = [(path, json.dumps(body).encode()) for path, body in kinds]
    numbers = iter(range(requests))
    before = 0

    async with httpx.AsyncClient(base_url=service.url, limits=limits, timeout=PATIENCE) as http:

        async def ask() -> None:
            nonlocal before
            for number in numbers:
                if number == requests // 3:
                    before = resident(service.process)
                path, body = bodies[number % len(bodies)]
                answer = await http.post(path, content=body, headers=JSON)
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    return statuses, before, resident(service.process)
