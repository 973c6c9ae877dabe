"""A lineage from its first version on: published, opened again, and read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.support.artefacts import artefact, shop_of_three

from evergram.errors import (
    LineageError,
    UnknownVersionError,
)
from evergram.lineage.lineage import Lineage


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """Versions 0 to 2, of dims 2, 3 and 4."""
    return shop_of_three(tmp_path / "lineage")


def test_a_published_version_is_read_back(lineage: Lineage) -> None:
    again = Lineage.open(lineage.path)
    assert [(m.version, m.dim, m.name) for m in again.versions] == [
        (0, 2, "shop@v0"),
        (1, 3, "shop@v1"),
        (2, 4, "shop@v2"),
    ]
    published = artefact(4, 3, seed=2)
    ids, vectors = again.embeddings("candidate")
    assert ids.equals(published.block("candidate")[0])
    assert torch.equal(vectors, published.block("candidate")[1])
    record, state, vocabularies = again.encoder_parts(1)
    assert record.kind == "factorization"
    assert torch.equal(state["query.weight"], artefact(3, 2, seed=1).block("query")[1])
    assert vocabularies["candidate.id"].keys.equals(pa.array([10, 20]))
    assert again.metrics(0) == {"metrics": {"model": {"recall@20": 0.5}}}
    canary = pq.read_table(again.path / "versions" / "0" / "canary.parquet")
    assert canary["id"].to_pylist() == ["a", "10"]


def test_only_the_newest_embeddings_are_stored(lineage: Lineage) -> None:
    assert [p.name for p in (lineage.path / "embeddings").iterdir()] == ["2"]


def test_a_version_or_side_that_is_not_there_is_named(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(UnknownVersionError, match="its versions are: 0, 1, 2"):
        lineage.view(3)
    with pytest.raises(LineageError, match="no side 'item'"):
        lineage.embeddings("item")
    with pytest.raises(LineageError, match="not a lineage"):
        Lineage.open(tmp_path)
    with pytest.raises(LineageError, match="already holds"):
        Lineage.create(lineage.path)
    with pytest.raises(UnknownVersionError, match="no version yet"):
        _ = Lineage.create(tmp_path / "new").newest
    assert not (tmp_path / "new").exists()
