"""Read Amazon reviews block by block, and bring the features of their products into a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evergram.data.amazon import features_of, find_reviews, reviews_of
from evergram.data.reading.interaction_source import InteractionSource

ROLES = ("query", "candidate", "value", "time")


def stage_amazon(
    path: Path, folder: Path, report: Callable[[str], None]
) -> tuple[InteractionSource, Path | None]:
    """Return the reviews of JSON lines, and the file of features of the products, if there is any.

    Reviews are read block by block, twice if there is metadata; products are in memory.

    Args:
        path: as of `load_amazon`, but not the folder in columns.
        folder: exists; keeps the file until the corpus is prepared.
        report: takes lines of progress.
    Raises: DataError: as of `load_amazon`; those of reviews when they are read.
    """
    source, metadata = find_reviews(path)

    def read() -> Iterator[pa.RecordBatch]:
        for table in reviews_of(source):
            yield from table.combine_chunks().to_batches(max_chunksize=1 << 17)

    features = None
    if metadata is not None:
        report("reading products")
        ids = pa.array([], pa.string())
        for table in reviews_of(source):
            ids = pc.unique(pa.concat_arrays([ids, *table["candidate"].chunks]))
        features = folder / "features.parquet"
        pq.write_table(features_of(metadata, ids), features)
    return InteractionSource(str(source), {role: role for role in ROLES}, read), features
