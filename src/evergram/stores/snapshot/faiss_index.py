"""A faiss index (IVF) of one segment: rows in lists, a few of which a query is compared with."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evergram.atomic_files import replacing_path
from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.snapshot.brute_force import Best, search_all
from evergram.stores.snapshot.generation import Part
from evergram.stores.snapshot.segment import Mask
from evergram.stores.snapshot.snapshot_record import IndexRecord
from evergram.stores.store import Floats

RECALL, NEAREST, SAMPLE = 0.95, 10, 200
# Rows that centres are found with, for each list; faiss asks for 39 at least.
TRAINING = 40


class SegmentIndex:
    """A built index, mapped from its file."""

    def __init__(self, folder: Path, record: IndexRecord) -> None:
        self._folder, self.record = folder, record

    @cached_property
    def _index(self) -> Any:
        faiss = _library()
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
        are wanted that most rows would be compared anyway."""
        wanted = min(k, part.count)
        # Lists with four times as many rows as are asked for.
        probes = max(self.record.probes, -(-4 * wanted * self.record.lists // part.count))
        if 2 * probes > self.record.lists:
            return False
        neighbours = _search(self._index, queries, wanted, probes, part.dead)
        if (neighbours[1] < 0).any():
            return False
        if neighbours[1].max(initial=0) >= len(part.segment):
            raise _damaged(self._folder / self.record.name)
        for i, (scores, rows) in enumerate(zip(*neighbours, strict=True)):
            best.add(i, scores, number, rows)
        return True


def is_installed() -> bool:
    """Say whether faiss can be imported."""
    try:
        _library()
    except DataError:
        return False
    return True


def _library() -> Any:
    try:
        import faiss
    except ImportError:
        raise DataError(
            "A fast index of a snapshot needs faiss: pip install 'evergram[faiss]'."
        ) from None
    return faiss


def build(folder: Path, part: Part) -> IndexRecord | None:
    """Index a segment, and write the index beside it.

    The recall is that of stored rows as queries; queries of another distribution may have another.

    Returns: None if the recall takes half of the lists or more: a look at all rows is then about as
        fast, and misses none.

    Raises: DataError: faiss is not installed. StoreError: it cannot write. OSError.
    """
    faiss, segment = _library(), part.segment
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
    index = faiss.IndexIVFFlat(inner, segment.dim, lists, faiss.METRIC_INNER_PRODUCT)
    for batch in segment.batches:
        for start in range(0, len(batch.ids), 1 << 16):
            block = np.ascontiguousarray(batch.vectors[start : start + (1 << 16)])
            # Both arrays must live until faiss has read them.
            _, places = near.search(block, 1)
            index.add_core(len(block), faiss.swig_ptr(block), None, faiss.swig_ptr(places))
    measured = _enough_probes(index, part, lists)
    if measured is None:
        return None
    name = f"{segment.record.number}.faiss"
    digest = _write(index, folder / name)
    probes, recall, sample = measured
    return IndexRecord(name, digest, lists, probes, recall, sample)


def _enough_probes(index: Any, part: Part, lists: int) -> tuple[int, float, int] | None:
    """Return the number of lists that give the recall, the recall, and the number of sampled rows;
    None if it takes half of the lists or more."""
    rows = np.random.default_rng(1).permutation(part.rows())[:SAMPLE]
    queries = part.segment.vectors(rows)
    best = Best(len(queries), NEAREST)
    search_all(best, 0, part, queries)
    truth = [set(best.rows(i)[:, 1].tolist()) for i in range(len(queries))]
    wanted = sum(map(len, truth))
    probes = 1
    while 2 * probes < lists:
        _, nearest = _search(index, queries, NEAREST, probes, part.dead)
        hit = sum(len(t & set(f.tolist())) for t, f in zip(truth, nearest, strict=True))
        if hit >= RECALL * wanted:
            return probes, hit / wanted, len(rows)
        probes *= 2
    return None


def _search(index: Any, queries: Floats, k: int, probes: int, dead: Mask | None) -> Any:
    """Return scores and rows [Q, k]; a row is −1 if there are fewer."""
    faiss = _library()
    settings: dict[str, Any] = {"nprobe": probes}
    if dead is not None:
        bits = np.packbits(~dead, bitorder="little")
        settings["sel"] = faiss.IDSelectorBitmap(bits)
    return index.search(queries, k, params=faiss.SearchParametersIVF(**settings))


def _write(index: Any, path: Path) -> str:
    """Write an index, whole or not at all. Returns: its SHA-256."""
    with replacing_path(path) as part:
        try:
            _library().write_index(index, str(part))
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
