"""Sources that are read block by block and then prepared: MediaWiki dumps, Amazon reviews."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from evergram.atomic_files import remove_tree
from evergram.data.amazon import IN_COLUMNS, features_of, find_reviews, reviews_of
from evergram.data.prepared.engine import Database
from evergram.data.prepared.settings import PrepareSettings
from evergram.data.reading.interaction_source import InteractionSource, sources_of_files
from evergram.data.reading.source_files import SourceFile
from evergram.data.reading.table_stream import ROWS
from evergram.data.wikipedia.dump import DumpLinks

__all__ = ["IN_COLUMNS", "stage_amazon", "stage_mediawiki"]

CODES = pa.schema([("code", pa.int64())])
PAIRS = pa.schema([("query", pa.int64()), ("candidate", pa.int64())])


def stage_mediawiki(
    dump: Path, folder: Path, settings: PrepareSettings, report: Callable[[str], None]
) -> tuple[InteractionSource, Path]:
    """Write the links and the features of a dump as Parquet, both as `load_mediawiki` has them.

    Links are read block by block and sorted by the engine on disk; pages, redirects, targets and
    memberships in categories are in memory.

    Args:
        dump: the folder of the dump's files.
        folder: exists; keeps the files until the corpus is prepared.
        settings: the prefix of the dump, and what the engine may use.
        report: takes lines of progress.
    Returns: the links, distinct and in the order of pages, and the file of features of both sides.
    Raises: DataError: see `load_mediawiki`; or the engine's memory or disk does not suffice.
    """
    report("reading pages")
    links = DumpLinks(dump, settings.prefix)
    linked = np.zeros(links.size, np.bool_)
    engine = folder / "engine"
    engine.mkdir()
    with Database(engine, settings.memory_bytes, settings.thread_count) as database:
        report("reading links")
        batches = (pa.record_batch([codes], schema=CODES) for codes in links.codes())
        database.create("links", CODES, batches)
        number = database.size("links")
        report(f"sorting {number:,} links")
        distinct = 0
        with pq.ParquetWriter(folder / "links.parquet", PAIRS) as writer:
            for codes in _distinct(database):
                ends = codes // links.size, codes % links.size
                linked[ends[0]] = linked[ends[1]] = True
                distinct += len(codes)
                columns = [links.ids(places) for places in ends]
                writer.write_batch(pa.record_batch(columns, schema=PAIRS))
        links.count(number, distinct)
    remove_tree(engine)
    report("reading categories")
    features = folder / "features.parquet"
    pq.write_table(links.features(np.flatnonzero(linked)), features)
    for sentence in links.report.warnings():
        logging.getLogger(__name__).warning(sentence)
    path = str(folder / "links.parquet")
    (source,) = sources_of_files([SourceFile(path, path)], {})
    return replace(source, name=str(links.path)), features


def _distinct(database: Database) -> Iterator[NDArray[np.int64]]:
    """Yield the distinct codes in their order."""
    last = -1
    for batch in database.batches("SELECT code FROM links ORDER BY code"):
        codes = batch["code"].to_numpy()
        new = np.diff(codes, prepend=last) > 0
        last = int(codes[-1])
        yield codes[new]


def stage_amazon(
    path: Path, folder: Path, report: Callable[[str], None]
) -> tuple[InteractionSource, Path | None]:
    """Return the reviews of JSON lines, and the file of features of the products, if there is any.

    Reviews are read block by block, twice if there is metadata; products are in memory.

    Args:
        path: see `load_amazon`, but not the folder in columns.
        folder: exists; keeps the file until the corpus is prepared.
    Raises: DataError: see `load_amazon`; those of reviews when they are read.
    """
    source, metadata = find_reviews(path)

    def read() -> Iterator[pa.RecordBatch]:
        for table in reviews_of(source):
            yield from table.combine_chunks().to_batches(max_chunksize=ROWS)

    features = None
    if metadata is not None:
        report("reading products")
        ids = pa.array([], pa.string())
        for table in reviews_of(source):
            ids = pc.unique(pa.concat_arrays([ids, *table["candidate"].chunks]))
        features = folder / "features.parquet"
        pq.write_table(features_of(metadata, ids), features)
    roles = {role: role for role in ("query", "candidate", "value", "time")}
    return InteractionSource(str(source), roles, read), features
