"""A new version, a label that moves and a change of consumers, under way."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
)
from tests.support.store_kinds import STORES

from evergram.compatibility.transforms import AffineTransform
from evergram.errors import ServiceError, StoreError
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.change_watch import ChangeWatch
from evergram.serving.dashboard.data import published_facts
from evergram.serving.served_state import SharedReader
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts.served_texts import ServedTexts


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


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


def test_a_closed_service_is_entered_no_more(tmp_path: Path) -> None:
    lineage_of(tmp_path / "line")
    service = Service.open(tmp_path / "line")
    state = service.enter()
    service.close()
    # The request that is under way ends as it began.
    assert state.reader.embed([1], 0).vectors.shape == (1, 6)
    state.leave()
    with pytest.raises(ServiceError, match="service is closed"):
        service.enter()


def test_a_label_that_moves_moves_production(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    lineage.label("kept", 1)
    publish(lineage, 2)
    with running(tmp_path / "line") as served:
        assert version_of(served) == 2
        lineage.label("stable", 1)
        until(lambda: version_of(served) == 1)
        body = served.post("/v1/embeddings", {"input": 1, "model": "line@stable"}).json()
        assert body["evergram"]["computed_from"] == [1]


def test_a_withdrawn_version_leaves_no_rows_behind(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    lineage.label("kept", 1)
    publish(lineage, 2, rows=350)
    service = Service.open(tmp_path / "line")
    lineage.label("stable", 1)
    lineage.withdraw(2, "it was bad")
    assert service.refresh()
    assert (service.problem, service.production) == (None, 1)
    with service.entered() as state:
        assert state.reader.store().count() == {1: 300}
        assert state.reader.embed([0, 349], 0).sources.tolist() == [1, -1]
    service.close()


def test_a_change_of_consumers_does_not_open_the_lineage_again(fresh: Running) -> None:
    reader = fresh.service.shared.reader
    lineage = Lineage.open(fresh.folder)
    consumers = ConsumerRegistry.open(fresh.folder)
    consumers.add("ads", "v0", lineage.resolve)
    token = consumers.issue_token("ads")
    until(lambda: fresh.post("/v1/embeddings", {"input": 1}).status_code == 401)
    body = fresh.post("/v1/embeddings", {"input": 1}, token).json()
    assert body["evergram"]["version"] == 0
    assert fresh.service.shared.reader is reader


def test_a_token_is_taken_back_while_stores_are_filled(
    fresh: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumers = ConsumerRegistry.open(fresh.folder)
    consumers.add("ads", "v0", Lineage.open(fresh.folder).resolve)
    token = consumers.issue_token("ads")
    until(lambda: fresh.post("/v1/embeddings", {"input": 1}).status_code == 401)
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
    monkeypatch.undo()
    until(lambda: fresh.service.production == 3)


def test_a_change_that_cannot_be_loaded_is_reported_and_the_old_version_served(
    fresh: Running, caplog: pytest.LogCaptureFixture
) -> None:
    record = fresh.folder / "lineage.json"
    whole = record.read_bytes()
    with caplog.at_level(logging.ERROR):
        record.write_bytes(whole[:-20])
        until(lambda: fresh.get("/readyz").json()["problem"] is not None)
    ready = fresh.get("/readyz")
    assert ready.status_code == 200
    assert "version 2 is served on" in ready.json()["problem"]
    assert str(fresh.folder) not in ready.text
    assert "lineage.json" in caplog.text
    assert "evergram_reload_failed 1.0" in fresh.get("/metrics").text
    assert version_of(fresh) == 2
    record.write_bytes(whole)
    until(lambda: fresh.get("/readyz").json()["problem"] is None)
    assert "evergram_reload_failed 0.0" in fresh.get("/metrics").text


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
    stamps = ChangeWatch(folder).stamps
    service = Service(open_reader, lambda: ConsumerRegistry.open(folder), stamps, texts=texts)
    publish(Lineage.open(folder), 3)

    def broken(lineage: Lineage) -> None:
        raise ImportError("cannot import name 'x' from 'transformers'")

    with monkeypatch.context() as patched:
        patched.setattr(texts, "load", broken)
        for _ in range(2):
            assert not service.refresh()
    assert service.problems == [
        "The lineage has changed and cannot be loaded (ImportError); version 2 is served on."
    ]
    assert caplog.text.count("Traceback") == 1
    assert [store.closed for store in stores] == [False, True, True]
    assert service.refresh()
    assert (service.problem, service.production) == (None, 3)
    service.close()
    assert all(store.closed for store in stores)


def test_two_services_on_one_folder_load_a_promotion(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    first, second = Service.open(lineage.path), Service.open(lineage.path)
    publish(lineage, 2, promote=False)
    assert first.refresh()
    assert second.refresh()
    lineage.label("stable", 2)
    assert first.refresh()
    assert second.refresh()
    for service in (first, second):
        assert (service.production, service.problem) == (2, None)
        with service.entered() as state:
            assert state.reader.embed([1], 2).sources.tolist() == [2]
        service.close()


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_under_way_reads_on_from_what_a_change_replaces(
    tmp_path: Path, kind: str
) -> None:
    lineage = Lineage.create(tmp_path / "line", "line")
    publish_next(lineage, multiple(0))
    lineage.label("stable", 0)
    store = None if kind == "own" else STORES[kind](tmp_path, "int64")
    if store is not None:
        fill(lineage, store, "object")
    service = Service.open(lineage.path, None if store is None else {"object": store.address})
    for step in ("publish", "promote", "put back", "promote"):
        with service.entered() as state:
            lineage = Lineage.open(lineage.path)
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
    if store is not None:
        store.close()


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k == "own" else pytest.mark.long) for k in KINDS]
)
def test_no_request_fails_while_versions_come_and_go(tmp_path: Path, kind: str) -> None:
    lineage = Lineage.create(tmp_path / "line", "line")
    publish_next(lineage, multiple(0))
    store = None if kind == "own" else STORES[kind](tmp_path, "int64")
    if store is not None:
        fill(lineage, store, "object")
    stores = None if store is None else {"object": store.address}
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
                    if path == "search" and row["hits"][0]["id"] != key:
                        wrong.append(f"{row} for {key}")
                    if path == "embeddings":
                        expected = (VECTORS[key] * (number + 1.0)).tolist()
                        if row["embedding"] != pytest.approx(expected, abs=1e-4):
                            wrong.append(f"{key} at {number}, from {answer.headers}")

    def load(url: str, *, refill: bool) -> None:
        if refill and store is not None:
            fill(Lineage.open(lineage.path), store, "object")
        lineage_now, before = Lineage.open(lineage.path), answers.copy()

        def taken() -> bool:
            new = answers - before
            there = httpx.get(f"{url}/readyz").json()["version"] == lineage_now.production
            return bool(wrong) or (there and new[lineage_now.newest] > 5 and new[0] > 5)

        until(taken)

    lineage.label("stable", 0)
    service = Service.open(lineage.path, stores)
    with server(create_app(service, ServiceSettings(poll=0.02))) as url:
        threads = [threading.Thread(target=ask, args=(url, p)) for p in ("embeddings", "search")]
        for thread in threads:
            thread.start()
        for version in (1, 2):
            publish_next(Lineage.open(lineage.path), multiple(version), promote=False)
            load(url, refill=False)
            for production in (version, version - 1, version):
                Lineage.open(lineage.path).promote(production)
                load(url, refill=True)
        stop.set()
        for thread in threads:
            thread.join()
    if store is not None:
        store.close()
    assert not wrong, (len(wrong), sum(answers.values()), wrong[0])


def test_a_version_that_is_asked_for_is_loaded_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "line", ServiceSettings(poll=1000)) as served:
        publish(Lineage.open(served.folder), 3)
        answer = served.post("/v1/embeddings", {"input": 1, "model": "line@v3"})
        assert answer.json()["evergram"]["version"] == 3


def test_many_requests_for_an_unknown_version_wait_for_one_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    fresh: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[int] = []

    def check_stores() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("once")

    monkeypatch.setattr(fresh.service, "check_stores", check_stores)
    until(lambda: len(looks) >= 3)
    assert caplog.text.count("Refreshing the service failed; it is tried again.") == 1


@pytest.fixture
def shared(tmp_path: Path) -> SharedReader:
    lineage_of(tmp_path / "line", versions=2)
    return SharedReader(read_from_dictionaries(tmp_path / "line"))


def test_the_last_to_leave_closes_the_stores(shared: SharedReader) -> None:
    store: Any = shared.reader.store()
    assert shared.enter()
    shared.leave()
    assert not store.closed
    shared.leave()
    assert store.closed
    assert not shared.enter()


def test_published_facts_are_read_by_the_first_who_asks(
    shared: SharedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def counted(lineage: Any) -> Any:
        calls.append(lineage)
        return published_facts(lineage)

    monkeypatch.setattr("evergram.serving.served_state.published_facts", counted)
    facts = shared.published_facts()
    assert set(facts.metrics) == {0, 1}
    assert shared.published_facts() is facts
    assert len(calls) == 1


def test_each_file_has_a_stamp_of_its_own(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=2)
    watch = ChangeWatch(tmp_path / "line")
    record, consumers = watch.stamps()
    assert consumers == ()
    assert watch.stamps() == (record, consumers)
    ConsumerRegistry.open(lineage.path).add("ads", "v0", lineage.resolve)
    assert watch.stamps()[0] == record
    added = watch.stamps()[1]
    assert added != consumers
    lineage.label("kept", 0)
    assert watch.stamps()[0] != record
    assert watch.stamps()[1] == added


def test_a_remote_lineage_is_watched_by_its_content(tmp_path: Path) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe_file("/watched/lineage.json", b"one")
    watch = ChangeWatch("memory://watched")
    assert watch.folder is None
    assert watch.stamps() == ((b"one",), ())
    files.pipe_file("/watched/lineage.json", b"two")
    assert watch.stamps() == ((b"two",), ())
