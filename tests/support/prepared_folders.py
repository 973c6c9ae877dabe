"""What a prepared folder holds, read by plain NumPy and Arrow, and whether that is a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from evergram.data.columnar.features import features_of_sides
from evergram.data.columnar.vocabulary import Vocabulary
from evergram.data.corpus import Corpus
from evergram.data.prepared.prepared_record import PreparedRecord


def column(folder: Path, role: str) -> Any:
    """Return a column of all parts, in their order."""
    parts = PreparedRecord.load(folder).parts
    return np.concatenate([np.load(folder / part.folder / f"{role}.npy") for part in parts])


def entities(folder: Path, side: str) -> pa.Table:
    """Return the entities of a side: id, count, and the side's features."""
    record = PreparedRecord.load(folder)
    name = "entities" if record.shared_ids else side
    with pa.memory_map(str(folder / f"{name}.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    count = f"{side}_count" if record.shared_ids else "count"
    columns = {"id": table["id"], "count": table[count]}
    columns |= {n: table[n] for n in record.sides[side].features}  # type: ignore[index]
    return pa.table(columns)


def pairs_of_ids(folder: Path) -> list[tuple[Any, Any]]:
    """Return the pairs of all parts, as external ids."""
    ids = {s: entities(folder, s)["id"].to_pylist() for s in ("query", "candidate")}
    rows = [column(folder, side) for side in ids]
    return [(ids["query"][q], ids["candidate"][c]) for q, c in zip(*rows, strict=True)]


def assert_is_corpus(folder: Path, corpus: Corpus) -> None:
    """Check that a prepared folder is a corpus, row by row."""
    record = PreparedRecord.load(folder)
    assert record.shared_ids == corpus.shared_ids
    assert record.interactions == len(corpus)
    assert set(record.columns) == set(corpus.interactions.column_names)
    features: list[tuple[pa.Table | None, Vocabulary]] = []
    for side, expected in (("query", corpus.queries), ("candidate", corpus.candidates)):
        table = entities(folder, side)
        keys = table["id"].combine_chunks()
        assert keys.equals(expected.vocabulary.keys), f"the ids of the {side} side"
        assert table["count"].to_numpy().tolist() == corpus.counts(side).tolist()
        has = record.sides[side].features  # type: ignore[index]
        assert record.sides[side].entities == len(expected)  # type: ignore[index]
        features.append((table.drop(["count"]) if has else None, Vocabulary(keys)))
    for role in record.columns:
        read = column(folder, role)
        written = corpus.interactions[role].to_numpy()
        assert read.dtype == np.dtype(record.columns[role])
        assert role in ("query", "candidate") or read.dtype == written.dtype
        assert np.array_equal(read, written), role
    for read_features, expected in zip(
        features_of_sides(features), (corpus.queries, corpus.candidates), strict=True
    ):
        assert set(read_features) == set(expected.features)
        for name, feature in expected.features.items():
            assert read_features[name].vocabulary.same_keys(feature.vocabulary), name
            assert read_features[name].offsets.equal(feature.offsets)
            assert read_features[name].indices.equal(feature.indices)
