"""Search by inner product, distance and cosine on an index of inner products.

A row of version v is stored as [z, n_0 … n_v] with n_j = ‖z̃_j‖² (scaled), so every score at
version j is linear in the stored coordinates, or bounded by linear functions of them.

Source: docs/method.md, "One index for all versions".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evergram.errors import DataError
from evergram.retrieval.norm_fits import NormFit
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps
from evergram.stores.store import (
    Doubles,
    Floats,
    Hits,
    ReadableStore,
    Rows,
    best_by,
    merge_hits,
    places_among,
    scores_by,
)

Metric = Literal["ip", "l2", "cosine"]
Ids: TypeAlias = pa.Array | Sequence[int | str] | None
# Candidates to re-rank: initially per requested result; at least; and at most, beyond which all
# rows are read in blocks.
WIDER, LEAST, MOST = 4, 64, 16_384
# Distances with a larger relative float32 error than this are recomputed in float64.
DIGITS = 1e-4
# Maximum number of tangents in `near_by_cosine`.
TANGENTS = 6


@dataclass(frozen=True)
class Field:
    """Rows of one version in a store, searched as version `target`. The first `dim` of their
    `width` coordinates are the vector; norms may follow."""

    store: ReadableStore
    maps: VersionMaps
    version: int
    target: int
    dim: int
    width: int

    @property
    def stored(self) -> bool:
        """Whether ‖z̃‖² is stored with the rows."""
        return self.width > self.dim and self.target <= self.version

    @cached_property
    def norms(self) -> NormFit:
        """The linear function of stored coordinates that represents ‖z̃‖²."""
        if not self.stored:
            return self.maps.norm_fit(self.store, self.version, self.target)
        weight = np.zeros(self.width, dtype=np.float32)
        weight[self.dim + self.target] = 1 / NORM_SCALE
        return NormFit(weight)

    def linear(self, queries: Floats, by_norm: float | Floats = 0.0) -> tuple[Floats, Floats]:
        """Return queries [Q, width] and offsets [Q] that score ⟨q, z̃⟩ + by_norm · ‖z̃‖², with
        `norms` for ‖z̃‖²."""
        turned, offset = self.maps.affine(self.version, self.target).queries(queries)
        widened = np.zeros((len(queries), self.width), dtype=np.float32)
        widened[:, : self.dim] = turned
        added = np.zeros(len(queries), np.float32) if offset is None else offset
        if np.any(by_norm):
            widened += np.multiply.outer(by_norm, self.norms.weight)
            added = added + np.float32(by_norm * self.norms.offset)
        return widened, added

    def search(
        self, queries: Floats, offsets: Floats, k: int, ids: Ids, exact: bool = False
    ) -> list[Hits]:
        at = self.version
        return self.store.search({at: queries}, k, offsets={at: offsets}, ids=ids, exact=exact)

    def read(self, hits: Hits) -> tuple[Hits, npt.NDArray[np.float64]]:
        """Return the hits and their z̃ [n, D_j], without rows that were deleted or refreshed to
        another version since the search."""
        vectors = np.zeros((len(hits), self.dim), dtype=np.float32)
        there = np.zeros(len(hits), dtype=bool)
        for rows in self.store.fetch(hits.ids):
            if rows.version == self.version:
                mine, places = places_among(hits.ids, rows.ids)
                vectors[mine] = rows.vectors[places, : self.dim]
                there |= mine
        if not there.all():
            hits, vectors = hits.where(there), vectors[there]
        return hits, self.maps.rows(vectors, self.version, self.target).astype(np.float64)

    def all_rows(self, metric: Metric, queries: Floats, k: int, ids: Ids) -> list[Hits]:
        """Return each query's k best rows, by reading all rows."""

        def blocks() -> Iterator[Rows]:
            parts = self.store.scan(self.version) if ids is None else self.store.fetch(ids)
            for rows in parts:
                if rows.version == self.version:
                    own = rows.vectors[:, : self.dim]
                    yield replace(rows, vectors=self.maps.rows(own, self.version, self.target))

        return best_by(metric, queries, k, blocks(), self.version, self.store.id_type)


def by_vectors(hits: Hits, vectors: npt.NDArray[Any], query: Floats, metric: Metric = "ip") -> Hits:
    """Re-rank hits by a query [D] and the hits' vectors [n, D]."""
    rows, asked = vectors.astype(np.float64), query.astype(np.float64)[None]
    return hits.ranked(scores_by(metric, asked, rows)[0])


