"""Stores that Evergram writes hold no metadata: a filter of them is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.lineages import DIMS, lineage_of
from tests.support.store_kinds import STORES

from evergram.errors import DataError
from evergram.retrieval.fill import fill
from evergram.retrieval.reader import Reader


@pytest.mark.parametrize("kind", sorted(STORES))
def test_a_filter_of_a_store_without_metadata_is_refused(kind: str, tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", rows=30)
    with STORES[kind](tmp_path, "int64") as store:
        fill(lineage, store, "object")
        reader = Reader(lineage, {"object": store})
        query = np.ones(DIMS[2], np.float32)
        with pytest.raises(DataError, match=r"ids and vectors alone.*'ids'"):
            reader.search(query, 3, filter={"category": "news"})
        assert len(reader.search(query, 3)[0]) == 3
