"""Corpora as prepared folders, written in the format of docs/large-data.md by NumPy and Arrow."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
import torch

from evergram.data.corpus import Corpus, Side
from evergram.data.prepared.block_sampler import BlockSampler
from evergram.data.prepared.mapped_corpus import MappedCorpus, load_prepared

SIDES = ("query", "candidate")
SMAPS = Path("/proc/self/smaps")
on_linux = pytest.mark.skipif(not SMAPS.exists(), reason="only Linux has /proc/self/smaps")


class SmallBlocks(BlockSampler):
    """Streams small corpora as large ones are."""

    block = 8
    pairs = 512


def generated(size: int, *, seed: int = 0, queries: int = 60, candidates: int = 40) -> Corpus:
    """Interactions with repeats, values, weights and times; queries come into fashion in turn."""
    draw = torch.Generator().manual_seed(seed)
    fashion = torch.arange(size) * queries // (2 * size)
    query = (fashion + (torch.rand(size, generator=draw) ** 2 * queries).long()) % queries
    return Corpus.of(
        {
            "query": query.numpy(),
            "candidate": torch.randint(candidates, (size,), generator=draw).numpy(),
            "value": torch.rand(size, generator=draw).numpy(),
            "weight": torch.rand(size, generator=draw).numpy(),
            "time": (torch.arange(size) // 3).numpy(),
        }
    )


def write_prepared(corpus: Corpus, folder: Path) -> Path:
    folder.mkdir(parents=True)
    columns = {n: corpus.column(n).numpy() for n in corpus.interactions.column_names}
    columns |= {side: columns[side].astype("<i4") for side in SIDES}
    digest = hashlib.sha256()
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)
        digest.update(values.tobytes())
    sides = {"query": corpus.queries, "candidate": corpus.candidates}
    for side, entities in sides.items():
        digest.update(str(entities.vocabulary.keys).encode())
        counts = {f"{side}_count": corpus.counts(side).numpy()}
        write_arrow(folder / f"{side}.arrow", entity_columns(entities) | counts)
    record = {
        "format_version": 1,
        "shared_ids": corpus.shared_ids,
        "interactions": len(corpus),
        "sides": {
            name: {"entities": len(side), "features": list(side.features)}
            for name, side in sides.items()
        },
        "columns": {name: str(values.dtype) for name, values in columns.items()},
        "fingerprint": digest.hexdigest(),
    }
    (folder / "prepared.json").write_text(json.dumps(record))
    return folder


def prepared(corpus: Corpus, folder: Path) -> MappedCorpus:
    """Return the same corpus, written and loaded."""
    return load_prepared(write_prepared(corpus, folder))


def entity_columns(side: Side) -> dict[str, Any]:
    """Return the ids of a side, and each feature as lists of keys."""
    columns: dict[str, Any] = {"id": side.vocabulary.keys}
    for name, feature in side.features.items():
        keys = feature.vocabulary.keys.take(pa.array(feature.indices.numpy()))
        columns[name] = pa.ListArray.from_arrays(feature.offsets.to(torch.int32).numpy(), keys)
    return columns


def write_arrow(path: Path, columns: dict[str, Any]) -> None:
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def assert_same(one: Corpus, other: Corpus) -> None:
    """Check that two corpora have the same rows, entities, features and counts."""
    assert one.shared_ids == other.shared_ids
    assert one.repeats == other.repeats
    for side in SIDES:
        assert torch.equal(one.counts(side), other.counts(side))
    one, other = (c.in_memory() if isinstance(c, MappedCorpus) else c for c in (one, other))
    assert set(one.interactions.column_names) == set(other.interactions.column_names)
    assert one.interactions.equals(other.interactions.select(one.interactions.column_names))
    for a, b in ((one.queries, other.queries), (one.candidates, other.candidates)):
        assert a.vocabulary.keys.equals(b.vocabulary.keys)
        assert set(a.features) == set(b.features)
        for name, feature in a.features.items():
            assert feature.vocabulary.keys.equals(b.features[name].vocabulary.keys), name
            assert torch.equal(feature.offsets, b.features[name].offsets)
            assert torch.equal(feature.indices, b.features[name].indices)


def pairs_of(corpus: Corpus) -> list[tuple[Any, Any]]:
    """Return the pairs of a corpus by their ids, in its order."""
    sides = zip(SIDES, (corpus.queries, corpus.candidates), strict=True)
    ids = [s.vocabulary.keys.take(pa.array(corpus.column(n).numpy())).to_pylist() for n, s in sides]
    return list(zip(*ids, strict=True))


def bags_of(side: Side, name: str) -> dict[Any, list[Any]]:
    """Return the keys of a feature by the id of the entity."""
    feature = side.features[name]
    keys = feature.vocabulary.keys.take(pa.array(feature.indices.numpy())).to_pylist()
    ends = feature.offsets.tolist()
    ids = side.vocabulary.keys.to_pylist()
    return {one: keys[ends[i] : ends[i + 1]] for i, one in enumerate(ids)}


def resident_bytes(path: Path) -> int:
    """Return the bytes in memory of all mappings of a file, or of files in a folder."""
    size, inside = 0, False
    for line in SMAPS.read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = str(path) in line
        elif inside and line.startswith("Rss:"):
            size += int(line.split()[1]) << 10
    return size