def by_inner_product(fields: Sequence[Field], queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k largest ⟨q, z̃⟩, by one search."""
    return _at_once(fields, [field.linear(queries) for field in fields], k, ids)


def by_distance(fields: Sequence[Field], queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k largest −‖q − z̃‖² = 2⟨q, z̃⟩ − ‖z̃‖² − ‖q‖², by one search if norms are stored.

    For rows much nearer to the query than to 0, the three terms nearly cancel, and float32 leaves
    few digits: these are ranked by float64 differences of the vectors.
    """
    power = (queries.astype(np.float64) ** 2).sum(axis=1)
    if len(queries) and np.abs(queries).max() > np.finfo(np.float32).max / 2:
        raise DataError(
            "A distance to a query is not finite: it has a number above 1.7e38; give shorter "
            "vectors."
        )
    found: list[list[Hits]] = [[] for _ in queries]
    stored = [field for field in fields if field.stored]
    if stored:
        # Scores may overflow to infinity; the service refuses these.
        with np.errstate(over="ignore", invalid="ignore"):
            single = power.astype(np.float32)
            asked = [field.linear(2 * queries, -1.0) for field in stored]
            asked = [(q, c - single) for q, c in asked]
            # Exact search, because the norm is one coordinate that weighs as much as all others.
            best = _at_once(stored, asked, k, ids, exact=True)
        blurred = []
        for i, hits in enumerate(best):
            if len(hits) and _error(power[i], hits.scores[0]) > DIGITS * -hits.scores[0]:
                blurred.append(i)
            else:
                found[i].append(hits)
        _find_nearest(stored, queries, k, ids, found, blurred)
    rest = [field for field in fields if not field.stored]
    _find_nearest(rest, queries, k, ids, found, range(len(queries)))
    return [merge_hits(parts, k) for parts in found]


def _error(power: Any, score: Any) -> Any:
    """Bound the float32 error of the score of a query with ‖q‖² = `power`: all terms are at most
    (‖q‖ + ‖z̃‖)², and ‖z̃‖ at most ‖q‖ + ‖q − z̃‖."""
    return 2.0**-22 * (2 * np.sqrt(power) + np.sqrt(np.maximum(-score, 0.0))) ** 2


def _find_nearest(
    fields: Sequence[Field],
    queries: Floats,
    k: int,
    ids: Ids,
    found: list[list[Hits]],
    which: Iterable[int],
) -> None:
    """Add the k nearest rows of the queries `which` to `found`, by float64 distances. The number of
    candidates grows until no other row can be nearer."""
    places, width = list(which), _candidates(16, k)
    while places and fields:
        if width > MOST:
            for field in fields:
                every = field.all_rows("l2", queries[places], k, ids)
                for place, one in zip(places, every, strict=True):
                    found[place].append(one)
            return
        asked = queries[places].astype(np.float64)
        power = (asked**2).sum(axis=1)
        # For each field and query, upper bounds of the candidates' scores.
        most: list[Doubles] = []
        for field in fields:
            linear, offset = field.linear(2 * queries[places], -1.0)
            above = field.norms.rounding(linear) - field.norms.below - power
            some = field.search(linear, offset, width, ids, exact=True)
            for i, hits in enumerate(some):
                most.append(hits.scores + above[i])
                hits, read = field.read(hits)
                found[places[i]].append(hits.ranked(-((read - asked[i]) ** 2).sum(axis=1)))
        left = []
        for i, place in enumerate(places):
            best = merge_hits(found[place], k)
            found[place] = [best]
            worst = float(best.scores[-1]) if len(best) == k else -np.inf
            least = worst - _error(power[i], worst)
            # If all candidates may be near enough, rows beyond them may be, too.
            if any((m >= least).sum() >= width for m in most[i :: len(places)]):
                left.append(place)
        places, width = left, WIDER * width


def by_cosine(fields: Sequence[Field], queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k largest ⟨q, z̃⟩ / ‖q‖‖z̃‖; the cosine of a zero row is 0.

    Candidates by inner product are re-ranked, and the result is proved: let t be the k-th cosine so
    far, and √n ≥ a + b n the chord between the smallest and the largest n = ‖z̃‖². Each better row
    has ⟨q, z̃⟩ − t‖q‖b‖z̃‖² ≥ t‖q‖a. That is one more search by inner product; once its candidates
    reach below t‖q‖a, none is missing.
    """
    unit = _unit(queries)
    parts_of_query: list[list[Hits]] = [[] for _ in queries]
    for field in fields:
        for part, hits in zip(parts_of_query, _cosines(field, unit, k, ids), strict=True):
            part.append(hits)
    return [merge_hits(parts, k) for parts in parts_of_query]


def near_by_cosine(fields: Sequence[Field], queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return about the k nearest rows of each query by cosine, to be re-ranked by other vectors.
    Even for a large k, this costs two searches and fetching `WIDER` · `LEAST` rows.

    Let t be the `LEAST`-th best cosine of the fetched rows. The result has the largest
    ⟨q, z̃⟩ − t‖q‖‖z̃‖, with ‖z̃‖ approximated by the minimum of its tangents m/2 + ‖z̃‖²/2m. The
    lengths m are at equal ratios between the smallest and the largest ‖z̃‖: one per octave, at most
    `TANGENTS`.
    """
    unit = _unit(queries)
    firsts = [_with_norms(field, unit, WIDER * LEAST, ids) for field in fields]
    ends = [end for _, end in firsts if end is not None] or [(0.0, 0.0)]
    least, most = min(a for a, _ in ends), max(b for _, b in ends)
    if not np.isfinite(most):
        return by_cosine(fields, queries, k, ids)
    cosines = np.zeros(len(unit), dtype=np.float32)
    for place, query in enumerate(unit):
        some = zip(fields, firsts, strict=True)
        parts = [_by_cosine(field, query, hits[place]) for field, (hits, _) in some]
        near = merge_hits(parts, LEAST)
        cosines[place] = max(0.0, float(near.scores[-1])) if len(near) else 0.0
    # All queries at the first length, then at the next.
    asked = []
    for field in fields:
        turned, offsets = [], []
        for m in _lengths(float(np.sqrt(least)), float(np.sqrt(most))):
            linear, offset = field.linear(unit, -cosines / (2 * m))
            turned.append(linear)
            offsets.append(offset - cosines * m / 2)
        asked.append((np.concatenate(turned), np.concatenate(offsets)))
    # Exact search, because norms weigh much here and a neighbour index ignores that.
    hits = _at_once(fields, asked, k, ids, exact=True)
    return [merge_hits(hits[place :: len(unit)], k) for place in range(len(unit))]


def _lengths(low: float, high: float) -> Floats:
    """Return lengths [m] at equal ratios from max(low, high / 1000) to `high`."""
    high = max(high, float(np.finfo(np.float32).tiny))
    low = max(low, high / 1000)
    count = int(np.clip(np.ceil(np.log2(high / low)), 1, TANGENTS))
    lengths: Floats = (low * (high / low) ** ((np.arange(count) + 0.5) / count)).astype(np.float32)
    return lengths


def _unit(queries: Floats) -> Floats:
    """Normalize queries. Raises: DataError: one has length 0."""
    lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
    if (lengths == 0).any():
        raise DataError("A query has length 0, so it has no cosine; give another.")
    unit: Floats = (queries / lengths[:, None]).astype(np.float32)
    return unit


def _cosines(field: Field, unit: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k best rows of one version by cosine, for unit queries."""
    first, ends = _with_norms(field, unit, _candidates(WIDER, k), ids)
    best = [_by_cosine(field, q, hits).first(k) for q, hits in zip(unit, first, strict=True)]
    if ends is None:
        return best
    return [_proved(field, q, hits, ends, k, ids) for q, hits in zip(unit, best, strict=True)]


def _with_norms(
    field: Field, unit: Floats, k: int, ids: Ids
) -> tuple[list[Hits], tuple[float, float] | None]:
    """Return the k best rows of each unit query by inner product, and the smallest and largest
    ‖z̃‖² (None without rows), by one search."""
    asked, offsets = field.linear(unit)
    if not field.stored:
        return field.search(asked, offsets, k, ids), field.norms.ends
    ends = np.multiply.outer([-1, 1], field.norms.weight)
    asked = np.concatenate([asked, ends])
    offsets = np.concatenate([offsets, np.zeros(2, np.float32)])
    *first, lowest, highest = field.search(asked, offsets, k, ids)
    if not len(highest):
        return first, None
    least, most = -float(lowest.scores[0]), float(highest.scores[0])
    # Widened by more than float32 rounding.
    return first, (max(0.0, least * (1 - 1e-5)), most * (1 + 1e-5))


def _proved(
    field: Field, query: Floats, best: Hits, norms: tuple[float, float], k: int, ids: Ids
) -> Hits:
    """Return the proved k best rows of a unit query, starting from the first candidates."""
    low, high = np.sqrt(norms[0]), np.sqrt(norms[1])
    width = _candidates(WIDER, k)
    while len(best) == k and high > 0:
        t = float(best.scores[-1])
        if t > 0:
            # The chord of √n from `low`² to `high`².
            slope = 1 / (low + high)
            height = low * high / (low + high)
        else:
            # A negative t needs an upper bound of √n: its tangent at `high`².
            slope, height = 1 / (2 * high), high / 2
        if width > MOST:
            return merge_hits([best, *field.all_rows("cosine", query[None], k, ids)], k)
        asked, offset = field.linear(query[None], -t * slope)
        hits = field.search(asked, offset, width, ids)[0]
        best = merge_hits([best, _by_cosine(field, query, hits)], k)
        fit = field.norms
        least = t * (height + slope * (fit.below if t > 0 else fit.above))
        slack = 1e-5 * high + float(fit.rounding(asked)[0])
        if len(hits) < width or float(hits.scores[-1]) < least - slack:
            break
        width *= WIDER
    return best


def _by_cosine(field: Field, query: Floats, hits: Hits) -> Hits:
    return by_vectors(*field.read(hits), query, "cosine")


def _candidates(wider: int, k: int) -> int:
    return max(k, min(MOST, max(LEAST, wider * k)))


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
