"""docs/migrate.md on a table of one's own: by its old column alone, and with a column a version."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.text_encoders import ADDRESSES, encoded, sentences, word_vectors

from evergram.lineage.lineage import Lineage
from evergram.migration.cascade import KeptVectors, reranked_search
from evergram.releasing.align import AlignSettings, align
from evergram.retrieval.reader import Reader
from evergram.stores.store import Hits

SENTENCES = sentences()
IDS = [f"text-{i}" for i in range(len(SENTENCES))]
OLD, NEW = word_vectors(SENTENCES, 0, 10), word_vectors(SENTENCES, 1, 12)
SAMPLE = 150
QUERIES = word_vectors(["word1 word2 word3", "word4 word9"], 1, 12)


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """The sample is version 1, not in production."""
    lineage = Lineage.create(tmp_path / "line", "line")
    old = encoded(tmp_path, ADDRESSES[0])
    sample = encoded(tmp_path, ADDRESSES[1], texts=SENTENCES[:SAMPLE])
    align(old, sample, lineage, AlignSettings(), promote=False)
    return lineage


def write(folder: Path, moved: Sequence[int]) -> str:
    """Write the table, some of whose rows have the new vector; return its address without names."""
    import lancedb

    new = [NEW[i].tolist() if i in set(moved) else None for i in range(len(IDS))]
    columns = {
        "id": pa.array(IDS),
        "embedding": pa.array(OLD.tolist(), pa.list_(pa.float32(), 10)),
        "embedding_v1": pa.array(new, pa.list_(pa.float32(), 12)),
    }
    table = pa.table(columns)
    database = lancedb.connect(folder)
    database.create_table("documents", schema=table.schema, mode="overwrite").add(table)
    return f"lance-table:{folder}#table=documents&v0=embedding"


def search(reader: Reader) -> list[Hits]:
    numbers = {key: i for i, key in enumerate(IDS)}
    kept = KeptVectors(lambda ids: NEW[[numbers[key] for key in ids.to_pylist()]], 12)
    return reranked_search(reader, QUERIES, kept, 5, 1, rerank=len(IDS))


def best() -> list[list[str]]:
    """The best by the new model, over all texts."""
    order = np.argsort(-(QUERIES @ NEW.T), axis=1)[:, :5]
    return [[IDS[i] for i in row] for row in order]


def test_a_search_with_rerank_is_that_of_the_new_model(lineage: Lineage, tmp_path: Path) -> None:
    alone = write(tmp_path / "own", range(SAMPLE))
    for address in (alone, f"{alone}&v1=embedding_v1"):
        with closing(Reader.open(lineage.path, {"object": address})) as reader:
            ranked = search(reader)
            assert [hits.ids.to_pylist() for hits in ranked] == best()
    write(tmp_path / "own", range(0, 400, 2))
    with closing(Reader.open(lineage.path, {"object": f"{alone}&v1=embedding_v1"})) as reader:
        ranked = search(reader)
        assert [hits.ids.to_pylist() for hits in ranked] == best()
        old = reader.search(OLD[7], 1, 0, metric="l2")[0]
        assert len(old) == 1
