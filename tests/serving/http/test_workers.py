"""Workers: cancelled work that has not started never runs, and started work ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.http.workers import Workers


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


def test_more_than_may_wait_are_refused_and_done_at_once() -> None:
    release = threading.Event()
    done: list[int] = []

    async def scene() -> None:
        workers = Workers(size=1, waiting=0)
        first = asyncio.create_task(workers.run(lambda: release.wait(60), lambda: done.append(1)))
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="Too many requests wait"):
            await workers.run(lambda: None, lambda: done.append(2))
        assert done == [2]
        release.set()
        assert await first
        workers.close()

    asyncio.run(scene())
    assert done == [2, 1]


def test_work_for_closed_workers_is_refused_and_done() -> None:
    """As when a request comes in while the service shuts down."""
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
