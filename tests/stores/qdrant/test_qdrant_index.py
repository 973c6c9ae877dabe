"""What a server is asked for where an index is to be of fewer bytes, and what is refused.

A server's answers are made of the local mode, which searches by whole vectors in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.planted import planted, recall
from tests.support.qdrant_answers import QdrantAnswers, qdrant_answers

from evergram.errors import DataError, StoreError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.open_store import open_store
from evergram.stores.qdrant import qdrant_index
from evergram.stores.qdrant.qdrant_store import QdrantStore
from evergram.stores.store import Rows, Space

ROWS, DIM = 150, 8
INT8, BINARY = IndexCodes("int8", 3), IndexCodes("binary", 6)
# Of the first collection, as an update asks for it.
CONFIGS = {
    "int8": {"scalar": {"type": "int8", "always_ram": True}},
    "binary": {"binary": {"always_ram": True}},
    "float32": "Disabled",
}


@contextmanager
def served(folder: Path) -> Iterator[tuple[QdrantStore, QdrantAnswers]]:
    """Fill a folder of the local mode, and open it as what a server has."""
    with QdrantStore.open(f"qdrant:{folder}/own#emb", "int64") as store:
        vectors, _ = planted(ROWS, DIM)
        store.load(Space(0, DIM, "sha256:0"), [Rows(0, pa.array(range(ROWS)), vectors)])
        store.add_space(Space(1, 4, "sha256:1"))
    with (
        qdrant_answers(folder / "own") as server,
        QdrantStore.open(f"qdrant:{server.url}#emb") as remote,
    ):
        yield remote, server


def updates(server: QdrantAnswers) -> list[tuple[str, Any]]:
    """Return the updates of collections that a server was asked for, and forget what it was."""
    asked = [
        (path.partition("?")[0], body)
        for path, body in server.asked
        if body is not None and "quantization_config" in body
    ]
    server.asked.clear()
    return asked


def searched(server: QdrantAnswers) -> list[Any]:
    """Return the parameters of the searches that a server was asked for, and forget them."""
    bodies = [body for path, body in server.asked if "query/batch" in path]
    server.asked.clear()
    return [one["params"] for body in bodies for one in body["searches"]]


@pytest.mark.parametrize("codes", [INT8, BINARY], ids=lambda codes: codes.kind)
def test_a_server_is_asked_to_quantize_and_to_score_by_whole_vectors(
    tmp_path: Path, codes: IndexCodes
) -> None:
    vectors, queries = planted(ROWS, DIM)
    by_codes = {"ignore": False, "rescore": True, "oversampling": float(codes.oversample)}
    with served(tmp_path) as (store, server):
        # Version 1 has no rows by which codes could be measured.
        assert store.build_index(codes) == [0]
        assert updates(server) == [
            (
                "/collections/emb-v0",
                {"vectors": {"": {"on_disk": True}}, "quantization_config": CONFIGS[codes.kind]},
            )
        ]
        assert recall(store, 0, vectors, queries, 10) == 1.0
        store.read_consistently(lambda view: view.search({0: queries[:1]}, 200))
        first, *_, last = searched(server)
        assert first == {"hnsw_ef": 128, "exact": False, "quantization": by_codes}
        assert last == {"hnsw_ef": 200, "exact": False, "quantization": by_codes}
        # Another process knows how many points the codes are to choose.
        with open_store(store.address) as again:
            again.search({0: queries[:1]}, 3)
            assert [one["quantization"] for one in searched(server)] == [by_codes]
        # Where all rows are compared, and among few ids, codes are left out.
        store.search({0: queries[:1]}, 3, exact=True)
        store.search({0: queries[:1]}, 3, ids=[1, 2, 3, 4])
        whole = {"hnsw_ef": 128, "exact": True, "quantization": {"ignore": True}}
        assert searched(server) == [whole, whole]
        # What was written comes back to the last bit.
        (rows,) = store.fetch([3, 5])
        np.testing.assert_array_equal(rows.vectors, vectors[rows.ids.to_numpy()])


def test_whole_vectors_again_take_the_codes_back(tmp_path: Path) -> None:
    _, queries = planted(ROWS, DIM)
    with served(tmp_path) as (store, server):
        assert store.build_index() == [0, 1]
        assert updates(server) == []  # a server has whole vectors by itself
        store.build_index(INT8)
        store.build_index(BINARY)
        assert store._meta().oversample == {0: 6}
        updates(server)
        assert store.build_index(FLOAT32) == [0, 1]
        assert [body for _, body in updates(server)] == [
            {"vectors": {"": {"on_disk": False}}, "quantization_config": "Disabled"}
        ]
        assert store._meta().oversample == {}
        store.search({0: queries[:1]}, 3)
        # Codes that somebody else had the server make would not be scores.
        assert [one["quantization"] for one in searched(server)] == [{"ignore": True}]


def test_codes_that_find_too_few_are_refused_and_taken_back(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server):
        server.misled = True
        words = (
            r"binary with oversample 6 finds 0% of the ten best of version 0, and 95% are needed"
        )
        with pytest.raises(DataError, match=words):
            store.build_index(BINARY)
        assert store._meta().oversample == {}
        assert server.quantized == {"emb-v0": "Disabled"}


def test_a_server_that_does_not_take_codes_is_no_index_of_them(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server):
        server.takes = False
        with pytest.raises(StoreError, match=r"asked for an index of int8 and has one of float32"):
            store.build_index(INT8)
        # What is recorded does no harm: scores are those of whole vectors in any case.
        vectors, queries = planted(ROWS, DIM)
        assert recall(store, 0, vectors, queries, 10) == 1.0
        server.takes = True
        assert store.build_index(INT8) == [0]


@pytest.mark.parametrize(("state", "words"), [("UNFINISHED", "still indexing"), ("FAILED", "log")])
def test_a_server_that_does_not_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, words: str
) -> None:
    monkeypatch.setattr(qdrant_index, state, "green")
    monkeypatch.setattr(qdrant_index, "INDEXING", 0.0)
    with served(tmp_path) as (store, server):
        with pytest.raises(StoreError, match=words):
            store.build_index()
        # Half floats would be what is stored.
        with pytest.raises(DataError, match="float16"):
            store.build_index(IndexCodes("float16", 2))
        assert updates(server) == []
