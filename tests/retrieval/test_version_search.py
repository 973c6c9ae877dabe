"""Searches at any version, against all scores computed one by one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import read_as
from tests.support.publishing import publish_next

from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DataError, ShapeError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import fill, space_of
from evergram.retrieval.reader import Reader


def filled(lineage: Lineage) -> Reader:
    store = DictionaryStore()
    assert fill(lineage, store, "object") == 300
    return Reader(lineage, {"object": store})


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_search_at_a_past_version_is_search_among_what_it_reads(
    lineage: Lineage, metric: str
) -> None:
    reader = filled(lineage)
    query = np.random.default_rng(0).standard_normal(6).astype(np.float32)
    read = read_as(2, 0).numpy().astype(np.float64)
    scores = {
        "ip": read @ query,
        "l2": -((read - query) ** 2).sum(axis=1),
        "cosine": read @ query / np.linalg.norm(read, axis=1) / np.linalg.norm(query),
    }[metric]
    hits = reader.search(query, 5, 0, metric=metric)[0]  # type: ignore[arg-type]
    best = np.argsort(-scores)[:5]
    assert hits.ids.to_pylist() == best.tolist()
    assert_allclose(hits.scores, scores[best], rtol=1e-4, atol=1e-4)
    assert hits.versions.tolist() == [2] * 5


def test_a_search_that_cannot_be_done_says_why(lineage: Lineage) -> None:
    reader = filled(lineage)
    with pytest.raises(ShapeError, match=r"version 0 have dim 6"):
        reader.search(np.ones(8), version=0)
    with pytest.raises(DataError, match="not finite"):
        reader.search(np.full(6, np.nan), version=0)
    with pytest.raises(DataError, match="k is 0"):
        reader.search(np.ones(6), 0, version=0)
    with pytest.raises(DataError, match="metric 'dot'"):
        reader.search(np.ones(6), version=0, metric="dot")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="all of one length"):
        reader.search([[1.0], [1.0, 2.0]], version=0)


def test_an_empty_store_finds_nothing(lineage: Lineage) -> None:
    store = DictionaryStore()
    store.add_space(space_of(lineage, 2))
    reader = Reader(lineage, {"object": store})
    assert len(reader.search(np.ones((2, 6)), version=0)) == 2
    assert not len(reader.search(np.ones(6), version=0)[0])
    assert reader.embed([1], 0).sources.tolist() == [-1]


def unit_lineage(folder: Path, *, unit: bool = True) -> Lineage:
    """Two versions, each of its own length, the second read back by another map than it had."""
    lineage = Lineage.create(folder, "line")
    draw = torch.Generator().manual_seed(0)
    old, turn = torch.randn(60, 5, generator=draw), torch.randn(5, 7, generator=draw)
    old = old / old.norm(dim=1, keepdim=True) if unit else old
    for version, vectors in enumerate((old, torch.randn(60, 7, generator=draw))):
        keys = pa.array(range(60))
        artefact = Artefact(
            vectors.shape[1],
            {"object": (keys, vectors)},
            LinearTransform.from_matrix(turn) if version else None,
            {"metrics": {"model": {}}},
            {"name": "line"},
            canaries={"object": (keys.slice(0, 9), vectors[:9])},
        )
        publish_next(lineage, artefact)
    return lineage


@pytest.mark.parametrize("unit", [True, False])
def test_a_search_without_a_metric_ranks_as_vectors_of_length_1_did(
    tmp_path: Path, unit: bool
) -> None:
    """Read back they have other lengths, by which the inner product would rank, too."""
    lineage = unit_lineage(tmp_path / "line", unit=unit)
    query = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    with closing(Reader.open(lineage)) as reader:
        assert reader.default_metric(0) == ("cosine" if unit else "ip")
        assert reader.default_metric() == "ip"
        plain, cosine, product = (
            [hits.ids.to_pylist() for hits in reader.search(query, 5, 0, metric=metric)]
            for metric in (None, "cosine", "ip")
        )
        assert plain == (cosine if unit else product)
        assert cosine != product
        newest = np.ones(7)
        one, other = (reader.search(newest, 5, metric=m)[0].scores for m in (None, "ip"))
        assert one.tolist() == other.tolist()


def test_ids_and_vectors_that_are_none_are_refused(lineage: Lineage) -> None:
    reader = filled(lineage)
    with pytest.raises(DataError):
        reader.search(np.ones(6), version=0, ids=5)
    with pytest.raises(ShapeError, match="must be numbers"):
        reader.search(np.ones(6) + 1j, version=0)
    with pytest.raises(DataError, match="k is 10"):
        reader.search(np.ones(6), 10**30, version=0)
    with pytest.raises(DataError, match="no scores 'nice'"):
        reader.search(np.ones(6), version=0, scores="nice")  # type: ignore[arg-type]


def test_the_canaries_are_read_once_and_not_at_all_for_production(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = unit_lineage(tmp_path / "line")
    versions: list[int] = []
    read = Lineage.canaries

    def counted(self: Lineage, version: int) -> Any:
        versions.append(version)
        return read(self, version)

    monkeypatch.setattr(Lineage, "canaries", counted)
    with closing(Reader.open(lineage)) as reader:
        for _ in range(3):
            reader.search(np.ones(5), 2, 0)
            reader.search(np.ones(7), 2)
    assert versions == [0]
