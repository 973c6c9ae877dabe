"""Search by inner product, distance and cosine on an index of inner products.

A row of version v is stored as [z, n_0 … n_v] with n_j = ‖z̃_j‖² (scaled), so every score at
version j is linear in the stored coordinates, or bounded by linear functions of them.

Source: docs/method.md, "One index for all versions".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError
from evergram.retrieval.version_maps import NORM_SCALE, VersionMaps
from evergram.stores.store import (
    Doubles,
    Floats,
    Hits,
    ReadableStore,
    Rows,
    best_by,
    joined_hits,
    merge_hits,
    places_among,
    scores_by,
)
from evergram.tracing import span

T = TypeVar("T")
Metric = Literal["ip", "l2", "cosine"]
Ids: TypeAlias = pa.Array | Sequence[int | str] | None
Fields: TypeAlias = Sequence["Field"]
# Candidates to re-rank: per requested result; at least; and at most, beyond which all rows are read
# in blocks.
WIDER, LEAST, MOST = 4, 64, 16_384
# Distances with a larger relative float32 error than this are recomputed in float64.
DIGITS = 1e-4
# Maximum number of tangents in `near_by_cosine`.
TANGENTS = 6
# Rows to read at once; the weights are fitted to at least this many.
READ = 16_384
# Relative to each coordinate's mean square. Prevents large weights of coordinates that hardly vary.
RIDGE = 1e-8


@dataclass(frozen=True)
class NormFit:
    """‖z̃‖² = ⟨weight, x⟩ + offset + e for stored rows x, with `below` ≤ e ≤ `above`.

    Args:
        weight: float32 [width].
        ends: bounds of ‖z̃‖²; unset if norms are stored.
        largest: the largest absolute value of each coordinate of x, [width].
    """

    weight: Floats
    offset: float = 0.0
    below: float = 0.0
    above: float = 0.0
    ends: tuple[float, float] = (0.0, 0.0)
    largest: Floats | float = 0.0


def fit_norms(blocks: Iterable[tuple[Floats, Doubles]], width: int) -> NormFit:
    """Fit the weights to the first blocks of rows [n, width] and ‖z̃‖² [n]; bound e over all."""
    rest, first, count = iter(blocks), list[tuple[Floats, Doubles]](), 0
    while count < READ and (block := next(rest, None)) is not None:
        first.append(block)
        count += len(block[0])
    if not first:
        return NormFit(np.zeros(width, np.float32))
    rows, norms = (np.concatenate(parts).astype(np.float64) for parts in zip(*first, strict=True))
    mean, middle, scale = rows.mean(axis=0), norms.mean(), np.sqrt((rows**2).mean(axis=0))
    scale[scale == 0] = 1.0
    x = (rows - mean) / scale
    gram = x.T @ x + RIDGE * count * np.eye(width)
    weight = (np.linalg.solve(gram, x.T @ (norms - middle)) / scale).astype(np.float32)
    offset = float(middle - mean @ weight)
    extremes, largest = np.full(4, -np.inf), np.zeros(width, np.float32)
    for part, n in chain(first, rest):
        e = n - (part @ weight.astype(np.float64) + offset)
        extremes = np.maximum(extremes, [-e.min(), e.max(), -n.min(), n.max()])
        largest = np.maximum(largest, np.abs(part).max(axis=0))
    below, above, least, most = extremes.tolist()
    ends = -least * (1 - 1e-5), most * (1 + 1e-5)
    return NormFit(weight, offset, -below, above, ends, largest)


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

    @cached_property
    def norm_at(self) -> int | None:
        """The coordinate of ‖z̃‖², or None; `width` if the store computes it where needed."""
        if self.target <= self.version:
            return self.dim + self.target if self.width > self.dim else None
        return self.width if self.store.takes_columns(self.version) else None

    @cached_property
    def norms(self) -> NormFit:
        """The linear function of the coordinates that represents ‖z̃‖²."""
        if self.norm_at is None:
            return self._once(self._fit)
        weight = np.zeros(max(self.width, self.norm_at + 1), dtype=np.float32)
        weight[self.norm_at] = 1 / NORM_SCALE
        return NormFit(weight)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Bounds of ‖z̃‖²; zeros without rows."""
        return self.norms.ends if self.norm_at is None else self._once(self._ends)

    def _once(self, make: Callable[[], T]) -> T:
        key = self.store.address, self.version, self.target, self.norm_at
        return self.maps.once(key, self.store.state(self.version), make)

    def _ends(self) -> tuple[float, float]:
        # Scaled, so that no score overflows.
        signs = np.array([-NORM_SCALE, NORM_SCALE], np.float32)
        asked = np.multiply.outer(signs, self.norms.weight), np.zeros(2)
        lowest, highest = _at_once([self], [asked], LEAST, None)
        if not len(highest):
            return 0.0, 0.0
        least, most = -float(lowest.scores[0]) / NORM_SCALE, float(highest.scores[0]) / NORM_SCALE
        return max(0.0, least * (1 - 1e-5)), most * (1 + 1e-5)  # wider than float32 rounds

    def _fit(self) -> NormFit:
        with span("norms", source=self.version, target=self.target):
            # The base scan includes superseded rows, so the bounds hold for these, too.
            scanned = ReadableStore.scan(self.store, self.version, READ)
            norms = self.maps.affine(self.version, self.target).norms
            blocks = ((rows.vectors, norms(rows.vectors) / NORM_SCALE) for rows in scanned)
            return fit_norms(blocks, self.width)

    def linear(self, queries: Floats, by_norm: float | Doubles = 0.0) -> tuple[Floats, Doubles]:
        """Return queries [Q, width] and offsets [Q] that score ⟨q, z̃⟩ + by_norm · ‖z̃‖², with
        `norms` for ‖z̃‖²."""
        turned, offset = self.maps.affine(self.version, self.target).queries(queries)
        normed = np.any(by_norm)
        width = len(self.norms.weight) if normed else self.width
        widened = np.zeros((len(queries), width), dtype=np.float32)
        widened[:, : self.dim] = turned
        added = np.zeros(len(queries)) if offset is None else offset.astype(np.float64)
        if normed:
            widened += np.multiply.outer(by_norm, self.norms.weight).astype(np.float32)
            added = added + by_norm * self.norms.offset
        return widened, added

    def mapped(self, rows: Rows) -> Rows:
        own = rows.vectors[:, : self.dim]
        return replace(rows, vectors=self.maps.rows(own, self.version, self.target))


