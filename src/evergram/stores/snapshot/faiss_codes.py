"""Codes of faiss: rows are chosen by their codes, and ordered by their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evergram.errors import DataError, IntegrityError
from evergram.stores.code_estimates import looked_at, tell_apart
from evergram.stores.index_codes import IndexCodes
from evergram.stores.snapshot.brute_force import products
from evergram.stores.snapshot.generation import Part
from evergram.stores.snapshot.segment import Places
from evergram.stores.store import Floats

LARGEST_FLOAT16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Neighbours:
    """The results of one query.

    Args:
        scores: float32 [k], inner products.
        rows: int64 [k], places in the segment.
    """

    scores: Floats
    rows: Places

    def best(self, k: int) -> Neighbours:
        """Return the k with the largest scores, in any order."""
        if len(self.rows) <= k:
            return self
        kept = np.argpartition(-self.scores, k - 1)[:k]
        return Neighbours(self.scores[kept], self.rows[kept])


def library() -> Any:
    """Return faiss. Raises: DataError: it is not installed."""
    try:
        import faiss
    except ImportError:
        raise DataError(
            "A fast index of a snapshot needs faiss: pip install 'evergram[faiss]'."
        ) from None
    return faiss


def empty_index(codes: IndexCodes, inner: Any, lists: int, bounds: Floats) -> Any:
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


def search(
    index: Any, part: Part, queries: Floats, k: int, probes: int, codes: IndexCodes
) -> Sequence[Neighbours | None]:
    """Return the k best living rows for each query of [Q, D], fewer where the lists have fewer;
    None where codes do not tell the best apart. Raises: IntegrityError: the index is damaged."""
    if codes.whole:
        return _search(index, part, queries, k, probes)
    return [_reranked(index, part, query, k, probes, codes.oversample) for query in queries]


def _reranked(
    index: Any, part: Part, query: Floats, k: int, probes: int, oversample: int
) -> Neighbours | None:
    """Return the k rows with the largest inner products among those with the largest estimates;
    None where a row that was left out may be one of them."""
    for size in looked_at(k, oversample):
        (chosen,) = _search(index, part, query[None], min(size, part.count), probes)
        scores = products(query[None], part.segment.vectors(chosen.rows))[0]
        # Where the lists have fewer rows, none was left out.
        if len(scores) < size or tell_apart(scores, chosen.scores, k):
            return Neighbours(scores, chosen.rows).best(k)
    return None


def _search(index: Any, part: Part, queries: Floats, k: int, probes: int) -> list[Neighbours]:
    """Return the living rows with the largest scores of the index, at most k for each query."""
    faiss = library()
    settings: dict[str, Any] = {"nprobe": probes}
    if part.dead is not None:
        bits = np.packbits(~part.dead, bitorder="little")
        settings["sel"] = faiss.IDSelectorBitmap(bits)
    scores, rows = index.search(queries, k, params=faiss.SearchParametersIVF(**settings))
    if rows.max(initial=0) >= len(part.segment):
        raise IntegrityError(
            f"The index of segment {part.record.data.name} is not what was written; restore the "
            "store from a copy, or fill it again."
        )
    # Where the lists have fewer, faiss fills up with −1.
    return [Neighbours(s[r >= 0], r[r >= 0]) for s, r in zip(scores, rows, strict=True)]
