"""The second moments of served vectors against those of the stored ones."""

from __future__ import annotations

import numpy as np
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
        version, relative, count = drift.measured()["object"]
        assert version == 2
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
    version, relative, count = drift.measured()["object"]
    assert (version, count) == (2, 3)
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