def by_vectors(hits: Hits, vectors: npt.NDArray[Any], query: Floats, metric: Metric = "ip") -> Hits:
    """Re-rank hits by a query [D] and the hits' vectors [n, D]."""
    rows, asked = vectors.astype(np.float64), query.astype(np.float64)[None]
    if metric == "l2":
        # Keeps the digits of rows that are much nearer to the query than to 0.
        return hits.ranked(-((rows - asked) ** 2).sum(axis=1))
    return hits.ranked(scores_by(metric, asked, rows)[0])


def by_inner_product(fields: Fields, queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k largest ⟨q, z̃⟩, by one search."""
    return _at_once(fields, [field.linear(queries) for field in fields], k, ids)


def by_distance(fields: Fields, queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k largest −‖q − z̃‖² = 2⟨q, z̃⟩ − ‖z̃‖² − ‖q‖², by one search if norms are stored.

    For rows much nearer to the query than to 0, the three terms nearly cancel, and float32 leaves
    few digits: these are ranked by float64 differences of the vectors, and the result is proved: in
    a search by an upper bound of the score, all other rows are worse than the k-th.
    """
    power = (queries.astype(np.float64) ** 2).sum(axis=1)
    if len(queries) and np.abs(queries).max() > np.finfo(np.float32).max / 2:
        raise DataError(
            "A distance to a query is not finite: it has a number above 1.7e38; give shorter "
            "vectors."
        )
    none = joined_hits([], fields[0].store.id_type)
    found, stored = [none] * len(queries), all(field.norm_at is not None for field in fields)
    if stored:
        linear = (field.linear(2 * queries, -1.0) for field in fields)
        asked = [(turned, offset - power) for turned, offset in linear]
        # Exact search, because the norm is one coordinate that weighs as much as all others.
        found = _at_once(fields, asked, k, ids, exact=True)
    unsure = {
        i: none
        for i, hits in enumerate(found)
        if not stored or (len(hits) and _error(power[i], hits.scores[0]) > DIGITS * -hits.scores[0])
    }
    proved = _proved("l2", fields, queries, k, ids, unsure)
    return [proved.get(i, hits) for i, hits in enumerate(found)]


def _error(power: Any, score: Any) -> Any:
    """Bound the float32 error of the score of a query with ‖q‖² = `power`: all terms are at most
    (‖q‖ + ‖z̃‖)², and ‖z̃‖ at most ‖q‖ + ‖q − z̃‖."""
    return 2.0**-22 * (2 * np.sqrt(power) + np.sqrt(np.maximum(-score, 0.0))) ** 2


def by_cosine(fields: Fields, queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return the k largest ⟨q, z̃⟩ / ‖q‖‖z̃‖; the cosine of a zero row is 0.

    Candidates by inner product are re-ranked, and the result is proved: let t be the k-th cosine so
    far, and √n ≥ a + b n the chord between the smallest and the largest n = ‖z̃‖². Each better row
    has ⟨q, z̃⟩ − t‖q‖b‖z̃‖² ≥ t‖q‖a. That is one more search by inner product; once its candidates
    reach below t‖q‖a, none is missing.
    """
    unit = _unit(queries)
    asked = [field.linear(unit) for field in fields]
    first = _at_once(fields, asked, _candidates(k), ids)
    best = [_read(fields, q, h, "cosine").first(k) for q, h in zip(unit, first, strict=True)]
    # If there are fewer, these are all rows. Rows of length 0 have the inner product 0, so that a
    # better one is among the first.
    unsure = {i: hits for i, hits in enumerate(best) if len(hits) == k}
    rest = [field for field in fields if unsure and field.ends[1] > 0]
    proved = _proved("cosine", rest, unit, k, ids, unsure)
    return [proved.get(i, hits) for i, hits in enumerate(best)]


def _proved(
    metric: Metric, fields: Fields, queries: Floats, k: int, ids: Ids, best: dict[int, Hits]
) -> dict[int, Hits]:
    """Return the proved k best rows of some queries, from their hits so far. Candidates by an upper
    bound of the score are re-ranked, and grow until no other row can be better."""
    power, left = (queries.astype(np.float64) ** 2).sum(axis=1), list(best if fields else [])
    width = max(k, min(MOST, 2 * _candidates(k)))

    def kth(i: int) -> float:
        return float(best[i].scores[k - 1]) if len(best[i]) >= k else -np.inf

    def least(i: int) -> float:
        """The bound of a row that is as good as the k-th hit so far, at least."""
        return 0.0 if metric == "cosine" else kth(i) - _error(power[i], kth(i))

    while left and width <= MOST:
        scores = np.array([kth(i) for i in left])
        asked = [_bound(metric, field, queries[left], scores) for field in fields]
        found = zip(left, _at_once(fields, asked, width, ids, exact=True), strict=True)
        left = []
        for i, hits in found:
            near = hits.where(hits.scores >= least(i))
            new = near.where(~pc.is_in(near.ids, best[i].ids).to_numpy(zero_copy_only=False))
            if len(new):
                best[i] = merge_hits([best[i], _read(fields, queries[i], new, metric)], k)
            if len(hits) == width and hits.scores[-1] >= least(i):
                left.append(i)
        width *= WIDER
    for field in fields if left else ():
        store, version = field.store, field.version
        blocks = store.scan(version) if ids is None else store.fetch(ids)
        mapped = map(field.mapped, (rows for rows in blocks if rows.version == version))
        every = best_by(metric, queries[left], k, mapped, version, store.id_type)
        for i, hits in zip(left, every, strict=True):
            best[i] = merge_hits([best[i], hits], k)
    return best


def _bound(metric: Metric, field: Field, queries: Floats, kth: Doubles) -> tuple[Floats, Doubles]:
    """Return queries and offsets [Q] that score a field's rows by an upper bound: of −‖q − z̃‖² or,
    for queries of length 1, of what is ≥ 0 for all rows with larger cosines than `kth` [Q]."""
    fit = field.norms
    if metric == "l2":
        linear, offset = field.linear(2 * queries, -1.0)
        offset -= (queries.astype(np.float64) ** 2).sum(axis=1) + fit.below
    else:
        low, high = np.sqrt(field.ends)
        # The chord of √n, or for negative cosines its tangent at `high`², which is above √n.
        slope = np.where(kth > 0, 1 / (low + high), 1 / (2 * high))
        height = np.where(kth > 0, low * high / (low + high), high / 2)
        linear, offset = field.linear(queries, -kth * slope)
        offset -= kth * (height + slope * np.where(kth > 0, fit.below, fit.above)) - 1e-5 * high
    # Add the float32 error of the score, which for a coordinate ‖z̃‖² `_error` or 1e-5 covers.
    terms = np.abs(linear) * np.asarray(fit.largest, np.float64)
    return linear, offset + 2.0**-22 * (terms.sum(axis=1) + np.abs(offset))


def _read(fields: Fields, query: Floats, hits: Hits, metric: Metric) -> Hits:
    """Return the hits ranked by their rows z̃ in float64, without rows that were deleted or
    refreshed to another version since the search."""
    of, fetched = {f.version: f for f in fields}, fields[0].store.fetch(hits.ids)
    parts = [of[rows.version].mapped(rows) for rows in fetched if rows.version in of]
    if not parts:
        return hits.first(0)
    there, places = places_among(hits.ids, pa.concat_arrays([rows.ids for rows in parts]))
    versions = np.concatenate([np.full(len(rows), rows.version) for rows in parts])[places]
    same = versions == hits.versions[there]
    there[there] = same
    vectors = np.concatenate([rows.vectors for rows in parts])[places[same]]
    return by_vectors(hits.where(there), vectors, query, metric)


def near_by_cosine(fields: Fields, queries: Floats, k: int, ids: Ids) -> list[Hits]:
    """Return about the k nearest rows of each query by cosine, to be re-ranked by other vectors.
    Even for a large k, this costs two searches and fetching `WIDER` · `LEAST` rows.

    Let t be the `LEAST`-th best cosine of the fetched rows. The result has the largest
    ⟨q, z̃⟩ − t‖q‖‖z̃‖, with ‖z̃‖ approximated by the minimum of its tangents m/2 + ‖z̃‖²/2m. The
    lengths m are at equal ratios between the smallest and the largest ‖z̃‖: one per octave, at most
    `TANGENTS`.
    """
    unit, ends = _unit(queries), [field.ends for field in fields]
    least, most = min(a for a, _ in ends), max(b for _, b in ends)
    asked = [field.linear(unit) for field in fields]
    cosines = np.zeros(len(unit))
    for i, hits in enumerate(_at_once(fields, asked, WIDER * LEAST, ids)):
        near = _read(fields, unit[i], hits, "cosine").first(LEAST)
        cosines[i] = max(0.0, float(near.scores[-1])) if len(near) else 0.0
    # All queries at the first length, then at the next.
    asked, lengths = [], _lengths(float(np.sqrt(least)), float(np.sqrt(most)))
    for field in fields:
        parts = [field.linear(unit, -cosines / (2 * m)) for m in lengths]
        offsets = [c - cosines * m / 2 for (_, c), m in zip(parts, lengths, strict=True)]
        asked.append((np.concatenate([q for q, _ in parts]), np.concatenate(offsets)))
    # Exact search, because norms weigh much here and a neighbour index ignores that.
    near_lines = _at_once(fields, asked, k, ids, exact=True)
    return [merge_hits(near_lines[place :: len(unit)], k) for place in range(len(unit))]


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


def _candidates(k: int) -> int:
    return max(k, min(MOST, max(LEAST, WIDER * k)))


def _at_once(
    fields: Fields, asked: list[tuple[Floats, Doubles]], k: int, ids: Ids, exact: bool = False
) -> list[Hits]:
    parts = list(zip(fields, asked, strict=True))
    # Scores may overflow to infinity; the service refuses these.
    with np.errstate(over="ignore", invalid="ignore"):
        return fields[0].store.search(
            {field.version: queries for field, (queries, _) in parts},
            k,
            offsets={field.version: offsets.astype(np.float32) for field, (_, offsets) in parts},
            ids=ids,
            exact=exact,
            columns={
                f.version: f.maps.affine(f.version, f.target).norms
                for f, (queries, _) in parts
                if queries.shape[1] > f.width
            },
        )
