"""Search by inner product, distance and cosine on an index of inner products.

A row of version v is stored as [z, n_0 … n_v] with n_j = ‖z̃_j‖² (scaled), so that every score at
version j is linear in the stored coordinates, or is bounded by linear ones.

Source: docs/method.md, "One index for all versions".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.errors import DataError
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps
from evergram.stores.rows import places_among
from evergram.stores.store import Floats, Hits, StoreView, merge_hits

Ids: TypeAlias = pa.Array | Sequence[int | str] | None
# Candidates of a re-rank: at first for each result asked for; at least; and at most.
WIDER, LEAST, MOST = 4, 64, 16_384


@dataclass(frozen=True)
class Field:
    """Rows of one version in a store, searched as version `target`.

    Args:
        dim: D_v, the number of a row's coordinates that are its vector.
        width: the number of all its coordinates: norms may follow the vector.
    """

    store: StoreView
    maps: VersionMaps
    version: int
    target: int
    dim: int
    width: int

    @property
    def norm(self) -> int | None:
        """The coordinate that holds ‖z̃_j‖², scaled; None if it is not stored."""
        stored = self.width > self.dim and self.target <= self.version
        return self.dim + self.target if stored else None

    def linear(self, queries: Floats, by_norm: float | Floats = 0.0) -> tuple[Floats, Floats]:
        """Return queries [Q, width] and offsets [Q] that score ⟨q, z̃⟩ + by_norm · ‖z̃‖²; without the
        second term if norms are not stored."""
        turned, offset = self.maps.affine(self.version, self.target).queries(queries)
        widened = np.zeros((len(queries), self.width), dtype=np.float32)
        widened[:, : self.dim] = turned
        if self.norm is not None:
            widened[:, self.norm] = by_norm / NORM_SCALE
        return widened, np.zeros(len(queries), np.float32) if offset is None else offset

    def search(
        self, queries: Floats, offsets: Floats, k: int, ids: Ids, exact: bool = False
    ) -> list[Hits]:
        at = self.version
        return self.store.search({at: queries}, k, offsets={at: offsets}, ids=ids, exact=exact)

    def read(self, hits: Hits) -> tuple[Hits, npt.NDArray[np.float64]]:
        """Return the hits that are still stored, in their order, and z̃ [n, D_j] of each: a row may
        have been deleted, or refreshed to another version, since the search."""
        vectors = np.zeros((len(hits), self.dim), dtype=np.float32)
        there = np.zeros(len(hits), dtype=bool)
        for rows in self.store.fetch(hits.ids):
            if rows.version == self.version:
                mine, places = places_among(hits.ids, rows.ids)
                vectors[mine] = rows.vectors[places, : self.dim]
                there |= mine
        if not there.all():
            ids = hits.ids.filter(pa.array(there))
            hits, vectors = Hits(ids, hits.scores[there], hits.versions[there]), vectors[there]
        return hits, self.maps.rows(vectors, self.version, self.target).astype(np.float64)


def by_inner_product(fields: Sequence[Field], queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k largest ⟨q, z̃⟩, by one search."""
    return _at_once(fields, [field.linear(queries) for field in fields], k, ids)


