"""Statistics of published vectors: their moments, and the map forward to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.exact_versions import SIDE, exact_version
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import LineageError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.lineage.publishing import publish_statistics
from evergram.lineage.publishing.publish_statistics import RowSample, forward_map


def test_the_forward_map_is_that_of_least_squares(tmp_path: Path) -> None:
    """Against numpy's solution on the same pairs; ids in another order, some on one side only."""
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(400, 3, generator=draw)
    plant = torch.randn(3, 4, generator=draw)
    noise = 0.01 * torch.randn(400, 4, generator=draw)
    new = old @ plant + 2.0 + noise
    order = torch.randperm(400, generator=draw)
    lineage = Lineage.create(tmp_path / "lineage")
    ids = pa.array(range(400))
    one = exact_version(0, None)
    publish_next(
        lineage, Artefact(3, {SIDE: (ids.slice(0, 300), old[:300])}, None, one.metrics, one.recipe)
    )
    assert lineage.forward(0, 0) is not None
    back = LinearTransform.from_matrix(torch.randn(3, 4, generator=draw))
    shuffled = (ids.take(pa.array(order.numpy())).cast(pa.string()), new[order])
    publish_next(lineage, Artefact(4, {SIDE: shuffled}, back, one.metrics, one.recipe))
    forward = lineage.forward(0, 1)
    assert forward is not None
    weight, offset = forward
    ones = torch.ones(300, 1, dtype=torch.float64)
    design = torch.cat([old[:300].double(), ones], dim=1)
    expected = torch.linalg.lstsq(design, new[:300].double(), driver="gelsd").solution
    torch.testing.assert_close(weight, expected[:3].T, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(offset, expected[3], rtol=1e-3, atol=1e-3)
    count, mean, second = lineage.moments(1)[SIDE]
    wide = new.double()
    assert count == 400
    torch.testing.assert_close(mean, wide.mean(0))
    torch.testing.assert_close(second, wide.T @ wide / 400)
    with pytest.raises(LineageError, match="Version 0 is before version 1"):
        lineage.forward(1, 0)


def test_too_few_pairs_give_no_forward_map(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    one = exact_version(0, None)
    few = (pa.array(range(8)), torch.randn(8, 3))
    publish_next(lineage, Artefact(3, {SIDE: few}, None, one.metrics, one.recipe))
    back = LinearTransform.from_matrix(torch.eye(3))
    publish_next(lineage, Artefact(3, {SIDE: few}, back, one.metrics, one.recipe))
    assert lineage.forward(0, 1) is None
    assert lineage.moments(1)[SIDE][0] == 8


def test_of_many_rows_a_sample_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergram.lineage.publishing.publish_statistics.LEAST_ROWS", 90)
    lineage = Lineage.create(tmp_path / "lineage")
    one = exact_version(0, None)
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(40_000, 2, generator=draw)  # more than a block
    ids = pa.array(range(40_000))
    publish_next(lineage, Artefact(2, {SIDE: (ids, old)}, None, one.metrics, one.recipe))
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    back = LinearTransform.from_matrix(turn.T)
    new = (ids.slice(0, 39_999), (old @ turn.T)[:39_999])
    publish_next(lineage, Artefact(2, {SIDE: new}, back, one.metrics, one.recipe))
    assert lineage.moments(1)[SIDE][0] == 79
    forward = lineage.forward(0, 1)
    assert forward is not None
    torch.testing.assert_close(forward[0], turn.double(), rtol=1e-4, atol=1e-4)


def test_a_sample_is_every_nth_row_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_statistics, "LEAST_ROWS", 10)
    vectors = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    for size in (1, 7, 100):
        sample = RowSample("query", 0)
        cuts = range(0, 100, size)
        blocks = [(pa.array(range(i, min(i + size, 100))), vectors[i : i + size]) for i in cuts]
        passed = list(sample.through(blocks))
        assert torch.equal(torch.cat([block for _, block in passed]), vectors)
        step = sample.ids[1].as_py()
        assert sample.ids.to_pylist() == list(range(0, 100, step))
        # No more than the limit, and more than half of it.
        assert 5 < len(sample.ids) <= 10
        assert torch.equal(sample.vectors, vectors[::step])


def test_moments_are_those_of_the_rows_in_float64() -> None:
    vectors = 1000 + torch.randn(5000, 4, generator=torch.Generator().manual_seed(0))
    sample = RowSample("query", 4)
    list(sample.through([(pa.array(range(5000)), vectors)]))
    count, mean, second = sample.moments()
    wide = vectors.double().numpy()
    assert count == 5000
    np.testing.assert_allclose(mean.numpy(), wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(
        second.numpy(), np.einsum("ni,nj->ij", wide, wide) / 5000, rtol=1e-12
    )


def test_sides_without_a_file_before_give_no_map() -> None:
    sample = RowSample("query", 2)
    list(sample.through([(pa.array([1]), torch.ones(1, 2))]))
    assert forward_map({"query": sample}, {}) is None
