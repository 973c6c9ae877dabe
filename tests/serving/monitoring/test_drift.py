"""The second moments of served vectors against those of the stored ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.running_service import Running

from evergram.serving.monitoring.drift import Drift


def test_drift_is_small_for_all_and_large_for_a_few(served: Running) -> None:
    """Asked for evenly, served second moments are the stored ones; of one object they are not."""
    state = served.service.enter()
    draw = np.random.default_rng(0)
    for ids, low, high in ((range(300), 0.0, 0.3), ([7], 0.8, 100.0)):
        drift = Drift()
        for _ in range(40):
            asked = draw.choice(list(ids), 20)
            embedded = state.reader.embed(asked.tolist(), 0)
            drift.note("object", embedded.ids, embedded.sources)
            drift.look(state.reader)
        relative, count = drift.measured()["object", 2]
        assert count == 40 * 16
        assert relative is not None
        assert low <= relative < high
    state.leave()


def test_drift_is_the_distance_of_second_moments(served: Running) -> None:
    state = served.service.enter()
    drift = Drift()
    embedded = state.reader.embed([1, 2, 3])
    drift.note("object", embedded.ids, embedded.sources)
    drift.look(state.reader)
    stored = state.lineage.moments(2)["object"][2].numpy()
    served_moments = embedded.vectors.T.astype(np.float64) @ embedded.vectors / 3
    expected = np.linalg.norm(served_moments - stored) / np.linalg.norm(stored)
    relative, count = drift.measured()["object", 2]
    assert count == 3
    assert relative == pytest.approx(float(expected))
    state.leave()


def test_ids_that_are_not_stored_are_not_measured(served: Running) -> None:
    state = served.service.enter()
    drift = Drift()
    missing = state.reader.embed([900])
    drift.note("object", missing.ids, missing.sources)
    drift.note("object", missing.ids.slice(0, 0), missing.sources[:0])
    drift.look(state.reader)
    assert drift.measured() == {}
    state.leave()


class _Reader:
    """Rows of version 1 in a lineage that may be restored from a copy.

    Args:
        vector: of every row.
        go: what reading rows waits for.
    """

    def __init__(
        self, fingerprint: str, vector: list[float], go: threading.Event | None = None
    ) -> None:
        self.lineage = SimpleNamespace(
            manifest=lambda version: SimpleNamespace(fingerprint=fingerprint),
            moments=lambda version: {},
        )
        self.asked = threading.Event()
        self._vector, self._go = vector, go

    def embed(self, ids: pa.Array, version: int, side: str) -> Any:
        self.asked.set()
        assert self._go is None or self._go.wait(60)
        vectors = np.tile(np.array(self._vector, dtype=np.float32), (len(ids), 1))
        return SimpleNamespace(vectors=vectors, sources=np.full(len(ids), version))


def rows_of(fingerprint: str, vector: list[float], go: threading.Event | None = None) -> Any:
    return _Reader(fingerprint, vector, go)


def noted(rows: int) -> Drift:
    drift = Drift()
    drift.note("object", pa.array(range(rows)), np.ones(rows, dtype=np.int64))
    return drift


def test_nobody_waits_for_a_store_that_is_measured() -> None:
    go = threading.Event()
    drift, reader = noted(3), rows_of("a", [1.0, 2.0], go)
    with ThreadPoolExecutor(2) as pool:
        looking = pool.submit(drift.look, reader)
        assert reader.asked.wait(60)
        try:
            assert pool.submit(drift.measured).result(30) == {}
        finally:
            go.set()
        looking.result(60)
    assert drift.measured() == {("object", 1): (None, 3)}


def test_another_version_under_the_same_number_is_measured_anew() -> None:
    drift = noted(3)
    drift.look(rows_of("a", [1.0, 2.0]))
    # What was encoded by the version before is in no space of the one after.
    drift.note_vectors("object", 1, "a", np.ones((5, 2), dtype=np.float32))
    drift.note("object", pa.array([1]), np.ones(1, dtype=np.int64))
    drift.look(rows_of("b", [1.0, 2.0, 3.0]))
    assert drift.measured() == {("object", 1): (None, 1)}
    drift.note_vectors("object", 1, "b", np.ones((2, 3), dtype=np.float32))
    drift.look(rows_of("b", [1.0, 2.0, 3.0]))
    assert drift.measured() == {("object", 1): (None, 3)}


def test_each_version_is_measured_until_nothing_of_it_was_served_for_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A canary that was read once does not stand before production."""
    drift, reader = Drift(), rows_of("a", [1.0, 2.0])
    now = 100.0
    monkeypatch.setattr("evergram.serving.monitoring.drift.time.monotonic", lambda: now)
    for version, rows in ((2, 1), (1, 5)):
        drift.note("object", pa.array(range(rows)), np.full(rows, version))
        drift.look(reader)
        now += 3000
    assert drift.measured() == {("object", 1): (None, 5)}
    now -= 3000
    assert drift.measured() == {("object", 1): (None, 5), ("object", 2): (None, 1)}