def by_distance(fields: Sequence[Field], queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k largest −‖q − z̃‖² = 2⟨q, z̃⟩ − ‖z̃‖² − ‖q‖²; without stored norms by a re-rank."""
    power = (queries.astype(np.float64) ** 2).sum(axis=1)
    if all(field.norm is not None for field in fields):
        # Beyond float32 a score is infinite; the service refuses to answer with one.
        with np.errstate(over="ignore"):
            power = power.astype(np.float32)
        asked = [field.linear(2 * queries, -1.0) for field in fields]
        # A row's norm is one small number of it, and weighs as much here as all others together.
        return _at_once(fields, [(q, c - power) for q, c in asked], k, ids, exact=True)

    def score(query: npt.NDArray[np.float64], read: npt.NDArray[np.float64]) -> Floats:
        scores: Floats = -((read - query) ** 2).sum(axis=1).astype(np.float32)
        return scores

    merged = []
    for i in range(len(queries)):
        parts = []
        for field in fields:
            query, offset = field.linear(2 * queries[i : i + 1], -1.0)
            hits = field.search(query, offset, _candidates(16, k), ids)[0]
            hits, read = field.read(hits)
            parts.append(_ranked(hits, score(queries[i].astype(np.float64), read)))
        merged.append(merge_hits(parts, k))
    return merged


def by_cosine(fields: Sequence[Field], queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k largest ⟨q, z̃⟩ / ‖q‖‖z̃‖; that of a row of zeros is 0.

    The candidates of an inner product are re-ranked. If norms are stored the result is proved:
    with t the k-th cosine so far, and √n ≥ a + b n between the smallest and the largest ‖z̃‖² (the
    chord of a concave function), each row that is better has ⟨q, z̃⟩ − t‖q‖b‖z̃‖² ≥ t‖q‖a. That is
    one more inner product, and when the candidates by it reach below t‖q‖a, nothing is left out.
    """
    unit = _unit(queries)
    parts_of_query: list[list[Hits]] = [[] for _ in queries]
    for field in fields:
        for part, hits in zip(parts_of_query, _cosines(field, unit, k, ids), strict=True):
            part.append(hits)
    return [merge_hits(parts, k) for parts in parts_of_query]


def near_by_cosine(fields: Sequence[Field], queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return k rows of each query that are near by cosine, to be ranked anew by other vectors: not
    quite the nearest, but many cost one search, and `WIDER` · `LEAST` rows that are fetched.

    Of the best of these by cosine, `LEAST`, t is the least cosine and m the median of ‖z̃‖. A row is
    better than t if ⟨q, z̃⟩ − t‖q‖‖z̃‖ ≥ 0, and ‖z̃‖ is about m/2 + ‖z̃‖²/2m, its tangent at m: the
    rows have the largest ⟨q, z̃⟩ − t‖q‖‖z̃‖²/2m. Without stored norms they are those of `by_cosine`.
    """
    if any(field.norm is None for field in fields):
        return by_cosine(fields, queries, k, ids)
    unit = _unit(queries)
    firsts = [field.search(*field.linear(unit), WIDER * LEAST, ids) for field in fields]
    weights = np.zeros(len(unit), dtype=np.float32)
    for place, query in enumerate(unit.astype(np.float64)):
        hits_of_fields = zip(fields, firsts, strict=True)
        read = np.concatenate([field.read(hits[place])[1] for field, hits in hits_of_fields])
        lengths = np.linalg.norm(read, axis=1)
        read, lengths = read[lengths > 0], lengths[lengths > 0]
        cosines = read @ query / lengths
        near = np.argsort(-cosines)[:LEAST]
        if len(near):
            weights[place] = -cosines[near[-1]] / (2 * np.median(lengths[near]))
    return _at_once(fields, [field.linear(unit, weights) for field in fields], k, ids)


def _unit(queries: Floats) -> Floats:
    """Return queries at length 1. Raises: DataError: one has length 0."""
    lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
    if (lengths == 0).any():
        raise DataError("A query has length 0, so it has no cosine; give another.")
    unit: Floats = (queries / lengths[:, None]).astype(np.float32)
    return unit


def _cosines(field: Field, unit: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k best cosines in rows of one version, for queries of length 1."""
    start = _candidates(WIDER, k)
    asked, offsets = field.linear(unit)
    if field.norm is not None:
        # The smallest and the largest norm, in the same pass over the rows.
        ends = np.zeros((2, field.width), dtype=np.float32)
        ends[:, field.norm] = [-1 / NORM_SCALE, 1 / NORM_SCALE]
        asked = np.concatenate([asked, ends])
        offsets = np.concatenate([offsets, np.zeros(2, np.float32)])
    first = field.search(asked, offsets, start, ids)
    best = [_by_cosine(field, q, hits).first(k) for q, hits in zip(unit, first, strict=False)]
    if field.norm is None or not len(first[-1]):
        return best
    least, most = (-float(first[-2].scores[0]), float(first[-1].scores[0]))
    # Scores are float32: a little wider is safe.
    least, most = max(0.0, least * (1 - 1e-5)), most * (1 + 1e-5)
    return [
        _proved(field, q, hits, (least, most), k, ids) for q, hits in zip(unit, best, strict=True)
    ]


def _proved(
    field: Field, query: Floats, best: Hits, norms: tuple[float, float], k: int, ids: Ids
) -> Hits:
    """Return the k best cosines of one query of length 1, from those of a first round."""
    low, high = np.sqrt(norms[0]), np.sqrt(norms[1])
    width = _candidates(WIDER, k)
    while len(best) == k and high > 0:
        t = float(best.scores[-1])
        if t > 0:
            # The chord of √n from `low`² to `high`².
            slope = 1 / (low + high)
            height = low * high / (low + high)
        else:
            # A negative t wants √n from above: its tangent at `high`².
            slope, height = 1 / (2 * high), high / 2
        asked, offset = field.linear(query[None], -t * slope)
        hits = field.search(asked, offset, width, ids)[0]
        best = merge_hits([best, _by_cosine(field, query, hits)], k)
        slack = 1e-5 * high
        if len(hits) < width or width >= MOST or float(hits.scores[-1]) < t * height - slack:
            break
        width = min(MOST, WIDER * width)
    return best


def _by_cosine(field: Field, query: Floats, hits: Hits) -> Hits:
    hits, read = field.read(hits)
    lengths = np.linalg.norm(read, axis=1)
    products = read @ query.astype(np.float64)
    scores = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return _ranked(hits, scores.astype(np.float32))


def _candidates(wider: int, k: int) -> int:
    return max(k, min(MOST, max(LEAST, wider * k)))


def _ranked(hits: Hits, scores: Floats) -> Hits:
    order = np.argsort(-scores, kind="stable")
    return Hits(hits.ids.take(pa.array(order)), scores[order], hits.versions[order])


def _at_once(
    fields: Sequence[Field],
    asked: Sequence[tuple[Floats, Floats]],
    k: int,
    ids: Ids,
    *,
    exact: bool = False,
) -> list[Hits]:
    versions = [field.version for field in fields]
    return fields[0].store.search(
        dict(zip(versions, (queries for queries, _ in asked), strict=True)),
        k,
        offsets=dict(zip(versions, (offsets for _, offsets in asked), strict=True)),
        ids=ids,
        exact=exact,
    )
