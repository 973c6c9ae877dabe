"""Search at a version in stores that hold rows of any, with scores as they are or calibrated.

The user's own tables do not store ‖A z + b‖, which cosine and distance at another version need. At
the rows' own version the database computes these; otherwise the rows are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from evergram.errors import DataError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.lineage.score_maps import QueryVectors, ScoredSearch, ScoreMaps, query_version_of
from evergram.retrieval.metric_search import (
    Field,
    Metric,
    by_cosine,
    by_distance,
    by_inner_product,
    near_by_cosine,
)
from evergram.retrieval.side_stores import SideStores
from evergram.retrieval.sidecar_files import HITS, Sidecars, reread
from evergram.retrieval.version_maps import VersionMaps
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.filters import Filter
from evergram.stores.rows import Embedded, Floats, Hits, Space, check_k, merge_hits
from evergram.stores.store import ReadableStore
from evergram.tracing import span

# Rows that one search may read here.
MOST_READ = 200_000
SEARCHES = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}
# For hits that are ranked anew.
PROPOSALS = {**SEARCHES, "cosine": near_by_cosine}
Scores = Literal["raw", "calibrated"]
# How far from 1 a length may be that is 1 in half precision.
UNIT = 1e-3


@dataclass(frozen=True)
class SearchOptions:
    """Everything about a search except the query vectors and k; see `Reader.search`. Raises:
    DataError: there is no such metric, or no such scores."""

    target: int
    side: str
    metric: Metric = "ip"
    ids: pa.Array | None = None
    filter: Filter | None = None
    scores: Scores = "raw"
    query_side: str | None = None
    query_vectors: QueryVectors | int | None = None

    def __post_init__(self) -> None:
        if self.metric not in get_args(Metric):
            raise DataError(f"There is no metric {self.metric!r}; there is ip, l2 and cosine.")
        if self.scores not in get_args(Scores):
            raise DataError(
                f"There are no scores {self.scores!r}; there are raw and calibrated ones."
            )


class VersionSearch:
    """Searches a reader's stores, and reads ids by `Reader.embed`. Several threads may use one."""

    def __init__(
        self,
        lineage: Lineage,
        stores: SideStores,
        maps: VersionMaps,
        sidecars: Sidecars,
        embed: Callable[..., Embedded],
    ) -> None:
        self._lineage = lineage
        self._stores = stores
        self._maps = maps
        self._sidecars = sidecars
        self._embed = embed
        self._score_maps = ScoreMaps(lineage)
        # Whether a version's own vectors of a side have length 1.
        self._unit: dict[tuple[int, str], bool] = {}

    def search(self, queries: Floats, k: int, asked: SearchOptions) -> list[Hits]:
        """Return the k best hits of each query [Q, D_j], which are checked vectors of the target.

        Raises: as `Reader.search`.
        """
        check_k(k)
        calibrates = asked.scores == "calibrated"
        scored = self._scored(asked) if calibrates else None
        store = self._stores.at(asked.side, asked.target)
        self._check_filter(asked)
        depth = k if calibrates else self._sidecars.depth(asked.side, asked.target, k)
        read = depth if asked.ids is None else min(depth, len(asked.ids))
        at_once = max(1, HITS // max(1, read)) if depth > k else len(queries)
        if len(queries) > at_once:
            parts_of_queries = np.split(queries, range(at_once, len(queries), at_once))
            return [hits for part in parts_of_queries for hits in self.search(part, k, asked)]

        def search(view: ReadableStore) -> tuple[bool, list[list[Hits]]]:
            chosen = view if asked.filter is None else view.where(asked.filter)
            filled = chosen.filled()
            if not calibrates:
                rereads = self._sidecars.apply(asked.side, asked.target, filled)
                width = depth if rereads else k
                return rereads, [self._best(chosen, filled, queries, width, asked, rereads)]
            # Before they are calibrated, scores of two versions' rows are not comparable.
            parts = [{version: space} for version, space in filled.items()]
            return False, [self._best(chosen, one, queries, k, asked) for one in parts or [{}]]

        # Spaces are searched one after the other. A row that moves to another version meanwhile
        # would be in none of them, so all are read as of one moment.
        with span("search", store=store.kind, version=asked.target, rows=len(queries), k=k):
            rereads, parts = store.read_consistently(search)
        if rereads:
            embed = partial(self._embed, version=asked.target, side=asked.side)
            return reread(embed, parts[0], queries, asked.metric, k)
        if scored is None:
            return parts[0]
        apart = [
            [self._score_maps.hits(h, scored) if len(h) else h for h in part] for part in parts
        ]
        return [merge_hits(of_query, k) for of_query in zip(*apart, strict=True)]

    def _best(
        self,
        view: ReadableStore,
        filled: Mapping[int, Space],
        queries: Floats,
        k: int,
        asked: SearchOptions,
        proposals: bool = False,
    ) -> list[Hits]:
        """Return the k best rows of some spaces of a view of a store for each query [Q, D_j].

        Args:
            proposals: whether the hits are ranked anew, so that they need not be quite the best,
                and their scores mean nothing.
        Raises: LineageError: a transform on the way is not affine; or the store was never filled.
            DataError: too many rows of a table would have to be read; a query has length 0 and so
            no cosine.
        """
        if not filled and not view.spaces() and not isinstance(view, AdoptedStore):
            raise LineageError(
                f"{view.address} was never filled; 'evergram store fill' or fill(lineage, "
                "store, side) fills it."
            )
        if not filled:
            nothing = pa.array([], view.id_type), np.zeros(0, np.float32), np.zeros(0, np.int64)
            return [Hits(*nothing) for _ in queries]
        if isinstance(view, AdoptedStore):
            parts = [self._of_table(view, version, queries, k, asked) for version in filled]
            return [merge_hits(of_query, k) for of_query in zip(*parts, strict=True)]
        fields = [
            Field(view, self._maps, version, asked.target, self._maps.dim(version), space.dim)
            for version, space in filled.items()
        ]
        search = (PROPOSALS if proposals else SEARCHES)[asked.metric]
        return search(fields, queries, k, asked.ids)

    def _of_table(
        self, view: AdoptedStore, version: int, queries: Floats, k: int, asked: SearchOptions
    ) -> list[Hits]:
        """Return the k best rows of a version in a table for each query, all rows compared."""
        metric, target = asked.metric, asked.target
        if metric == "cosine" and not queries.any(axis=1).all():
            raise DataError("A query has length 0, so it has no cosine; give another.")
        among = None if asked.ids is None else pc.unique(view.as_ids(asked.ids))
        computed = view.computes(metric, version)
        if metric == "ip" and computed:
            turned, offset = self._maps.affine(version, target).queries(queries)
            offsets = None if offset is None else {version: offset}
            return view.search({version: turned}, k, offsets=offsets, ids=among)
        if version == target and computed:
            return view.nearest_by(metric, version, queries, k, among)
        # Only here, as counting takes a database as long as a search.
        count = view.count().get(version, 0) if among is None else len(among)
        if count > MOST_READ:
            raise DataError(
                f"A search by {metric} at version {target} would read {count} rows of version "
                f"{version} from {view.address}, and one search reads {MOST_READ} at most: search "
                f"{'by ip, ' if view.computes('ip', version) else ''}among fewer rows by a filter "
                "or by ids, or by a metric that the database itself computes at the rows' own "
                "version, or fill a store of Evergram's, which has the lengths."
            )
        read = partial(self._maps.rows, source=version, target=target)
        return view.nearest_by(
            metric, version, queries, k, among, None if version == target else read
        )

    def default_metric(self, target: int, side: str) -> Metric:
        """Return the metric of a search that names none, see `Reader.default_metric`."""
        if target >= self._lineage.production:
            return "ip"
        if (target, side) not in self._unit:
            canaries = self._lineage.canaries(target).get(side)
            lengths = torch.zeros(1) if canaries is None else canaries[1].double().norm(dim=1)
            unit = len(lengths) > 0 and float((lengths - 1).abs().max()) < UNIT
            self._unit[target, side] = unit
        return "cosine" if self._unit[target, side] else "ip"

    def _scored(self, asked: SearchOptions) -> ScoredSearch:
        """Raises: LineageError: there is no such side. DataError: as `query_version_of`."""
        self._stores.of(asked.side)
        query_side = asked.query_side
        if query_side is None:
            query_side = "query" if "query" in self._stores.by_side else asked.side
        made = query_version_of(asked.query_vectors, asked.target, self._lineage.production)
        sides = query_side, asked.side
        return ScoredSearch(asked.target, sides, asked.metric, self._lineage.resolve(made))

    def _check_filter(self, asked: SearchOptions) -> None:
        """Raises: DataError: rows with metadata are not those that are searched."""
        own = self._stores.of(asked.side)
        if asked.filter is not None and self._stores.at(asked.side, asked.target) is not own:
            raise DataError(
                f"Version {asked.target} is after production ({self._lineage.production}), and "
                f"{own.address} has no rows of it, or some that cannot be read as it, so that the "
                "published vectors are searched, which have no metadata: write its vectors there "
                "and open the store again, or search without a filter."
            )
