"""Searches at any version, against all scores computed one by one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.support.dictionary_store import DictionaryStore
from tests.support.lineages import read_as

from evergram.errors import DataError, ShapeError
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
