"""An adjacency list as a source, read block by block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from evergram.data.files.adjacency_list import pairs_of_lines
from evergram.data.prepared.sources.interaction_source import InteractionSource


def source_of_adjacency_list(path: Path) -> InteractionSource:
    """Return the pairs of lines `query candidate candidate …`, in the order of the file.

    Its batches raise a DataError as of `read_adjacency_list`.
    """

    def read() -> Iterator[pa.RecordBatch]:
        for table in pairs_of_lines(path):
            yield from table.combine_chunks().to_batches(max_chunksize=1 << 17)

    types = {"query": pa.string(), "candidate": pa.string()}
    return InteractionSource(str(path), types, True, read)
