"""Sidecars beside every kind of store: the same vectors, and the same hits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.retrieval.sidecars.conftest import ROWS, Made
from tests.retrieval.sidecars.test_reading import SIDE
from tests.support.store_kinds import STORES

from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Reader
from evergram.retrieval.sidecars.sidecar_files import SidecarFiles
from evergram.retrieval.sidecars.version_sidecar import VersionSidecar


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", sorted(STORES))
def test_every_store_is_read_and_searched_by_sidecars(
    made: Made, tmp_path: Path, kind: str
) -> None:
    id_type = "string" if str(made.ids.type) == "string" else "int64"
    files = SidecarFiles([*made.sidecars.values()], depth=ROWS)
    with STORES[kind](tmp_path, id_type) as store:
        fill(made.lineage, store, SIDE)
        store.build_index()
        reader = Reader(made.lineage, {SIDE: store}, sidecars=files)
        vectors = made.vectors[2].numpy()
        for version in (1, 0):
            sidecar = VersionSidecar.open(made.sidecars[version + 1])
            # Step by step, without a reader.
            places = np.array([sidecar.ids.index(i).as_py() for i in made.ids])
            vectors = sidecar.read(places, vectors)
            read = reader.embed(made.ids, version).vectors
            np.testing.assert_allclose(read, vectors, rtol=1e-4, atol=1e-4)
            queries = made.vectors[version][:3].numpy()
            scores = queries.astype(np.float64) @ vectors.T.astype(np.float64)
            distances = ((queries[:, None] - vectors[None]) ** 2).sum(axis=2)
            lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(queries, axis=1)[:, None]
            for metric, truth in (
                ("ip", scores),
                ("l2", -distances),
                ("cosine", scores / lengths),
            ):
                hits = reader.search(queries, 5, version, metric=metric)  # type: ignore[arg-type]
                for of_query, row in zip(hits, truth, strict=True):
                    best = made.ids.take(np.argsort(-row)[:5])
                    assert of_query.ids.to_pylist() == best.to_pylist()
                    np.testing.assert_allclose(
                        of_query.scores, np.sort(row)[::-1][:5], rtol=1e-3, atol=1e-3
                    )
