"""Searches in a segment: of all its rows, or by a faiss index (IVF), whose lists a query is
compared with a few of.

Lists hold whole vectors, or codes of fewer bytes, by which rows are chosen that are scored by their
vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.index_codes import IndexCodes, looked_at, tell_apart, too_few_found
from evergram.stores.rows import Floats, Places
from evergram.stores.snapshot_files import (
    IndexRecord,
    Segment,
    faiss_module,
    named_by_digest,
)

# Scores computed at once: few enough to stay in the processor's cache until the best are picked.
SCORES = 1 << 19
LEAST_ROWS, MOST_ROWS = 1024, 1 << 16
RECALL, NEAREST, SAMPLE = 0.95, 10, 200
# Rows that centres are found with, for each list; faiss asks for 39 at least.
TRAINING = 40
# Rows that an index of whole vectors is built from: exact search of fewer is fast. Codes of fewer
# rows save memory alone, so all their lists are searched: stored rows, as queries, do not tell in
# how many lists the best are for queries of another distribution, as those that a past version's
# become.
INDEXED_FROM = 200_000
LARGEST_FLOAT16 = float(np.finfo(np.float16).max)

# Scores [Q, b], and the rows [b] of a segment, or those of each query [Q, b].
Scored = tuple[Floats, Places]


def best_rows(queries: int, k: int, scored: Iterable[Scored]) -> list[Places]:
    """Return for each query the rows [≤k] with the largest scores above −∞, in any order."""
    best = [(np.zeros(0, np.float32), np.zeros(0, np.int64))] * queries
    # The k-th best, which a row must exceed; −∞ until there are k.
    limits = np.full(queries, -np.inf, dtype=np.float32)
    for scores, rows in scored:
        for i in np.flatnonzero(scores.max(axis=1, initial=-np.inf) > limits):
            chosen = np.flatnonzero(scores[i] > limits[i])
            chosen = chosen[_largest(scores[i, chosen], k)]
            mine = (rows if rows.ndim == 1 else rows[i])[chosen]
            joined = np.concatenate([best[i][0], scores[i, chosen]])
            kept = _largest(joined, k)
            best[i] = joined[kept], np.concatenate([best[i][1], mine])[kept]
            if len(kept) == k:
                limits[i] = best[i][0].min()
    return [rows for _, rows in best]


def _largest(scores: Floats, k: int) -> Places:
    if len(scores) <= k:
        return np.arange(len(scores))
    return np.argpartition(scores, len(scores) - k)[-k:]


def scored_rows(segment: Segment, queries: Floats, k: int, rows: Places | None) -> Iterator[Scored]:
    """Yield living rows, or `rows` alone, with their scores; the k best are among them."""
    if rows is None and segment.index is not None:
        found = _by_index(segment, queries, min(k, segment.record.living))
        if found is not None:
            yield found
            return
    count = segment.record.rows if rows is None else len(rows)
    size = min(MOST_ROWS, max(LEAST_ROWS, SCORES // len(queries)))
    for start in range(0, count, size):
        part = slice(start, min(start + size, count))
        block = np.arange(part.start, part.stop) if rows is None else rows[part]
        scores = products(queries, segment.vectors[part if rows is None else block])
        if rows is None and segment.dead is not None:
            scores[:, segment.dead[part]] = -np.inf
        yield scores, block


def products(queries: Floats, block: Floats) -> Floats:
    """Return inner products [Q, b], none NaN; one too large for float32 is infinite, as in every
    store."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(queries) == 1:
            scores = np.asarray((block @ queries[0])[None])
        else:
            scores = np.asarray(queries @ block.T)
        # Where a part of a sum is past float32, the sum is NaN or infinite, though it may be small.
        # A sum of squares sees that in one pass, and is past float32 itself from 1e19 on.
        if not np.isfinite(np.vdot(scores, scores)):
            rows = np.flatnonzero(~np.isfinite(scores).all(axis=0))
            for start in range(0, len(rows), LEAST_ROWS):
                some = rows[start : start + LEAST_ROWS]
                scores[:, some] = queries.astype(np.float64) @ block[some].T.astype(np.float64)
    return scores


