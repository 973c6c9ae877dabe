"""Limits, time-outs, and what an error does not tell."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.running_service import CountedStore, Running, running

from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.request_handler import PAGES
from evergram.serving.http.workers import Workers
from evergram.serving.settings import ServiceSettings

SMALL = ServiceSettings(
    max_batch=4, max_k=5, max_hits=8, max_dim=12, max_body=2000, timeout=0.5, workers=1,
    max_waiting=1,
)  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "line", SMALL) as served:
        yield served


@pytest.mark.parametrize(
    ("path", "asked", "status"),
    [
        ("/v1/embeddings", {"input": [1, 2, 3, 4]}, 200),
        ("/v1/embeddings", {"input": [1, 2, 3, 4, 5]}, 413),
        ("/v1/search", {"vector": [0.5] * 10, "k": 6}, 400),
        ("/v1/search", {"vectors": [[0.5] * 10] * 2, "k": 4}, 200),
        ("/v1/search", {"vectors": [[0.5] * 10] * 2, "k": 5}, 413),
        ("/v1/search", {"vector": [0.5] * 10, "k": 1, "ids": [1, 2, 3, 4, 5]}, 413),
        ("/v1/transform", {"vectors": [[0.5] * 10] * 5, "source": 2}, 413),
        ("/v1/embeddings", {"input": ["1" * 1900, "2"]}, 400),
        ("/v1/embeddings", {"input": ["1" * 2100]}, 413),
    ],
)
def test_requests_past_a_limit_are_refused(
    small: Running, path: str, asked: dict[str, Any], status: int
) -> None:
    answer = small.post(path, asked)
    assert answer.status_code == status, answer.text


def test_a_body_is_counted_as_it_comes(small: Running) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b" " * 500

    headers = {"Content-Type": "application/json"}
    answer = small.http.post("/v1/embeddings", content=chunks(), headers=headers)
    assert answer.status_code == 413
    assert "2000 bytes" in answer.json()["error"]["message"]


def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Stores that do not answer until the event is set."""
    go = threading.Event()
    read = CountedStore._read

    def waiting(self: CountedStore, ids: Any) -> Any:
        go.wait(120)
        return read(self, ids)

    monkeypatch.setattr(CountedStore, "_read", waiting)
    return go


def test_a_request_past_its_time_is_answered_504(
    small: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = slow(monkeypatch)
    started = time.monotonic()
    answer = small.post("/v1/embeddings", {"input": 1})
    assert answer.status_code == 504
    assert time.monotonic() - started < 60
    assert "0.5 seconds" in answer.json()["error"]["message"]
    # The event loop was never blocked.
    assert small.get("/healthz").status_code == 200
    go.set()


def test_a_request_past_the_queue_is_answered_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServiceSettings(workers=1, max_waiting=1, timeout=20)
    with running(tmp_path / "line", settings) as served:
        go = slow(monkeypatch)

        def ask() -> Any:
            return served.post("/v1/embeddings", {"input": 1})

        with ThreadPoolExecutor(3) as pool:
            first = [pool.submit(ask) for _ in range(2)]
            handler = served.http.app.state.handler  # type: ignore[attr-defined]
            while handler.workers.busy < 2:
                time.sleep(0.01)
            third = ask()
            assert third.status_code == 503
            assert third.headers["retry-after"] == "1"
            go.set()
            assert [f.result().status_code for f in first] == [200, 200]
        assert handler.workers.busy == 0
        assert ask().status_code == 200


def test_a_body_is_held_until_its_worker_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "line", ServiceSettings(timeout=0.5, workers=1)) as served:
        handler = served.http.app.state.handler  # type: ignore[attr-defined]
        go = slow(monkeypatch)
        body = b'{"input": [1' + (b"," + b" " * 200 + b"1") * 1000 + b"]}"
        headers = {"Content-Type": "application/json"}
        answer = served.http.post("/v1/embeddings", content=body, headers=headers)
        assert answer.status_code == 504
        assert handler.bodies.held > 100_000
        go.set()
        while handler.bodies.held:
            time.sleep(0.01)


def test_metrics_keep_no_other_request_waiting(
    fresh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = fresh.http.app.state.handler  # type: ignore[attr-defined]
    begun, go = threading.Event(), threading.Event()

    def page() -> bytes:
        begun.set()
        assert go.wait(120)
        return b"page"

    monkeypatch.setattr(handler.metrics, "page", page)
    with ThreadPoolExecutor(PAGES + 2) as pool:
        pages = [pool.submit(fresh.get, "/metrics") for _ in range(PAGES + 2)]
        try:
            assert begun.wait(60)
            assert pool.submit(fresh.get, "/healthz").result(60).status_code == 200
        finally:
            go.set()
        statuses = [answer.result(60).status_code for answer in pages]
    assert sorted(set(statuses)) == [200, 503]
    assert statuses.count(200) == PAGES + 1


def test_work_cancelled_before_it_starts_never_runs() -> None:
    started, release = threading.Event(), threading.Event()
    ran: list[str] = []
    done: list[str] = []

    def slow() -> None:
        started.set()
        assert release.wait(60)
        ran.append("slow")

    async def scene() -> None:
        workers = Workers(size=1, waiting=1)
        first = asyncio.create_task(workers.run(slow, lambda: done.append("slow")))
        await asyncio.to_thread(started.wait, 60)
        second = asyncio.create_task(
            workers.run(lambda: ran.append("waiting"), lambda: done.append("waiting"))
        )
        await asyncio.sleep(0)
        assert workers.busy == 2
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        # What has started goes on without anybody who waits for it.
        assert done == ["waiting"]
        release.set()
        workers.close()
        assert workers.busy == 0

    asyncio.run(scene())
    assert ran == ["slow"]
    assert done == ["waiting", "slow"]


def test_work_for_closed_workers_is_refused_and_done() -> None:
    done: list[int] = []

    async def scene() -> None:
        workers = Workers(size=1, waiting=1)
        workers.close()
        with pytest.raises(RefusedError) as refusal:
            await workers.run(lambda: None, lambda: done.append(1))
        assert refusal.value.status == 503
        assert workers.busy == 0

    asyncio.run(scene())
    assert done == [1]
