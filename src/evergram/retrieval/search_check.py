"""Searches of a store at each version, compared with all of its rows.

An index may miss more of what queries of a past version are nearest to, as they are less like its
rows. Rows older than the version are not compared exactly by distance and cosine, index or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

import numpy as np
import numpy.typing as npt
import torch

from evergram.errors import DataError, LineageError, ShapeError
from evergram.evaluation.judged import bootstrap
from evergram.lineage.lineage import Lineage
from evergram.retrieval.fill import Progress
from evergram.retrieval.reader import Metric, Reader
from evergram.retrieval.version_maps import VersionMaps, checked_vectors
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.rows import Floats, Hits, Rows, check_k, scores_by
from evergram.stores.store import ReadableStore
from evergram.vector_files.open_embeddings import EmbeddingFile

Doubles = npt.NDArray[np.float64]
# Rows that are compared at a time.
BLOCK = 16_384
# Of a query's largest score: two that differ by less are equal, as a store's are float32.
TOLERANCE = 1e-5
# A mean of shares may be off by so much.
ROUNDING = 1e-9


@dataclass(frozen=True)
class SearchCheck:
    """How many of the best rows the searches at a version return.

    Args:
        version: of the queries.
        metric: that they searched by.
        queries: how many there were.
        recall: the share of each query's k best rows that a search returns, the mean over queries;
            None if it was not measured.
        low, high: the ends of the recall's 95 % interval. For the lower one there is one query
            more, which finds nothing: few that all agree are not certain.
        worst: that of the query with the smallest share.
        problem: why it was not measured.
    """

    version: int
    metric: Metric
    queries: int
    recall: float | None = None
    low: float | None = None
    high: float | None = None
    worst: float | None = None
    problem: str | None = None

    def reaches(self, least: float) -> bool:
        """Return whether the lower end of the interval is that much; not where it was not
        measured."""
        return self.low is not None and self.low >= least - ROUNDING


def checked_versions(lineage: Lineage, store: ReadableStore) -> list[int]:
    """Return the versions that may be searched in a store: those to production or, where the store
    has later rows, to the latest of these."""
    last = max([lineage.production, *store.filled()])
    return [version for version in lineage.readable if version <= last]


def canary_queries(
    lineage: Lineage, versions: Iterable[int], side: str, sample: int = 200
) -> dict[int, Floats]:
    """Return vectors [≤ sample, D_j] of version j for each version: of its canaries of the side
    "query", or of `side` where it has no queries, as it published them; each once, and none of
    length 0. Of a version without canaries there are none.
    """
    drawn = {}
    for version in versions:
        canaries = lineage.canaries(version)
        of_side = canaries.get("query", canaries.get(side))
        vectors = np.zeros((0, lineage.manifest(version).dim), dtype=np.float32)
        if of_side is not None:
            vectors = of_side[1].numpy().astype(np.float32)
        vectors = _told_apart(vectors)
        order = np.random.default_rng(0).permutation(len(vectors))
        drawn[version] = vectors[np.sort(order[:sample])]
    return drawn


def file_queries(lineage: Lineage, version: int, file: EmbeddingFile) -> Floats:
    """Return the vectors [Q, D_j] of a file, as queries of version j; each once, and none of
    length 0. A file that does not say of which version they are is believed.

    Raises: ShapeError, DataError: they are no finite vectors of the version. LineageError: the file
        says that they are of another.
    """
    lineage.check_fingerprint(file.fingerprint, version, str(file.path))
    dim = lineage.manifest(version).dim
    if file.dim != dim:
        raise ShapeError(
            f"{file.path} has vectors of dim {file.dim}; those of version {version} have {dim}."
        )
    parts = [vectors.numpy() for _, vectors in file.blocks()]
    return _told_apart(checked_vectors(np.concatenate(parts), dim, version))


def check_searches(
    lineage: Lineage,
    store: ReadableStore,
    side: str,
    queries: Mapping[int, Floats],
    k: int = 10,
    metrics: Sequence[Metric] = get_args(Metric),
    progress: Progress | None = None,
) -> list[SearchCheck]:
    """Compare what searches return with the best of all rows, which are read once, in float64.

    Ties count for whichever row is returned. Nothing should write to the store meanwhile: a row
    that came or went between a search and its comparison counts as missed.

    Args:
        queries: vectors [Q, D_j] of version j, for each version that is searched.
        k: less than there are rows, as all of them are what any search returns.
        progress: called with the rows compared and the rows in all.
    Returns: one for each version and metric, in their order.
    Raises: DataError: `k` is not positive, or not less than there are rows; or it is a table of
        your own, which has no index that is searched. LineageError, IntegrityError: as `Reader`.
    """
    total = _rows_to_compare(store, k)
    reader, maps = Reader(lineage, {side: store}), VersionMaps(lineage)
    hits: dict[tuple[int, Metric], list[Hits]] = {}
    checks: dict[tuple[int, Metric], SearchCheck] = {}
    for version, metric in product(queries, metrics):
        asked, problem = queries[version], "there is no query whose length is above 0"
        try:
            if len(asked):
                hits[version, metric] = reader.search(asked, k, version, side, metric)
        except LineageError as error:
            problem = str(error).rstrip(".")
        checks[version, metric] = SearchCheck(version, metric, len(asked), problem=problem)
    best = {key: _Best(queries[key[0]], k, key[1]) for key in hits}
    done = 0
    for rows in store.scan(size=BLOCK) if best else ():
        _compare(rows, maps, best)
        done += len(rows)
        if progress is not None:
            progress(done, total)
    for (version, metric), of_search in best.items():
        if not np.isfinite(of_search.largest).all():
            problem = "a row is past float32 as that version reads it"
            checks[version, metric] = replace(checks[version, metric], problem=problem)
            continue
        shares = []
        for place, found in enumerate(hits[version, metric]):
            embedded = reader.embed(found.ids.unique(), version, side)
            shares.append(of_search.share(place, embedded.vectors[embedded.sources >= 0]))
        checks[version, metric] = _measured(version, metric, shares)
    return list(checks.values())


def _rows_to_compare(store: ReadableStore, k: int) -> int:
    """Return the number of all rows. Raises: DataError: as `check_searches`."""
    check_k(k)
    if isinstance(store, AdoptedStore):
        raise DataError(
            f"{store.address} is a table of your own, whose searches compare all rows: there is no "
            "index to check."
        )
    total = sum(store.count().values())
    if total <= k:
        raise DataError(
            f"{store.address} has {total} rows, and searches for {k} would return them all: give a "
            "smaller k, or fill it first."
        )
    return total


def _compare(rows: Rows, maps: VersionMaps, best: Mapping[tuple[int, Metric], _Best]) -> None:
    """Compare stored rows with the best so far of each version and metric."""
    own = rows.vectors[:, : maps.dim(rows.version)]
    for version in dict.fromkeys(version for version, _ in best):
        read = maps.rows(own, rows.version, version)
        for (of_version, _), of_search in best.items():
            if of_version == version:
                of_search.add(read)


def _measured(version: int, metric: Metric, shares: list[float]) -> SearchCheck:
    with_none = bootstrap(torch.tensor([*shares, 0.0], dtype=torch.float64))
    of_queries = bootstrap(torch.tensor(shares, dtype=torch.float64))
    recall = of_queries.mean, with_none.low, of_queries.high, min(shares)
    return SearchCheck(version, metric, len(shares), *recall)


class _Best:
    """The k best scores of each query so far, in float64, and the largest of any size."""

    def __init__(self, queries: Floats, k: int, metric: Metric) -> None:
        self._queries, self._k, self._metric = queries.astype(np.float64), k, metric
        self._scores = np.zeros((len(queries), 0))
        self.largest = np.zeros(len(queries))

    def add(self, rows: Floats) -> None:
        """Compare rows [n, D_j]."""
        new = self._scored(self._queries, rows)
        self.largest = np.maximum(self.largest, np.abs(new).max(axis=1, initial=0.0))
        both = np.concatenate([self._scores, new], axis=1)
        if both.shape[1] > self._k:
            both = -np.partition(-both, self._k - 1, axis=1)[:, : self._k]
        self._scores = both

    def share(self, place: int, rows: Floats) -> float:
        """Return the share of a query's best rows that are among these."""
        scores = self._scored(self._queries[place : place + 1], rows)[0]
        least = self._scores[place].min() - TOLERANCE * self.largest[place]
        count = self._scores.shape[1]
        return float(min(int((scores >= least).sum()), count) / count)

    def _scored(self, queries: Doubles, rows: Floats) -> Doubles:
        scores = scores_by(self._metric, queries, rows.astype(np.float64))
        if self._metric == "l2":
            # Without ‖q‖², which is the same for all rows, and makes all scores large.
            scores += (queries**2).sum(axis=1)[:, None]
        return scores


def _told_apart(vectors: Floats) -> Floats:
    """Return the vectors [n, D] of a length above 0, each once, in their order."""
    some: Floats = vectors[vectors.any(axis=1)]
    if len(some):
        some = some[np.sort(np.unique(some, axis=0, return_index=True)[1])]
    return some
