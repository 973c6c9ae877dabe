"""Maps between versions give what the chain gives in float64, for rows and for queries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.lineages import read_as, vectors_of

from evergram.errors import LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps


@pytest.mark.parametrize("target", [0, 1, 2])
def test_rows_are_read_as_an_earlier_version_as_by_the_chain(lineage: Lineage, target: int) -> None:
    rows = VersionMaps(lineage).rows(vectors_of(2).numpy(), 2, target)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, read_as(2, target).numpy(), rtol=1e-5, atol=1e-5)


def test_rows_are_read_forward_by_the_published_forward_map(lineage: Lineage) -> None:
    rows = VersionMaps(lineage).rows(vectors_of(0).numpy(), 0, 2)
    forward = lineage.forward(0, 2)
    assert forward is not None
    weight, offset = forward
    truth = vectors_of(0).double() @ weight.T + offset
    np.testing.assert_allclose(rows, truth.numpy(), rtol=1e-4, atol=1e-4)


def test_a_transformed_query_has_the_score_of_the_transformed_row(lineage: Lineage) -> None:
    queries = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    affine = VersionMaps(lineage).affine(2, 0)
    transformed, offsets = affine.queries(queries)
    assert offsets is not None
    scores = transformed @ vectors_of(2).numpy().T + offsets[:, None]
    truth = queries.astype(np.float64) @ read_as(2, 0).double().numpy().T
    np.testing.assert_allclose(scores, truth, rtol=1e-4, atol=1e-4)


def test_a_version_read_as_itself_is_unchanged(lineage: Lineage) -> None:
    affine = VersionMaps(lineage).affine(1, 1)
    vectors = vectors_of(1).numpy()
    assert np.array_equal(affine.rows(vectors), vectors)
    assert affine.queries(vectors)[1] is None


def test_norms_are_the_squared_lengths_at_each_version_up_to_its_own(lineage: Lineage) -> None:
    norms = VersionMaps(lineage).norms(vectors_of(2).numpy(), 2)
    lengths = [read_as(2, target).double().square().sum(1) for target in range(3)]
    truth = torch.stack(lengths, dim=1).numpy() * NORM_SCALE
    np.testing.assert_allclose(norms, truth, rtol=1e-5)


def test_a_norm_past_float32_is_infinite(lineage: Lineage) -> None:
    vectors = np.full((1, 6), 1e30, np.float32)
    assert np.isinf(VersionMaps(lineage).norms(vectors, 0)).all()


def test_without_a_forward_map_a_later_version_is_refused(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lineage, "forward", lambda self, source, target: None)
    with pytest.raises(LineageError, match="of version 0 cannot be read as the later version 2: "):
        VersionMaps(lineage).rows(vectors_of(0).numpy(), 0, 2)


def test_each_map_is_made_once(lineage: Lineage, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = VersionMaps(lineage)
    first = maps.affine(2, 0)
    monkeypatch.setattr(Lineage, "chain", None)
    assert maps.affine(2, 0) is first
