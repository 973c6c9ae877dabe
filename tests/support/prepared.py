"""Write any corpus as a prepared folder, in one or several parts: the format that
`evergram prepare` writes, docs/large-data.md."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import torch

from evergram.data.corpus import Corpus, Side
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.prepared.prepared_corpus import load_prepared


def write_prepared(corpus: Corpus, folder: Path, *parts: float) -> Path:
    """Write a corpus whose parts end at these shares of its interactions, and at its end."""
    ends = [round(share * len(corpus)) for share in parts] + [len(corpus)]
    names = corpus.interactions.column_names
    digest, records, start = hashlib.sha256(), [], 0
    folder.mkdir(parents=True, exist_ok=True)
    for number, end in enumerate(ends):
        part = folder / "parts" / f"{number:05d}"
        part.mkdir(parents=True)
        for name in names:
            values = corpus.column(name)[start:end].numpy()
            kind = np.dtype("<i4") if name in ("query", "candidate") else values.dtype
            np.save(part / f"{name}.npy", values.astype(kind))
            digest.update(values.tobytes())
        records.append(
            {
                "folder": f"parts/{number:05d}",
                "interactions": end - start,
                "entities": {
                    s: int(corpus.column(s)[:end].max()) + 1 for s in ("query", "candidate")
                },
                "sources": [],
            }
        )
        start = end
    sides = {"query": corpus.queries, "candidate": corpus.candidates}
    if corpus.shared_ids:
        columns = entity_columns(corpus.queries)
        columns |= {f"{side}_count": corpus.counts(side).numpy() for side in sides}
        write_arrow(folder / "entities.arrow", columns)
    for side, entities in sides.items():
        columns = entity_columns(entities) | {"count": corpus.counts(side).numpy()}
        digest.update(str(columns["id"]).encode())
        if not corpus.shared_ids:
            write_arrow(folder / f"{side}.arrow", columns)
    record = {
        "format_version": 1,
        "name": folder.name,
        "shared_ids": corpus.shared_ids,
        "interactions": len(corpus),
        "sides": {
            side: {
                "entities": len(entities),
                "ids": str(entities.vocabulary.keys.type),
                "features": list(entities.features),
            }
            for side, entities in sides.items()
        },
        "columns": {
            n: "int32" if n in sides else str(corpus.column(n).numpy().dtype) for n in names
        },
        "parts": records,
        "fingerprint": digest.hexdigest(),
    }
    (folder / "prepared.json").write_text(json.dumps(record))
    return folder


def prepared(corpus: Corpus, folder: Path, *parts: float) -> MappedCorpus:
    """Return the same corpus, written and loaded."""
    return load_prepared(write_prepared(corpus, folder, *parts))


def entity_columns(side: Side) -> dict[str, Any]:
    """Return the columns of a side's entities: their ids, and each feature as lists of keys."""
    columns: dict[str, Any] = {"id": side.vocabulary.keys}
    for name, feature in side.features.items():
        keys = feature.vocabulary.keys.take(pa.array(feature.indices.numpy()))
        columns[name] = pa.ListArray.from_arrays(feature.offsets.to(torch.int32).numpy(), keys)
    return columns


def write_arrow(path: Path, columns: dict[str, Any]) -> None:
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
