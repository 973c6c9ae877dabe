"""The rows that a backfill refreshes, the largest predicted error first."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import vectors_of
from tests.support.older_stores import older_store, store_of_a_withdrawn_version

from evergram.compatibility.certificate import StepError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.backfilling.backfill import Backfill
from evergram.retrieval.backfilling.backfill_order import (
    UNREADABLE,
    backfill_order,
    predicted_errors,
)
from evergram.retrieval.fill import fill, space_of, stored_rows
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.rows import Rows

pytestmark = pytest.mark.usefixtures("backfill_in_memory")


def test_the_largest_predicted_error_comes_first(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward map that loses the last two coordinates: rows that are long there are worst."""
    forward = torch.eye(10, 8, dtype=torch.float64)
    forward[6:] = 0
    offset = torch.zeros(10, dtype=torch.float64)
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: (forward, offset))
    store = older_store(lineage)
    work = Backfill(lineage, store, "object")
    work.plan(batch=50)
    work.apply(rows=50)
    first = {i for rows in store.scan(2) for i in rows.ids.to_pylist()}
    vectors = vectors_of(1).numpy()
    back = np.array([*vectors.T[:6] * 2 / 3 + 0.2, np.full(300, 0.2), np.full(300, 0.2)]).T
    lost = np.linalg.norm(back - vectors, axis=1)
    assert first == set(np.argsort(-lost)[:50].tolist())


def test_rows_come_worst_first_and_those_of_a_withdrawn_version_before_all(
    lineage: Lineage,
) -> None:
    lineage.label("kept", 2)
    store, _ = store_of_a_withdrawn_version(lineage)
    source = DictionaryStore()
    fill(lineage, source, "object", 2)
    # 200 rows are of version 2 already; the object 5000 has no embedding in it.
    space = store.spaces()[3]
    store.upsert(Rows(3, pa.array([5000]), np.ones((1, space.dim), np.float32)))
    order = backfill_order(lineage, store, source, 2)
    assert len(order.ids) == 100
    assert order.errors.tolist() == [UNREADABLE] * 100
    assert order.without == 1


def test_without_a_forward_map_the_oldest_rows_come_first(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: None)
    store, source = DictionaryStore(), DictionaryStore()
    fill(lineage, source, "object", 2)
    for version, ids in ((1, range(4)), (0, range(4, 8))):
        space = space_of(lineage, version)
        store.add_space(space)
        vectors = vectors_of(version).numpy()[:4]
        rows = stored_rows(lineage, VersionMaps(lineage), space, pa.array(ids), vectors)
        store.upsert(rows)
    order = backfill_order(lineage, store, source, 2)
    # No version has a certificate here, so the error is the number of versions between.
    assert order.ids.to_pylist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert order.errors.tolist() == [2.0] * 4 + [1.0] * 4


def test_the_predicted_error_is_lost_forward_and_back_with_the_certificates(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, by the two maps written out."""
    forward = torch.eye(8, 6, dtype=torch.float64) * 3
    monkeypatch.setattr(
        Lineage, "forward", lambda self, source, target: (forward, torch.ones(8).double())
    )
    errors = {1: StepError(torch.eye(6).double() * 0.5, 300, 1.0)}
    monkeypatch.setattr(Lineage, "step_errors", errors)
    vectors = vectors_of(0)
    predicted = predicted_errors(lineage, VersionMaps(lineage), vectors.numpy(), 0, 1)
    weight, offset = lineage.chain.affine(1, 0)
    back = (vectors.double() @ forward.T + 1) @ weight.T + offset
    truth = ((back - vectors).square().sum(1) + 6 * 0.5).sqrt()
    np.testing.assert_allclose(predicted, truth.numpy(), rtol=1e-5)


def test_a_row_of_a_later_version_has_the_number_of_versions_between(lineage: Lineage) -> None:
    predicted = predicted_errors(lineage, VersionMaps(lineage), vectors_of(2).numpy()[:3], 2, 0)
    assert predicted.tolist() == [2.0] * 3
