"""The best candidates of a query, without those that it was trained with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.encoders import (
    CANDIDATES,
    DIM,
    SEEN,
    lineage_with_encoder,
    without_recorded_pairs,
)
from tests.support.lineages import lineage_of
from tests.support.publishing import publish_next

from evergram.data.pair_hash import PairHash, TrainedPairs
from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.reader import Reader


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    return lineage_with_encoder(tmp_path / "films")


@pytest.fixture
def reader(lineage: Lineage) -> Iterator[Reader]:
    with closing(Reader.open(lineage)) as opened:
        yield opened


def ranking(lineage: Lineage, query: str, seen: bool) -> list[int]:
    """All candidates by score, in float64, with or without those that the query was trained on."""
    ids, queries = lineage.embeddings("query")
    scores = (
        lineage.embeddings("candidate")[1].double() @ queries.double()[ids.to_pylist().index(query)]
    )
    ranked = [CANDIDATES[i] for i in np.argsort(-scores.numpy(), kind="stable")]
    return [c for c in ranked if seen or (query, c) not in SEEN]


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_recommendations_are_the_ranking_without_the_training_pairs(
    lineage: Lineage, reader: Reader, exclude_seen: bool
) -> None:
    for k in (1, 5, 38, 40, 60):
        hits = reader.recommend(["bob", "ann", "bob"], k, exclude_seen=exclude_seen)
        for query, mine in zip(["bob", "ann", "bob"], hits, strict=True):
            assert mine.ids.to_pylist() == ranking(lineage, query, not exclude_seen)[:k]
            assert len(mine.scores) == len(mine.versions) == len(mine.ids)
        assert reader.recommend([], k) == []


def test_a_query_that_is_not_stored_is_named(reader: Reader) -> None:
    with pytest.raises(DataError, match="1 of 2 queries are not stored; the first is 'joe'"):
        reader.recommend(["ann", "joe"])
    with pytest.raises(DataError, match="k is 0"):
        reader.recommend(["ann"], 0)
    with pytest.raises(DataError, match=r"k is 2\.5; it must be at least 1, and a whole number"):
        reader.recommend(["ann"], 2.5)  # type: ignore[arg-type]


def test_objects_of_files_are_not_recommended(tmp_path: Path) -> None:
    files = lineage_of(tmp_path / "files", 1)
    with closing(Reader.open(files)) as reader, pytest.raises(LineageError, match="object"):
        reader.recommend([1])


def test_without_recorded_training_pairs_nothing_is_recommended(lineage: Lineage) -> None:
    publish_next(lineage, without_recorded_pairs(lineage))
    with closing(Reader.open(lineage)) as reader:
        with pytest.raises(LineageError, match=r"not recorded.*exclude_seen=False"):
            reader.recommend(["ann"])
        assert len(reader.recommend(["ann"], 3, exclude_seen=False)[0]) == 3


def test_a_version_after_production_has_as_many_candidates_as_it_was_published_with(
    lineage: Lineage,
) -> None:
    """Those that a query met score best, and are as many as production has in all."""
    ids = pa.array(range(100, 1100))
    vectors = torch.randn(1000, DIM, generator=torch.Generator().manual_seed(1)).abs()
    vectors[:40] += 10
    artefact = without_recorded_pairs(lineage)
    query_ids = lineage.embeddings("query")[0]
    queries = torch.ones(3, DIM) - torch.eye(3, DIM) * torch.tensor([0.0, 1.0, 2.0])[:, None]
    queries = queries[[query_ids.to_pylist().index("ann") - i for i in range(3)]]
    sides = {"query": (query_ids, queries), "candidate": (ids, vectors)}
    met = PairHash("films").of_pairs(pa.repeat("ann", 40), ids.slice(0, 40))
    trained = "films", TrainedPairs.of(np.asarray(met))
    publish_next(lineage, replace(artefact, embeddings=sides, trained=trained), promote=False)
    with closing(Reader.open(lineage)) as reader:
        hits = reader.recommend(["ann"], 10, version=1)[0]
    best = 140 + np.argsort(-vectors[40:].sum(1).numpy(), kind="stable")[:10]
    assert hits.ids.to_pylist() == best.tolist()