def _by_index(segment: Segment, queries: Floats, k: int) -> Scored | None:
    """Return the k nearest living rows of each query; None if most rows would be compared anyway,
    codes cannot tell which, or a sum of faiss is past float32, which may hide that its end is not.
    """
    record = segment.record.index
    assert record is not None
    codes, lists = record.codes, record.lists
    # Lists with four times as many rows as are looked at.
    probes = max(record.probes, -(-4 * k * codes.oversample * lists // segment.record.living))
    if probes > _most_probes(lists, codes):
        return None
    found = list(_nearest(segment, segment.index, queries, k, probes, codes))
    if any(one is None or len(one[1]) < k or not np.isfinite(one[0]).all() for one in found):
        return None
    scores, rows = zip(*(one for one in found if one is not None), strict=True)
    return np.stack(scores), np.stack(rows)


def _most_probes(lists: int, codes: IndexCodes) -> int:
    """Return how many lists a search may look into. Of whole vectors that is fewer than half: to
    compare all rows would be as fast. Codes of all rows are less to read than the rows."""
    return (lists - 1) // 2 if codes.whole else lists


def _nearest(
    segment: Segment, index: Any, queries: Floats, k: int, probes: int, codes: IndexCodes
) -> Iterator[Scored | None]:
    """Yield for each query the scores and the rows of the k best living rows, fewer where the lists
    have fewer; None where a row that codes left out may be one of them."""
    if codes.whole:
        yield from _chosen(segment, index, queries, k, probes)
        return
    for query in queries:
        best = None
        for size in looked_at(k, codes.oversample):
            size = min(size, segment.record.living)
            ((estimates, rows),) = _chosen(segment, index, query[None], size, probes)
            scores = products(query[None], segment.vectors[rows])[0]
            # Where the lists have fewer rows, none was left out.
            if len(rows) < size or tell_apart(scores, estimates, k):
                order = np.argsort(-scores)[:k]
                best = scores[order], rows[order]
                break
        yield best


def _chosen(segment: Segment, index: Any, queries: Floats, k: int, probes: int) -> Iterator[Scored]:
    """Yield the living rows with the largest scores of the index, at most k for each query.

    Raises: IntegrityError: the index is damaged.
    """
    faiss, settings = faiss_module(), {"nprobe": probes}
    if segment.dead is not None:
        bits = np.packbits(~segment.dead, bitorder="little")
        settings["sel"] = faiss.IDSelectorBitmap(bits)
    scores, rows = index.search(queries, k, params=faiss.SearchParametersIVF(**settings))
    if rows.max(initial=0) >= segment.record.rows:
        raise IntegrityError(
            "An index of a snapshot is not what was written; restore the store from a copy, or "
            "fill it again."
        )
    # Where the lists have fewer, faiss fills up with −1.
    for some, found in zip(scores, rows, strict=True):
        yield some[found >= 0], found[found >= 0]


def build(folder: Path, segment: Segment, codes: IndexCodes) -> IndexRecord | str:
    """Index a segment, and write the index; or return a sentence that says what was measured if,
    with whole vectors, the recall of stored rows as queries takes half of the lists or more:
    comparing all rows is then about as fast. Raises: DataError: no faiss, or one too old; codes
    find too few, or cannot hold a value. StoreError."""
    faiss, vectors = faiss_module(), segment.vectors
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
    for start in range(0, len(vectors), MOST_ROWS):
        block = np.ascontiguousarray(vectors[start : start + MOST_ROWS])
        # Both arrays must live until faiss has read them.
        _, places = near.search(block, 1)
        index.add_core(len(block), faiss.swig_ptr(block), None, faiss.swig_ptr(places))
    measured = _enough_probes(index, segment, lists, codes)
    if isinstance(measured, str):
        return measured
    path = folder / "new"
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        sentence = " ".join(str(error).split())
        raise StoreError(f"An index cannot be written to {folder}: {sentence}") from error
    return IndexRecord(named_by_digest(path, "faiss"), lists, *measured, codes)


def _empty_index(codes: IndexCodes, inner: Any, lists: int, bounds: Floats) -> Any:
    """Return an index without rows, given that of the centres and the bounds [2, D] of coordinates.

    float16 and int8 are scalar quantizers, int8 of each coordinate between its bounds. binary is
    RaBitQ (Gao and Long, SIGMOD 2024, "RaBitQ", §3): the signs of what a row is more than its
    list's centre, and two floats that make its inner products unbiased."""
    faiss, dim, metric = faiss_module(), inner.d, faiss_module().METRIC_INNER_PRODUCT
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


def _enough_probes(
    index: Any, segment: Segment, lists: int, codes: IndexCodes
) -> tuple[int, float] | str:
    """Return the number of lists that give the recall, and the recall; or a sentence that says that
    these are too many lists. Raises: DataError: codes do not give it."""
    sample = np.random.default_rng(1).permutation(segment.living())[:SAMPLE]
    queries = segment.vectors[sample]
    compared = scored_rows(segment, queries, NEAREST, segment.living())
    truth = [set(rows.tolist()) for rows in best_rows(len(queries), NEAREST, compared)]
    wanted, recall = sum(map(len, truth)), 0.0
    most, tried = _most_probes(lists, codes), 0
    probes = 1 if codes.whole or segment.record.rows >= INDEXED_FROM else lists
    while probes <= most:
        nearest = _nearest(segment, index, queries, NEAREST, probes, codes)
        # A query that the codes do not answer counts as missed: it is searched without them.
        found = [set() if one is None else set(one[1].tolist()) for one in nearest]
        recall = sum(len(one & other) for one, other in zip(truth, found, strict=True)) / wanted
        if recall >= RECALL:
            return probes, recall
        tried = probes
        probes = 2 * probes if codes.whole or probes == most else min(2 * probes, most)
    if codes.whole:
        return (
            f"an index would not be faster: {tried} of its {lists} lists have {recall:.0%} of the "
            f"ten best, {RECALL:.0%} are needed, and half of the lists take as long as all rows"
        )
    raise too_few_found(codes, recall, RECALL, segment.record.version)
