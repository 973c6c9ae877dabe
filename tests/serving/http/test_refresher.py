"""A service is refreshed by itself, and when a request names a version that it does not know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.lineages import publish
from tests.support.running_service import Running, running

from evergram.lineage.lineage import Lineage
from evergram.serving.settings import ServiceSettings


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_version_that_is_asked_for_is_loaded_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "line", ServiceSettings(poll=1000)) as served:
        publish(Lineage.open(served.folder), 3)
        answer = served.post("/v1/embeddings", {"input": 1, "model": "line@v3"})
        assert answer.json()["evergram"]["version"] == 3


def test_many_requests_for_an_unknown_version_wait_for_one_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While stores are filled, which is a long look, no queue of others gathers behind it."""
    with running(tmp_path / "line", ServiceSettings(poll=1000)) as served:
        begun, go = threading.Event(), threading.Event()
        looks = 0

        def look() -> bool:
            nonlocal looks
            looks += 1
            begun.set()
            assert go.wait(120)
            return False

        monkeypatch.setattr(served.service, "refresh", look)
        asked = {"input": 1, "version": "v9"}
        with ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(served.post, "/v1/embeddings", asked) for _ in range(8)]
            assert begun.wait(120)
            assert [a.result().status_code for a in answers] == [404] * 8
        go.set()
        until(lambda: served.post("/v1/embeddings", asked).status_code == 404)
        assert looks <= 3


def test_a_look_that_fails_is_tried_again(
    served: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def check_stores() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("once")

    monkeypatch.setattr(served.service, "check_stores", check_stores)
    until(lambda: len(looks) >= 3)
    assert caplog.text.count("Refreshing the service failed; it is tried again.") == 1
