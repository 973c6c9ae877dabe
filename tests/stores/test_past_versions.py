"""Search at a past version, in each metric, on the native index of every kind of store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from tests.support.lineages import lineage_of, read_as
from tests.support.store_kinds import STORES

from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Reader


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
@pytest.mark.parametrize("kind", sorted(STORES))
def test_every_store_searches_a_past_version_on_its_own_index(
    tmp_path: Path, kind: str, metric: str
) -> None:
    lineage = lineage_of(tmp_path / "line")
    with STORES[kind](tmp_path, "int64") as store:
        fill(lineage, store, "object")
        store.build_index()
        reader = Reader(lineage, {"object": store})
        queries = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
        read = read_as(2, 0).numpy().astype(np.float64)
        lengths = np.linalg.norm(read, axis=1)
        for query, hits in zip(
            queries,
            reader.search(queries, 5, 0, metric=metric),  # type: ignore[arg-type]
            strict=True,
        ):
            scores = {
                "ip": read @ query,
                "l2": -((read - query) ** 2).sum(axis=1),
                "cosine": read @ query / lengths / np.linalg.norm(query),
            }[metric]
            best = np.argsort(-scores)[:5]
            assert len(set(hits.ids.to_pylist()) & set(best.tolist())) >= 4, "the index's recall"
            assert_allclose(hits.scores, scores[hits.ids.to_numpy()], rtol=1e-3, atol=1e-3)
