"""Ids get rows by first appearance, after those that are known, and their counts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from evergram.data.corpus import Corpus
from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.vocabularies import SIDES, Side, Vocabularies

PAIRS = pa.table({"query": [7, 5, 7, 3], "candidate": [5, 9, 8, 9]})


def ids(database: Database, table: str) -> list[int]:
    return [row[0] for row in database.rows(f"SELECT id FROM ids_{table} ORDER BY row")]


@pytest.mark.parametrize("shared", [False, True])
def test_ids_are_numbered_as_a_corpus_numbers_them(database: Database, shared: bool) -> None:
    vocabularies = Vocabularies(shared, dict.fromkeys(("query", "candidate", "entities"), 0))
    database.create("interactions", PAIRS.schema, PAIRS.to_batches())
    for table in vocabularies.tables:
        database.run(f"CREATE TABLE known_{table} (id BIGINT, row BIGINT)")
    vocabularies.number_ids(database)
    corpus = Corpus.from_tables(PAIRS, shared_ids=shared)
    sides: dict[Side, list[int]] = {
        "query": corpus.queries.vocabulary.keys.to_pylist(),
        "candidate": corpus.candidates.vocabulary.keys.to_pylist(),
    }
    for side in SIDES:
        assert ids(database, vocabularies.table(side)) == sides[side]
        assert vocabularies.size(database, side) == len(sides[side])
        assert vocabularies.counts(database, side).tolist() == corpus.counts(side).tolist()


def test_known_ids_keep_their_rows(database: Database) -> None:
    vocabularies = Vocabularies(False, {"query": 2, "candidate": 0})
    database.create("interactions", PAIRS.schema, PAIRS.to_batches())
    for side in SIDES:
        database.run(f"CREATE TABLE known_{side} (id BIGINT, row BIGINT)")
    database.run("INSERT INTO known_query VALUES (3, 0), (11, 1)")
    vocabularies.number_ids(database)
    assert ids(database, "query") == [3, 11, 7, 5]
    assert vocabularies.counts(database, "query").tolist() == [1, 0, 2, 1]
