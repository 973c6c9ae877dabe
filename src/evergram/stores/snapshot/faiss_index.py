"""A faiss index (IVF) of one segment: rows in lists, a few of which a query is compared with."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evergram.atomic_files import replacing_path
from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.index_codes import IndexCodes
from evergram.stores.snapshot.brute_force import Best, search_all
from evergram.stores.snapshot.faiss_codes import Neighbours, empty_index, library, search
from evergram.stores.snapshot.generation import Part
from evergram.stores.snapshot.snapshot_record import IndexRecord
from evergram.stores.store import Floats

RECALL, NEAREST, SAMPLE = 0.95, 10, 200
# Rows that centres are found with, for each list; faiss asks for 39 at least.
TRAINING = 40
BLOCK = 1 << 16
# Rows that an index of whole vectors is built from: exact search of fewer is fast. Codes of fewer
# rows save memory alone, so all their lists are looked through: stored rows, as queries, do not
# tell in how many lists the best are for queries of another distribution, as those that a past
# version's become.
INDEXED_FROM = 200_000


class SegmentIndex:
    """A built index, mapped from its file."""

    def __init__(self, folder: Path, record: IndexRecord) -> None:
        self._folder = folder
        self.record: IndexRecord = record

    @cached_property
    def _index(self) -> Any:
        faiss = library()
        path = self._folder / self.record.name
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.record.sha256:
                raise _damaged(path)
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)

    def check(self) -> None:
        """Read the file. Raises: IntegrityError: it is not what was written."""
        _ = self._index

    def offer(self, best: Best, number: int, part: Part, queries: Floats, k: int) -> bool:
        """Offer the nearest living rows and return True; offer nothing and return False if so many
        are wanted that most rows would be compared anyway, if codes cannot tell which, or if a sum
        of faiss is past float32, which may hide that its end is not."""
        codes, lists = self.record.index_codes, self.record.lists
        wanted = min(k, part.count)
        looked_at = wanted if codes.whole else wanted * codes.oversample
        # Lists with four times as many rows as are looked at.
        probes = max(self.record.probes, -(-4 * looked_at * lists // part.count))
        if probes > _most_probes(lists, codes):
            return False
        neighbours = search(self._index, part, queries, wanted, probes, codes)
        whole = [one for one in neighbours if one is not None and len(one.rows) == wanted]
        if len(whole) < len(queries) or not all(np.isfinite(one.scores).all() for one in whole):
            return False
        for i, nearest in enumerate(whole):
            best.add(i, nearest.scores, number, nearest.rows)
        return True


def is_installed() -> bool:
    """Say whether faiss can be imported."""
    try:
        library()
    except DataError:
        return False
    return True


def build(folder: Path, part: Part, codes: IndexCodes) -> IndexRecord | str:
    """Index a segment, and write the index beside it.

    The recall is that of stored rows as queries; queries of another distribution may have another.

    Returns: a sentence that says what was measured if, with whole vectors, the recall takes half of
        the lists or more: a look at all rows is then about as fast, and misses none.

    Raises: DataError: faiss is not installed or too old; codes do not give the recall, or cannot
        hold a value. StoreError: it cannot write. OSError.
    """
    faiss, segment = library(), part.segment
    lists = max(1, min(round(2 * len(segment) ** 0.5), len(segment) // TRAINING))
    drawn = np.random.default_rng(0).permutation(len(segment))
    rows = np.sort(drawn[: lists * TRAINING])
    centres = faiss.Kmeans(segment.dim, lists, niter=10, seed=0, min_points_per_centroid=1)
    centres.train(segment.vectors(rows))
    # A row is in the list of its nearest centre, also where lengths differ; a query looks into
    # the lists with the largest inner products.
    near, inner = faiss.IndexFlatL2(segment.dim), faiss.IndexFlatIP(segment.dim)
    near.add(centres.centroids)
    inner.add(centres.centroids)
    index = empty_index(codes, inner, lists, _bounds(part))
    for batch in segment.batches:
        for start in range(0, len(batch.ids), BLOCK):
            block = np.ascontiguousarray(batch.vectors[start : start + BLOCK])
            # Both arrays must live until faiss has read them.
            _, places = near.search(block, 1)
            index.add_core(len(block), faiss.swig_ptr(block), None, faiss.swig_ptr(places))
    measured = _enough_probes(index, part, lists, codes)
    if isinstance(measured, str):
        return measured
    # Another name for other codes: readers may have the file that this one replaces.
    added = "" if codes.whole else f".{codes.kind}-{codes.oversample}"
    name = f"{segment.record.number}{added}.faiss"
    digest = _write(index, folder / name)
    probes, recall, sample = measured
    return IndexRecord(name, digest, lists, probes, recall, sample, codes.kind, codes.oversample)


def _bounds(part: Part) -> Floats:
    """Return the smallest and the largest value of each coordinate, [2, D]."""
    vectors = [batch.vectors for batch in part.segment.batches]
    low = np.min([block.min(axis=0) for block in vectors], axis=0)
    high = np.max([block.max(axis=0) for block in vectors], axis=0)
    return np.stack([low, high])


def _most_probes(lists: int, codes: IndexCodes) -> int:
    """Return in how many lists a search may look. With whole vectors that is fewer than half: a
    look at all rows would be as fast. Codes of all rows are less to read than the rows."""
    return (lists - 1) // 2 if codes.whole else lists


def _enough_probes(
    index: Any, part: Part, lists: int, codes: IndexCodes
) -> tuple[int, float, int] | str:
    """Return the number of lists that give the recall, the recall, and the number of sampled rows;
    if it takes too many lists, a sentence that says so. Raises: DataError: codes do not give it."""
    rows = np.random.default_rng(1).permutation(part.rows())[:SAMPLE]
    queries = part.segment.vectors(rows)
    best = Best(len(queries), NEAREST)
    search_all(best, 0, part, queries)
    truth = [set(best.rows(i)[:, 1].tolist()) for i in range(len(queries))]
    wanted, recall = sum(map(len, truth)), 0.0
    most, tried = _most_probes(lists, codes), 0
    probes = 1 if codes.whole or len(part.segment) >= INDEXED_FROM else lists
    while probes <= most:
        nearest = search(index, part, queries, NEAREST, probes, codes)
        # A query that the codes do not answer counts as missed: it is searched without them.
        recall = sum(map(_shared, truth, nearest)) / wanted
        if recall >= RECALL:
            return probes, recall, len(rows)
        tried = probes
        probes = 2 * probes if codes.whole or probes == most else min(2 * probes, most)
    if codes.whole:
        return (
            f"an index would not be faster: {tried} of its {lists} lists have {recall:.0%} of the "
            f"ten best, {RECALL:.0%} are needed, and half of the lists take as long as all rows"
        )
    raise DataError(
        f"An index of {codes.kind} with oversample {codes.oversample} finds {recall:.0%} of the "
        f"ten best of version {part.version}, and {RECALL:.0%} are needed; give a larger "
        "oversample, or codes of more bytes."
    )


def _shared(truth: set[int], nearest: Neighbours | None) -> int:
    return 0 if nearest is None else len(truth & set(nearest.rows.tolist()))


def _write(index: Any, path: Path) -> str:
    """Write an index, whole or not at all. Returns: its SHA-256."""
    with replacing_path(path) as part:
        try:
            library().write_index(index, str(part))
        except RuntimeError as error:
            raise StoreError(
                f"The index {path} cannot be written: {' '.join(str(error).split())}"
            ) from error
        with part.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(path: Path) -> IntegrityError:
    return IntegrityError(
        f"{path} is not what was written (its SHA-256 differs); restore the store from a copy, or "
        "fill it again."
    )
