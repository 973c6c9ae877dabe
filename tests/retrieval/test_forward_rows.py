"""Rows of an older version are read as a newer one by the forward map, at every door.

Both versions have the same dim, so that no shape tells the forward map from the backward one.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.command import Command, evergram
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import AffineTransform
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Reader
from evergram.stores.open_store import open_store
from evergram.vector_files.open_embeddings import open_embeddings

__all__ = ["evergram"]

IDS = pa.array(range(200))
OLD = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
# A quarter turn of two planes and a shift: its inverse is far from it.
TURN = torch.tensor([[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, -1], [0, 0, 1, 0]]).float()
NEW = OLD @ TURN.T * 2 + 1


def artefact(vectors: torch.Tensor, back: AffineTransform | None) -> Artefact:
    return Artefact(4, {"object": (IDS, vectors)}, back, {"metrics": {"model": {}}}, {})


@pytest.fixture
def old_rows(tmp_path: Path) -> tuple[Lineage, str]:
    """A lineage of two versions, and a store that has the first one's rows."""
    lineage, store = Lineage.create(tmp_path / "line"), f"snapshot:{tmp_path / 'store'}"
    publish_next(lineage, artefact(OLD, None))
    with open_store(store, create="int64") as opened:
        fill(lineage, opened, "object")
    back = AffineTransform.from_matrix(TURN.T / 2, -TURN.T.sum(1) / 2)
    publish_next(lineage, artefact(NEW, back))
    np.testing.assert_allclose(lineage.view(0).embeddings("object")[1], OLD, atol=1e-5)
    return Lineage.open(tmp_path / "line"), store


def test_rows_of_an_older_version_are_read_forward(old_rows: tuple[Lineage, str]) -> None:
    lineage, store = old_rows
    with closing(Reader.open(lineage, {"object": store})) as reader:
        read = reader.embed([3, 5], version=1)
        assert read.sources.tolist() == [0, 0]
        np.testing.assert_allclose(read.vectors, NEW[[3, 5]], atol=1e-3)
        (hits,) = reader.search(NEW[3].numpy(), k=1, version=1, metric="l2")
        assert hits.ids.to_pylist() == [3]
        assert hits.scores[0] == pytest.approx(0, abs=1e-3)
        moved = reader.transform(OLD[:5].numpy(), 0, 1)
        np.testing.assert_allclose(moved, NEW[:5], atol=1e-3)
        np.testing.assert_allclose(reader.transform(moved, 1, 0), OLD[:5], atol=1e-3)


def test_a_file_of_an_older_version_is_rewritten_forward(
    old_rows: tuple[Lineage, str], evergram: Command, tmp_path: Path
) -> None:
    lineage, old, out = old_rows[0], tmp_path / "old.parquet", tmp_path / "new.parquet"
    lineage.view(0).export(old, "object")
    ran = evergram("vectors", "transform", old, "--lineage", lineage, "--from", "v0", "--as", "v1",
                   "--out", out)  # fmt: skip
    assert ran.code == 0, ran.err
    (_, vectors), *_ = open_embeddings(out).blocks()
    np.testing.assert_allclose(vectors, NEW, atol=1e-3)
