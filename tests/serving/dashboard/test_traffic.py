"""The running service's own facts: its requests, and stores that are being filled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.support.lineages import lineage_of, publish
from tests.support.running_service import ADDRESS, Running

from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.backfilling.backfill_progress import UNREADABLE, backfill_progress
from evergram.retrieval.fill import fill
from evergram.serving.app import create_app
from evergram.serving.dashboard import traffic
from evergram.serving.dashboard.traffic import TrafficLog
from evergram.serving.monitoring.metrics import Metrics
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.stores.open_store import open_store
from evergram.stores.snapshot.snapshot_store import SnapshotStore


@contextmanager
def on_snapshots(folder: Path) -> Iterator[TestClient]:
    """A service on the lineage's own stores."""
    app = create_app(Service.open(folder), ServiceSettings(poll=0.05))
    with TestClient(app, ADDRESS, raise_server_exceptions=False) as http:
        yield http


def shown(http: TestClient) -> list[dict[str, Any]]:
    answer = http.get("/v1/dashboard")
    assert answer.status_code == 200, answer.text
    backfills: list[dict[str, Any]] = answer.json()["live"]["backfill"]
    return backfills


def test_a_backfill_is_shown_as_it_goes(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    with (
        open_store(str(tmp_path / "store"), create="int64") as store,
        on_snapshots(lineage.path) as http,
    ):
        fill(lineage, store, "object")
        publish(lineage, 1)
        backfill = Backfill(lineage, store, "object")
        while http.get("/readyz").json()["version"] == 0:
            time.sleep(0.01)
        assert shown(http) == []
        steps: tuple[tuple[Callable[[], Any], int, str], ...] = (
            (lambda: backfill.plan(batch=50), 0, "planned"),
            (lambda: backfill.apply(rows=100), 100, "paused"),
            (backfill.apply, 300, "applied"),
            (backfill.rollback, 0, "rolled back"),
        )
        for step, done, state in steps:
            step()
            expected = {"side": "object", "version": 1, "done": done, "total": 300, "state": state}
            (facts,) = shown(http)
            assert expected.items() <= facts.items()
            assert (facts["per_minute"] is not None) == (state in ("paused", "applied"))


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"state": "applied"}', b'{"done": "x"}', b"\xff"])
def test_a_backfill_whose_files_are_damaged_says_so(tmp_path: Path, damage: bytes) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    with open_store(str(tmp_path / "store"), create="int64") as store:
        Backfill(lineage, store, "object").plan()
    (progress,) = (lineage.path / "backfills").glob("*/progress.json")
    progress.write_bytes(damage)
    (unreadable,) = backfill_progress(lineage.path)
    assert (unreadable.side, unreadable.state) == ("object", UNREADABLE)


def test_the_services_own_filling_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    written, go = threading.Event(), threading.Event()
    load = SnapshotStore.load

    def slowly(self: SnapshotStore, space: Any, blocks: Any) -> int:
        rows = list(blocks)
        written.set()
        assert go.wait(60)
        return load(self, space, rows)

    with on_snapshots(lineage.path) as http:
        monkeypatch.setattr(SnapshotStore, "load", slowly)
        publish(lineage, 1)
        assert written.wait(60)
        expected = {
            "side": "object", "version": 1, "done": 300, "total": 300, "state": "being filled",
            "per_minute": None, "left": None, "idle": None,
        }  # fmt: skip
        assert shown(http) == [expected]
        go.set()
        while http.get("/readyz").json()["version"] == 0:
            time.sleep(0.01)
        assert shown(http) == []


def test_requests_are_counted_before_anybody_looks(served: Running) -> None:
    for _ in range(4):
        served.post("/v1/embeddings", {"input": 1})
    live = served.get("/v1/dashboard").json()["live"]
    assert sum(t["per_minute"] for t in live["traffic"]) == 4
    assert max(rate["per_minute"] for rate in live["rates"]) > 0


def test_rates_are_those_of_each_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("evergram.serving.dashboard.traffic.monotonic", lambda: now)
    latest = TrafficLog()
    reader: Any = type("Reader", (), {"sides": (), "lineage": type("L", (), {"path": Path("/no")})})

    def rates() -> list[tuple[float, float]]:
        rates = latest.live(reader, Metrics(), {}).rates
        assert rates is not None
        return [(rate.ago, rate.per_minute) for rate in rates]

    for seconds, requests in ((0.5, 3), (4.0, 2), (12.0, 4)):
        now = 1000.0 + seconds
        for _ in range(requests):
            latest.answered("", 0, 200, 0.001)
    # 5 in 5 s, none in 5 s, 4 in the 2 s that the last step has lasted.
    assert rates() == [(7.0, 60.0), (2.0, 0.0), (0.0, 120.0)]
    now = 1000.0 + 10_000
    latest.answered("", 0, 200, 0.001)
    # Ten minutes of them, and no more is remembered.
    assert len(rates()) == 120
    assert rates()[-1] == (0.0, 60.0)
    assert sum(rate for _, rate in rates()[:-1]) == 0
    assert len(latest._steps) == 1


def test_rows_are_not_counted_at_every_look(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some stores look at each row for it."""
    counts = 0
    kind = type(served.service.shared.reader.store())
    count = kind.count

    def counted(self: Any) -> Any:
        nonlocal counts
        counts += 1
        return count(self)

    monkeypatch.setattr(kind, "count", counted)
    monkeypatch.setattr(traffic, "COUNTED_FOR", 3600.0)
    for _ in range(5):
        assert served.get("/v1/dashboard").json()["live"]["rows"] == {"object": {"2": 300}}
    assert counts == 1
