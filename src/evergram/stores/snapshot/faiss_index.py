"""A faiss index (IVF) of one segment: rows in lists, a few of which a query is compared with.

Rows are whole vectors, or codes of fewer bytes, by which rows are chosen that are scored by their
vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evergram.atomic_files import replacing_path
from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.index_codes import IndexCodes, looked_at, tell_apart, too_few_found
from evergram.stores.rows import Floats
from evergram.stores.snapshot.generation import Best, Part, products, search_all
from evergram.stores.snapshot.segment import IndexRecord, Places, index_name

RECALL, NEAREST, SAMPLE = 0.95, 10, 200
# Rows that centres are found with, for each list; faiss asks for 39 at least.
TRAINING = 40
BLOCK = 1 << 16
# Rows that an index of whole vectors is built from: exact search of fewer is fast. Codes of fewer
# rows save memory alone, so all their lists are searched: stored rows, as queries, do not tell in
# how many lists the best are for queries of another distribution, as those that a past version's
# become.
INDEXED_FROM = 200_000
LARGEST_FLOAT16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Neighbours:
    """The results of one query: rows of the segment [k], and their inner products [k]."""

    scores: Floats
    rows: Places


class SegmentIndex:
    """A built index, mapped from its file. Raises: IntegrityError: it is not what was written."""

    def __init__(self, folder: Path, number: int, record: IndexRecord) -> None:
        self.record = record
        faiss, path = library(), folder / index_name(number, record.index_codes)
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
                raise IntegrityError(
                    f"{path} is not what was written (its SHA-256 differs); restore the store from "
                    "a copy, or fill it again."
                )
        self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)

    def offer(self, best: Best, number: int, part: Part, queries: Floats, k: int) -> bool:
        """Offer the nearest living rows and return True; offer nothing and return False if so many
        are wanted that most rows would be compared anyway, if codes cannot tell which, or if a sum
        of faiss is past float32, which may hide that its end is not."""
        codes, lists = self.record.index_codes, self.record.lists
        wanted = min(k, part.count)
        looked = wanted if codes.whole else wanted * codes.oversample
        # Lists with four times as many rows as are looked at.
        probes = max(self.record.probes, -(-4 * looked * lists // part.count))
        if probes > _most_probes(lists, codes):
            return False
        neighbours = _search(self._index, part, queries, wanted, probes, codes)
        whole = [one for one in neighbours if one is not None and len(one.rows) == wanted]
        if len(whole) < len(queries) or not all(np.isfinite(one.scores).all() for one in whole):
            return False
        for i, nearest in enumerate(whole):
            best.add(i, nearest.scores, number, nearest.rows)
        return True


def library() -> Any:
    """Return faiss. Raises: DataError: it is not installed."""
    try:
        import faiss
    except ImportError:
        raise DataError(
            "A fast index of a snapshot needs faiss: pip install 'evergram[faiss]'."
        ) from None
    return faiss


def is_installed() -> bool:
    """Say whether faiss can be imported."""
    try:
        library()
    except DataError:
        return False
    return True


def build(folder: Path, part: Part, codes: IndexCodes) -> IndexRecord | str:
    """Index a segment, and write the index next to it.

    The recall is that of stored rows as queries; queries of another distribution may have another.

    Returns: a sentence that says what was measured if, with whole vectors, the recall takes half of
        the lists or more: comparing all rows is then about as fast, and misses none.
    Raises: DataError: faiss is not installed or too old; codes do not give the recall, or cannot
        hold a value. StoreError: it cannot write. OSError.
    """
    faiss, vectors = library(), part.segment.vectors
    dim = vectors.shape[1]
    lists = max(1, min(round(2 * len(vectors) ** 0.5), len(vectors) // TRAINING))
    rows = np.sort(np.random.default_rng(0).permutation(len(vectors))[: lists * TRAINING])
    centres = faiss.Kmeans(dim, lists, niter=10, seed=0, min_points_per_centroid=1)
    centres.train(vectors[rows])
    # A row is in the list of its nearest centre, also where lengths differ; a query looks into
    # the lists with the largest inner products.
    near, inner = faiss.IndexFlatL2(dim), faiss.IndexFlatIP(dim)
    near.add(centres.centroids)
    inner.add(centres.centroids)
    index = _empty_index(codes, inner, lists, np.stack([vectors.min(axis=0), vectors.max(axis=0)]))
    for start in range(0, len(vectors), BLOCK):
        block = np.ascontiguousarray(vectors[start : start + BLOCK])
        # Both arrays must live until faiss has read them.
        _, places = near.search(block, 1)
        index.add_core(len(block), faiss.swig_ptr(block), None, faiss.swig_ptr(places))
    measured = _enough_probes(index, part, lists, codes)
    if isinstance(measured, str):
        return measured
    digest = _write(index, folder / index_name(part.record.number, codes))
    probes, recall, sample = measured
    return IndexRecord(digest, lists, probes, recall, sample, codes.kind, codes.oversample)


def _empty_index(codes: IndexCodes, inner: Any, lists: int, bounds: Floats) -> Any:
    """Return an index without rows.

    float16 and int8 are scalar quantizers, int8 of each coordinate between its bounds. binary is
    RaBitQ (Gao and Long, SIGMOD 2024, "RaBitQ", §3): the signs of what a row is more than its
    list's centre, and two floats that make its inner products unbiased.

    Args:
        inner: faiss's index of the centres.
        bounds: float32 [2, D], the smallest and largest value of each coordinate.
    Raises: DataError: faiss is too old; a value is too large for float16.
    """
    faiss, dim, metric = library(), inner.d, library().METRIC_INNER_PRODUCT
    if codes.whole:
        return faiss.IndexIVFFlat(inner, dim, lists, metric)
    if codes.kind == "binary":
        if not hasattr(faiss, "IndexIVFRaBitQ"):
            raise DataError(
                f"An index of binary codes needs faiss 1.11 or later, and {faiss.__version__} is "
                "installed: pip install --upgrade faiss-cpu."
            )
        index = faiss.IndexIVFRaBitQ(inner, dim, lists, metric)
    else:
        largest = float(np.abs(bounds).max(initial=0.0))
        if codes.kind == "float16" and largest > LARGEST_FLOAT16:
            raise DataError(
                f"A vector has a value of size {largest:.3g}, and float16 holds "
                f"{LARGEST_FLOAT16:.0f} at most; take int8."
            )
        quantizer = faiss.ScalarQuantizer
        form = quantizer.QT_fp16 if codes.kind == "float16" else quantizer.QT_8bit
        index = faiss.IndexIVFScalarQuantizer(inner, dim, lists, form, metric, False)
    # The bounds of all rows, not of a sample: the longest rows are those that queries find.
    index.train(np.ascontiguousarray(bounds))
    return index


def _most_probes(lists: int, codes: IndexCodes) -> int:
    """Return how many lists a search may look into. With whole vectors that is fewer than half: a
    comparison of all rows would be as fast. Codes of all rows are less to read than the rows."""
    return (lists - 1) // 2 if codes.whole else lists


def _enough_probes(
    index: Any, part: Part, lists: int, codes: IndexCodes
) -> tuple[int, float, int] | str:
    """Return the number of lists that give the recall, the recall, and the number of sampled rows;
    if it takes too many lists, a sentence that says so. Raises: DataError: codes do not give it."""
    rows = np.random.default_rng(1).permutation(part.rows())[:SAMPLE]
    queries = part.segment.vectors[rows]
    best = Best(len(queries), NEAREST)
    search_all(best, 0, part, queries)
    truth = [set(best.rows(i)[:, 1].tolist()) for i in range(len(queries))]
    wanted, recall = sum(map(len, truth)), 0.0
    most, tried = _most_probes(lists, codes), 0
    probes = 1 if codes.whole or len(part.segment) >= INDEXED_FROM else lists
    while probes <= most:
        nearest = _search(index, part, queries, NEAREST, probes, codes)
        # A query that the codes do not answer counts as missed: it is searched without them.
        found = [set() if one is None else set(one.rows.tolist()) for one in nearest]
        recall = sum(len(one & other) for one, other in zip(truth, found, strict=True)) / wanted
        if recall >= RECALL:
            return probes, recall, len(rows)
        tried = probes
        probes = 2 * probes if codes.whole or probes == most else min(2 * probes, most)
    if codes.whole:
        return (
            f"an index would not be faster: {tried} of its {lists} lists have {recall:.0%} of the "
            f"ten best, {RECALL:.0%} are needed, and half of the lists take as long as all rows"
        )
    raise too_few_found(codes, recall, RECALL, part.version)


def _search(
    index: Any, part: Part, queries: Floats, k: int, probes: int, codes: IndexCodes
) -> Sequence[Neighbours | None]:
    """Return the k best living rows for each query of [Q, D], fewer where the lists have fewer;
    None where codes do not tell the best apart. Raises: IntegrityError: the index is damaged."""
    if codes.whole:
        return _chosen(index, part, queries, k, probes)
    return [_reranked(index, part, query, k, probes, codes.oversample) for query in queries]


def _reranked(
    index: Any, part: Part, query: Floats, k: int, probes: int, oversample: int
) -> Neighbours | None:
    """Return the k rows with the largest inner products among those with the largest estimates;
    None where a row that was left out may be one of them."""
    for size in looked_at(k, oversample):
        (chosen,) = _chosen(index, part, query[None], min(size, part.count), probes)
        scores, rows = products(query[None], part.segment.vectors[chosen.rows])[0], chosen.rows
        # Where the lists have fewer rows, none was left out.
        if len(scores) < size or tell_apart(scores, chosen.scores, k):
            best = np.argsort(-scores)[:k]
            return Neighbours(scores[best], rows[best])
    return None


def _chosen(index: Any, part: Part, queries: Floats, k: int, probes: int) -> list[Neighbours]:
    """Return the living rows with the largest scores of the index, at most k for each query."""
    faiss = library()
    settings: dict[str, Any] = {"nprobe": probes}
    if part.dead is not None:
        bits = np.packbits(~part.dead, bitorder="little")
        settings["sel"] = faiss.IDSelectorBitmap(bits)
    scores, rows = index.search(queries, k, params=faiss.SearchParametersIVF(**settings))
    if rows.max(initial=0) >= len(part.segment):
        raise IntegrityError(
            f"The index of segment {part.record.name} is not what was written; restore the store "
            "from a copy, or fill it again."
        )
    # Where the lists have fewer, faiss fills up with −1.
    return [Neighbours(s[r >= 0], r[r >= 0]) for s, r in zip(scores, rows, strict=True)]


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
