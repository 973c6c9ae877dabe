"""A new version, a label that moves and a change of consumers, under way."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose
from tests.support.lineages import lineage_of, publish, read_as
from tests.support.publishing import publish_next
from tests.support.running_service import Running, read_from_dictionaries, running, server
from tests.support.store_kinds import STORES

from evergram.compatibility.transforms import AffineTransform
from evergram.errors import ServiceError
from evergram.lineage.artefact import Artefact
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Reader
from evergram.serving.app import create_app
from evergram.serving.change_watch import ChangeWatch
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts.served_texts import ServedTexts
from evergram.stores.snapshot.snapshot_store import SnapshotStore


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def version_of(served: Running) -> int:
    version: int = served.post("/v1/embeddings", {"input": 1}).json()["evergram"]["version"]
    return version


def test_a_new_version_is_loaded_by_itself(served: Running) -> None:
    old = served.service.enter()
    publish(Lineage.open(served.folder), 3)
    until(lambda: version_of(served) == 3)
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
    """It had objects that the version before has not, and it went before anybody looked."""
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


def test_a_change_of_consumers_does_not_open_the_lineage_again(served: Running) -> None:
    reader = served.service.shared.reader
    lineage = Lineage.open(served.folder)
    consumers = ConsumerRegistry.open(served.folder)
    consumers.add("ads", "v0", lineage.resolve)
    token = consumers.issue_token("ads")
    until(lambda: served.post("/v1/embeddings", {"input": 1}).status_code == 401)
    body = served.post("/v1/embeddings", {"input": 1}, token).json()
    assert body["evergram"]["version"] == 0
    assert served.service.shared.reader is reader


def test_a_token_is_taken_back_while_stores_are_filled(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumers = ConsumerRegistry.open(served.folder)
    consumers.add("ads", "v0", Lineage.open(served.folder).resolve)
    token = consumers.issue_token("ads")
    until(lambda: served.post("/v1/embeddings", {"input": 1}).status_code == 401)
    filling, filled = threading.Event(), threading.Event()
    opening = served.service._open_reader

    def slowly() -> Reader:
        filling.set()
        assert filled.wait(120)
        return opening()

    monkeypatch.setattr(served.service, "_open_reader", slowly)
    publish(Lineage.open(served.folder), 3)
    assert filling.wait(120)
    body = {"input": 1, "model": "line@v0"}
    assert served.post("/v1/embeddings", body, token).status_code == 200
    consumers.issue_token("ads")
    until(lambda: served.post("/v1/embeddings", body, token).status_code == 401)
    assert not filled.is_set()
    filled.set()
    monkeypatch.undo()
    until(lambda: served.service.production == 3)


def test_a_change_that_cannot_be_loaded_is_reported_and_the_old_version_served(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    record = served.folder / "lineage.json"
    whole = record.read_bytes()
    with caplog.at_level(logging.ERROR):
        record.write_bytes(whole[:-20])
        until(lambda: served.get("/readyz").json()["problem"] is not None)
    ready = served.get("/readyz")
    assert ready.status_code == 200
    assert "version 2 is served on" in ready.json()["problem"]
    assert str(served.folder) not in ready.text
    assert "lineage.json" in caplog.text
    assert "evergram_reload_failed 1.0" in served.get("/metrics").text
    assert version_of(served) == 2
    record.write_bytes(whole)
    until(lambda: served.get("/readyz").json()["problem"] is None)
    assert "evergram_reload_failed 0.0" in served.get("/metrics").text


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
    """Whichever is first removes the stores of the newest version's own, which both had open."""
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
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.running_service import CountedStore

    from evergram.errors import StoreError

    def gone(self: CountedStore) -> Any:
        raise StoreError("gone from /srv/x")

    monkeypatch.setattr(CountedStore, "spaces", gone)
    until(lambda: served.get("/readyz").status_code == 503)
    assert "/srv" not in served.get("/readyz").text
    monkeypatch.undo()
    until(lambda: served.get("/readyz").status_code == 200)


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
    """Versions are published aside, promoted, put back and filled, in every kind of store, while
    requests for each of them are answered over HTTP; every vector and every hit is right."""
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


def test_three_upgrades_under_load_without_an_error(tmp_path: Path) -> None:
    """On the lineage's own snapshots, behind a real server: every answer is right, whichever
    version it was computed from."""
    folder = tmp_path / "line"
    lineage = lineage_of(folder, versions=1)
    service = Service.open(folder)
    assert isinstance(service.shared.reader.store(), SnapshotStore)
    expected = {v: read_as(v, 0).numpy() for v in range(4)}
    stop = threading.Event()
    wrong: list[Any] = []
    seen: set[int] = set()

    def ask(url: str, seed: int) -> None:
        draw = np.random.default_rng(seed)
        with httpx.Client(base_url=url) as http:
            while not stop.is_set():
                ids = draw.integers(0, 300, size=20).tolist()
                answer = http.post("/v1/embeddings", json={"model": "line@v0", "input": ids})
                if answer.status_code != 200:
                    wrong.append(answer.text)
                    return
                body = answer.json()
                for key, row, source in zip(
                    ids, body["data"], body["evergram"]["computed_from"], strict=True
                ):
                    seen.add(source)
                    try:
                        assert_allclose(row["embedding"], expected[source][key], 1e-4, 1e-5)
                    except AssertionError as error:
                        wrong.append((source, key, str(error)))

    with server(create_app(service, ServiceSettings(poll=0.05))) as url:
        threads = [threading.Thread(target=ask, args=(url, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for version in (0, 1, 2, 3):
            if version:
                publish(lineage, version)
            until(lambda v=version: v in seen or bool(wrong))  # type: ignore[misc]
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[0]
    assert seen == {0, 1, 2, 3}
