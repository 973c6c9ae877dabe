"""A new version, a label that moves and a change of consumers, under way; and the limits of a
process."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import fsspec
import httpx
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose
from tests.support.lineages import lineage_of, publish
from tests.support.publishing import publish_next
from tests.support.running_service import (
    CountedStore,
    Running,
    read_from_dictionaries,
    running,
    server,
    until,
)
from tests.support.serving_process import ServingProcess, serving
from tests.support.store_kinds import STORES

from evergram.compatibility.transforms import AffineTransform
from evergram.errors import ServiceError, StoreError
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Reader
from evergram.serving import Client, listen
from evergram.serving.app import create_app
from evergram.serving.server import FILES, allowed_connections
from evergram.serving.service import ChangeWatch, Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts import ServedTexts
from evergram.stores.store import Store


def version_of(served: Running) -> int:
    version: int = served.post("/v1/embeddings", {"input": 1}).json()["evergram"]["version"]
    return version


def test_a_new_version_is_loaded_by_itself(fresh: Running) -> None:
    old = fresh.service.enter()
    publish(Lineage.open(fresh.folder), 3)
    until(lambda: version_of(fresh) == 3)
    store: Any = old.reader.store()
    # The request that is under way keeps what it began with.
    assert not store.closed
    assert old.reader.embed([1], 0).vectors.shape == (1, 6)
    old.leave()
    assert store.closed


def test_a_closed_service_is_entered_no_more_and_closes_its_stores(tmp_path: Path) -> None:
    with running(tmp_path / "line") as served:
        state = served.service.enter()
    # The application ends, and the request that is under way ends as it began.
    assert state.reader.embed([1], 0).vectors.shape == (1, 6)
    store: Any = state.reader.store()
    assert not store.closed
    state.leave()
    assert store.closed
    with pytest.raises(ServiceError, match="service is closed"):
        served.service.enter()


def test_a_withdrawn_version_leaves_no_rows_behind(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    lineage.label("kept", 1)
    publish(lineage, 2, rows=350)
    service = Service(tmp_path / "line")
    lineage.label("stable", 1)
    lineage.withdraw(2, "it was bad")
    assert service.refresh()
    assert (service.problem, service.production) == (None, 1)
    with service.entered() as state:
        assert state.reader.store().count() == {1: 300}
        assert state.reader.embed([0, 349], 0).sources.tolist() == [1, -1]
    service.close()


def test_a_token_is_taken_back_while_stores_are_filled(
    fresh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumers = ConsumerRegistry.open(fresh.folder)
    consumers.add("ads", "v0", Lineage.open(fresh.folder).resolve)
    token = consumers.issue_token("ads")
    reader = fresh.service.shared.reader
    until(lambda: fresh.post("/v1/embeddings", {"input": 1}).status_code == 401)
    assert fresh.service.shared.reader is reader  # the lineage is not opened again
    filling, filled = threading.Event(), threading.Event()
    opening = fresh.service._open_reader

    def slowly() -> Reader:
        filling.set()
        assert filled.wait(120)
        return opening()

    monkeypatch.setattr(fresh.service, "_open_reader", slowly)
    publish(Lineage.open(fresh.folder), 3)
    assert filling.wait(120)
    body = {"input": 1, "model": "line@v0"}
    assert fresh.post("/v1/embeddings", body, token).status_code == 200
    consumers.issue_token("ads")
    until(lambda: fresh.post("/v1/embeddings", body, token).status_code == 401)
    assert not filled.is_set()
    filled.set()
    until(lambda: fresh.service.production == 3)


def test_a_change_that_cannot_be_loaded_is_reported_and_the_old_version_served(
    fresh: Running, caplog: pytest.LogCaptureFixture
) -> None:
    record = fresh.folder / "lineage.json"
    whole = record.read_bytes()
    for content, problem in ((whole[:-20], True), (whole, False)):
        record.write_bytes(content)
        until(lambda: (fresh.get("/readyz").json()["problem"] is not None) == problem)  # noqa: B023
        assert f"evergram_reload_failed {float(problem)}" in fresh.get("/metrics").text
        if problem:
            ready = fresh.get("/readyz")
            assert ready.status_code == 200
            assert "still serving version 2" in ready.json()["problem"]
            assert str(fresh.folder) not in ready.text
            assert "lineage.json" in caplog.text
            assert version_of(fresh) == 2


def test_an_unexpected_error_of_an_encoder_is_a_problem_and_leaves_no_store_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("evergram.serving.service.RETRY_AFTER", 0.0)
    folder = lineage_of(tmp_path / "line").path
    stores: list[Any] = []

    def open_reader() -> Reader:
        reader = read_from_dictionaries(folder)
        stores.append(reader.store())
        return reader

    texts = ServedTexts([])
    service = Service(folder, texts=texts, open_reader=open_reader)
    publish(Lineage.open(folder), 3)
    with monkeypatch.context() as patched:
        patched.setattr(texts, "load", lambda _: 1 / 0)
        for _ in range(2):
            assert not service.refresh()
    (problem,) = service.problems
    assert "ZeroDivisionError" in problem
    assert "still serving version 2" in problem
    assert caplog.text.count("Traceback") == 1
    assert [store.closed for store in stores] == [False, True, True]
    assert service.refresh()
    assert (service.problem, service.production) == (None, 3)
    service.close()
    assert all(store.closed for store in stores)


def test_a_store_that_does_not_answer_is_not_ready(
    fresh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: CountedStore) -> Any:
        raise StoreError("gone from /srv/x")

    monkeypatch.setattr(CountedStore, "spaces", gone)
    until(lambda: fresh.get("/readyz").status_code == 503)
    assert "/srv" not in fresh.get("/readyz").text
    monkeypatch.undo()
    until(lambda: fresh.get("/readyz").status_code == 200)


ROWS, DIM = 60, 8
VECTORS = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))


def multiple(version: int) -> Artefact:
    """A version of `version + 1` times the same vectors, exact as any version before."""
    back = None
    if version:
        back = AffineTransform.from_matrix(
            torch.eye(DIM) * version / (version + 1), torch.zeros(DIM)
        )
    vectors = {"object": (pa.array(range(ROWS)), VECTORS * (version + 1.0))}
    return Artefact(DIM, vectors, back, {"metrics": {"model": {}}, "version": version}, {})


KINDS = ["own", *(kind for kind in STORES if kind != "dictionary")]


@contextmanager
def one_version_in(kind: str, folder: Path) -> Iterator[tuple[Path, Store | None]]:
    """A lineage of one version, labelled stable, and its store; None for its own snapshots."""
    lineage = Lineage.create(folder / "line", "line")
    publish_next(lineage, multiple(0))
    lineage.label("stable", 0)
    if kind == "own":
        yield lineage.path, None
        return
    with closing(STORES[kind](folder, "int64")) as store:
        fill(lineage, store, "object")
        yield lineage.path, store


def test_two_services_on_one_folder_load_promotions_and_labels_that_move(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    with ExitStack() as stack:
        services = [stack.enter_context(closing(Service(lineage.path))) for _ in range(2)]
        for change, production in (
            (lambda: publish(lineage, 2, promote=False), 1),
            (lambda: lineage.label("stable", 2), 2),
            (lambda: lineage.label("stable", 1), 1),
        ):
            change()
            for service in services:
                assert service.refresh()
                assert (service.production, service.problem) == (production, None)
                with service.entered() as state:
                    assert state.reader.embed([1], production).sources.tolist() == [production]


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_under_way_reads_on_from_what_a_change_replaces(
    tmp_path: Path, kind: str
) -> None:
    with one_version_in(kind, tmp_path) as (folder, store):
        service = Service(folder, None if store is None else {"object": store.address})
        for step in ("publish", "promote", "put back", "promote"):
            with service.entered() as state:
                lineage = Lineage.open(folder)
                if step == "publish":
                    publish_next(lineage, multiple(1), promote=False)
                else:
                    lineage.promote(0 if step == "put back" else 1)
                assert service.refresh()
                for version in range(state.lineage.newest + 1):
                    expected = (VECTORS * (version + 1.0)).numpy()
                    embedded = state.reader.embed([7], version)
                    assert_allclose(embedded.vectors[0], expected[7], atol=1e-4)
                    (hits,) = state.reader.search(expected[7], 1, version, metric="l2")
                    assert hits.ids.to_pylist() == [7]
        service.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k == "own" else pytest.mark.long) for k in KINDS]
)
def test_no_request_fails_while_versions_come_and_go(tmp_path: Path, kind: str) -> None:
    with one_version_in(kind, tmp_path) as (folder, store):
        upgrade_under_load(folder, store)


def upgrade_under_load(folder: Path, store: Store | None) -> None:
    stop, wrong, answers = threading.Event(), list[str](), Counter[int]()

    def ask(url: str, path: str) -> None:
        key = 0
        with httpx.Client(base_url=url, timeout=60) as http:
            while not stop.is_set():
                key = (key + 1) % ROWS
                asked = {"input": [key]} if path == "embeddings" else {"id": key, "metric": "l2"}
                for version in ("newest", "stable", 0):
                    answer = http.post(f"/v1/{path}", json={**asked, "version": version})
                    if answer.status_code != 200:
                        wrong.append(answer.text)
                        continue
                    number, (row, *_) = answer.json()["evergram"]["version"], answer.json()["data"]
                    answers[number] += 1
                    expected = (VECTORS[key] * (number + 1.0)).tolist()
                    right = (
                        row["hits"][0]["id"] == key
                        if path == "search"
                        else row["embedding"] == pytest.approx(expected, abs=1e-4)
                    )
                    if not right:
                        wrong.append(f"{row} for {key} at {number}, from {answer.headers}")

    def load(url: str, *, refill: bool) -> None:
        if refill and store is not None:
            fill(Lineage.open(folder), store, "object")
        lineage, before = Lineage.open(folder), answers.copy()

        def taken() -> bool:
            new = answers - before
            there = httpx.get(f"{url}/readyz").json()["version"] == lineage.production
            return bool(wrong) or (there and new[lineage.newest] > 5 and new[0] > 5)

        until(taken)

    service = Service(folder, None if store is None else {"object": store.address})
    app = create_app(service, ServiceSettings(poll=0.02))
    with server(app) as url, ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask, url, path) for path in ("embeddings", "search")]
        try:
            for version in (1, 2):
                publish_next(Lineage.open(folder), multiple(version), promote=False)
                load(url, refill=False)
                for production in (version, version - 1, version):
                    Lineage.open(folder).promote(production)
                    load(url, refill=True)
        finally:
            stop.set()
        for future in asking:
            future.result()
    assert not wrong, (len(wrong), sum(answers.values()), wrong[0])


def test_a_version_that_is_asked_for_is_loaded_at_once_by_one_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "line", ServiceSettings(poll=1000)) as served:
        publish(Lineage.open(served.folder), 3)
        answer = served.post("/v1/embeddings", {"input": 1, "model": "line@v3"})
        assert answer.json()["evergram"]["version"] == 3
    with running(tmp_path / "line", ServiceSettings(poll=1000)) as served:
        begun, go = threading.Event(), threading.Event()
        looks: list[int] = []

        def look() -> bool:
            looks.append(1)
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
        assert len(looks) <= 3


def test_a_look_that_fails_is_tried_again(
    fresh: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def check_stores() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("once")

    monkeypatch.setattr(fresh.service, "check_stores", check_stores)
    until(lambda: len(looks) >= 3)
    assert caplog.text.count("Refreshing the service failed; it will be retried.") == 1


def test_each_file_has_a_stamp_of_its_own_also_elsewhere(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    watch = ChangeWatch(tmp_path / "line")
    record, consumers = watch.stamps()
    assert watch.stamps() == (record, consumers) == (record, ())
    ConsumerRegistry.open(lineage.path).add("ads", "v0", lineage.resolve)
    same, added = watch.stamps()
    assert same == record
    assert added != consumers
    # A lineage on another machine is watched by its content.
    files = fsspec.filesystem("memory")
    watch = ChangeWatch("memory://watched")
    for content in (b"one", b"two"):
        files.pipe_file("/watched/lineage.json", content)
        assert watch.stamps() == ((content,), ())


def test_a_lineage_is_served_until_it_is_stopped(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    server = listen(tmp_path / "line", port=0)
    facts = server.as_json()
    assert (facts["url"], facts["version"], facts["open"]) == (server.url, 2, True)
    thread = threading.Thread(target=server.run)
    # Before it runs, a client that connects waits.
    with Client(server.url) as client:
        thread.start()
        assert client.embed([1, 2], 0).vectors.shape == (2, 6)
    server.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_an_address_is_given_back_and_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = lineage_of(tmp_path / "line")
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add("ads", "v0", lineage.resolve)
    consumers.issue_token("ads")
    with listen(lineage.path, port=0, settings=ServiceSettings(host="0.0.0.0")) as server:
        assert not server.as_json()["open"]
        port = int(server.url.rpartition(":")[2])
    socket.create_server(("127.0.0.1", port)).close()  # is free again, though it never ran
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "evergram.serving.connections", raising=False)
    with pytest.raises(ServiceError, match=r"uvicorn: pip install 'evergram\[serve\]'"):
        listen(lineage.path)


def test_connections_are_as_many_as_the_limit_of_files_can_be_raised_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits, endless = [0, 0], resource.RLIM_INFINITY

    def change(_: int, changed: tuple[int, int]) -> None:
        if endless != limits[1] < changed[0]:
            raise ValueError("not allowed to raise maximum limit")
        limits[:] = changed

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", change)
    for soft, hard, wanted, allowed, raised in (
        (FILES, FILES + 40, 30, 30, FILES + 30),
        (FILES, FILES + 40, 100, 40, FILES + 40),
        (endless, endless, 10**6, 10**6, endless),
        (10, endless, 10**6, 10**6, 10**6 + FILES),
        (10, 10, 30, 1, 10),
    ):
        limits[:] = soft, hard
        assert (allowed_connections(wanted), limits[0]) == (allowed, raised)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert allowed_connections(7) == 7


AT_ONCE = 200
PATIENCE = 240  # seconds that one answer may take, however busy the machine is
LOADS: list[tuple[str, Any]] = [
    ("/v1/embeddings", {"model": "line@v0", "input": list(range(100))}),
    ("/v1/embeddings", {"input": list(range(50)), "encoding_format": "base64"}),
    ("/v1/search", {"id": 5, "version": 1, "k": 10}),
    ("/v1/transform", {"vectors": [[0.5] * 10] * 5, "source": 2, "target": 0}),
]


@pytest.mark.long
def test_two_hundred_at_once_are_answered_and_leave_nothing_behind(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")

    async def load(service: ServingProcess, requests: int) -> int:
        """Return the bytes of memory that the service has once all were answered."""
        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
        numbers = iter(range(requests))
        async with httpx.AsyncClient(base_url=service.url, limits=limits, timeout=PATIENCE) as http:

            async def ask() -> None:
                for number in numbers:
                    path, body = LOADS[number % len(LOADS)]
                    assert (await http.post(path, json=body)).status_code == 200

            await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        pages = int(Path(f"/proc/{service.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    with serving(tmp_path / "line", "--set", f"timeout={PATIENCE}") as service:
        warm = asyncio.run(load(service, 1_300))
        assert asyncio.run(load(service, 2_700)) < warm * 1.05 + 4 * 2**20
