"""Read stored embeddings at any version: by id, by search, or as recommendations.

The user's own tables do not store ‖A z + b‖, which cosine and distance at another version need. At
the rows' own version the database computes the scores; otherwise the rows are read here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.data.split import PairHash
from evergram.errors import DataError, EvergramError, LineageError, StoreError
from evergram.gramian.query_form import QueryForm
from evergram.ids import Lists, as_lists
from evergram.lineage.lineage import Lineage, side_of
from evergram.lineage.score_maps import QueryVectors, ScoredSearch, ScoreMaps, query_version_of
from evergram.lineage.view import Missing, fold_in
from evergram.reopening import Reopened, reopened
from evergram.retrieval.fill import canary_stores, check_store, local_stores, open_stores
from evergram.retrieval.metric_search import (
    Field,
    Metric,
    by_cosine,
    by_distance,
    by_inner_product,
    near_by_cosine,
)
from evergram.retrieval.version_maps import VersionMaps, checked_vectors
from evergram.retrieval.version_sidecar import HITS, Paths, SidecarFiles, reread
from evergram.stores.adopted_store import AdoptedStore
from evergram.stores.filters import Filter
from evergram.stores.store import (
    Embedded,
    Floats,
    Hits,
    ReadableStore,
    Rows,
    Space,
    check_k,
    joined_hits,
    merge_hits,
    places_among,
)
from evergram.texts.addresses import TRUSTED_ONLY
from evergram.texts.record import RECORDED, MismatchError, RecordedEncoder, open_recorded
from evergram.texts.text_encoder import Role
from evergram.tracing import span

Version = int | str | None
QUERY, CANDIDATE = "query", "candidate"
# Candidates to search: initially per recommendation, and at least.
WIDER, LEAST = 2, 32
# Maximum number of table rows that one search may read here.
MOST_READ = 200_000
SEARCHES = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}
# Searches for hits to be re-ranked.
PROPOSALS = {**SEARCHES, "cosine": near_by_cosine}
Scores = Literal["raw", "calibrated"]
# Tolerance for length 1 in half precision.
UNIT = 1e-3

__all__ = ["Embedded", "Metric", "QueryVectors", "Reader", "Scores", "Version"]


@dataclass(frozen=True)
class SearchOptions:
    """Everything about a search except the query vectors and k; see `Reader.search`. Raises:
    DataError: unknown metric or scores."""

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


class Reader(Reopened):
    """Reads a lineage's stored embeddings, from one store per side. Thread-safe.

    Each row is mapped from its own version, so a partly refreshed store gives correct vectors.
    After unpickling or a fork, the reader reopens the lineage and the stores.

    >>> from evergram import Reader
    >>> reader = Reader.open("lineages/films")
    >>> oldest = reader.embed([12, 7], version=0, side="candidate")
    >>> oldest.vectors.shape, oldest.counts
    ((2, 4), {2: 2})
    >>> hits = reader.search(oldest.vectors[0], k=3, version=0, side="candidate", metric="l2")
    >>> hits[0].ids[0].as_py()
    12
    >>> reader.close()

    Args:
        stores: side to the store of production's embeddings.
        canaries: side to a store of the newest version's embeddings, from which versions after
            production are read; needed if `stores` lacks them.
        settled: the last version that is read from `stores`; default: production.
        encoder, sidecars: as for `open`.
    Raises: IntegrityError: a store belongs to another lineage or side.
    """

    def __init__(
        self,
        lineage: Lineage,
        stores: Mapping[str, ReadableStore],
        canaries: Mapping[str, ReadableStore] | None = None,
        settled: int | None = None,
        *,
        encoder: str | Sequence[str] | None = None,
        sidecars: SidecarFiles | None = None,
    ) -> None:
        self.lineage = lineage
        self._sidecar_files = SidecarFiles() if sidecars is None else sidecars
        self._sidecars = self._sidecar_files.read(lineage)
        if not stores:
            raise LineageError(f"{lineage.path} was opened without a store to read from.")
        self._by_side, self._canaries = dict(stores), dict(canaries or {})
        self._settled = lineage.production if settled is None else settled
        for side, store in (*self._by_side.items(), *self._canaries.items()):
            check_store(lineage, store, side)
        self._maps = VersionMaps(lineage)
        self._score_maps = ScoreMaps(lineage)
        # Whether a version's vectors of a side have length 1.
        self._unit: dict[tuple[int, str], bool] = {}
        named = (RECORDED,) if encoder is None else encoder
        self._addresses: tuple[str, ...] = (named,) if isinstance(named, str) else tuple(named)
        self._encoders: dict[int, RecordedEncoder] = {}
        self._opening = threading.Lock()
        self._forms: dict[int, QueryForm | None] = {}

    @classmethod
    def open(
        cls,
        lineage: Lineage | str | Path,
        stores: Mapping[str, str | ReadableStore] | None = None,
        *,
        encoder: str | Sequence[str] | None = None,
        sidecars: Paths | SidecarFiles = (),
    ) -> Reader:
        """Open a reader on stores, or on the lineage's own snapshots after filling them.

        Args:
            lineage: a lineage, its folder or its address.
            stores: side to a store or its address, see `stores.open_store`; default: the snapshots.
                `close` closes them all. Versions after production are read from a store with rows
                of the newest version, or else from an additional snapshot.
            encoder: addresses of the text encoders to use for `encode` and `search_texts`. None
                opens the recorded one, unless it is "python:" or "openai:", which would run code
                or send texts elsewhere.
            sidecars: files of `evergram vectors sidecar`, or folders of them, for reading objects
                at the previous version: docs/old-readers.md, "A sidecar for old readers".
        Raises: LineageError, IntegrityError, StoreError. DataError: a sidecar cannot be read.
        """
        opened = lineage if isinstance(lineage, Lineage) else Lineage.open(lineage)
        files = sidecars if isinstance(sidecars, SidecarFiles) else SidecarFiles(sidecars)
        # Report bad sidecars before filling stores, which may take long.
        files.read(opened)
        by_side: dict[str, ReadableStore] = {}
        by_side.update(local_stores(opened) if stores is None else open_stores(opened, stores))
        with ExitStack() as failed:
            for side, store in by_side.items():
                if stores is None or store is not stores[side]:
                    failed.callback(store.close)
            canaries = canary_stores(opened, None if stores is None else by_side)
            for store in canaries.values():
                failed.callback(store.close)
            reader = cls(opened, by_side, canaries, encoder=encoder, sidecars=files)
            failed.pop_all()
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        encoder, sidecars = self._addresses, self._sidecar_files
        opened = partial(type(self).open, encoder=encoder, sidecars=sidecars)
        return opened, (self.lineage.absolute_address, self._by_side)

    def carried(self, lineage: Lineage) -> Reader:
        """Return a reader of a changed lineage on the same stores, which may be partly refreshed.
        Versions after the earlier of both productions are read from the newest version's rows."""
        canaries: dict[str, ReadableStore] = {}
        with ExitStack() as failed:
            if lineage.newest != lineage.production:
                canaries.update(canary_stores(lineage))
                for store in canaries.values():
                    failed.callback(store.close)
            else:
                known = {m.version for m in lineage.versions}
                for side, store in self._canaries.items():
                    # Another process may have removed them after a refresh.
                    with suppress(DataError, StoreError):
                        if store.spaces().keys() <= known:
                            canaries[side] = failed.enter_context(reopened(store))
            stores = {
                side: failed.enter_context(reopened(store)) for side, store in self._by_side.items()
            }
            reader = Reader(
                lineage,
                stores,
                canaries,
                min(self._settled, lineage.production),
                encoder=self._addresses,
                sidecars=self._sidecar_files,
            )
            failed.pop_all()
        return reader

    def __repr__(self) -> str:
        stores = ", ".join(f"{side} in {store.address}" for side, store in self._by_side.items())
        return f"Reader({self.lineage.name!r} version {self.lineage.production}; {stores})"

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides with a store."""
        return tuple(self._by_side)

    @property
    def default_side(self) -> str:
        """The side to read by default: "candidate", or the first."""
        return side_of(self._by_side, "the stores")

    def store(self, side: str | None = None, version: int | None = None) -> ReadableStore:
        """Return the store for a side and version. Raises: LineageError: unknown side."""
        own = self._by_side[side_of(self._by_side, "the stores", side)]
        if version is None or version <= self._settled:
            return own
        return self._canaries.get(self.default_side if side is None else side, own)

    def embed(
        self,
        ids: pa.Array | Sequence[int | str],
        version: Version = None,
        side: str | None = None,
        *,
        sidecars: bool = True,
    ) -> Embedded:
        """Return the embeddings of ids at a version.

        Args:
            version: a number, "v0" or a label; default: production.
            side: default: `default_side`.
            sidecars: False reads all rows by the backward transform.
        Raises: UnknownVersionError. DataError: ids of another type. LineageError: unknown side, or
            no forward map for an older row.
        """
        target = self.lineage.resolve(version)
        side = self.default_side if side is None else side
        store = self.store(side, target)
        asked = store.as_ids(ids)
        with span("fetch", store=store.kind, rows=len(asked)):
            fetched = store.fetch(asked)
        if len(fetched) == 1 and fetched[0].ids.equals(asked):
            # Fast path: every id, once and in order.
            sources = np.full(len(asked), fetched[0].version)
            return Embedded(target, asked, self._as(fetched[0], target, side, sidecars), sources)
        vectors = np.zeros((len(asked), self.lineage.manifest(target).dim), dtype=np.float32)
        sources = np.full(len(asked), -1, dtype=np.int64)
        for rows in fetched:
            read = self._as(rows, target, side, sidecars)
            mine, places = places_among(asked, rows.ids)
            vectors[mine] = read[places]
            sources[mine] = rows.version
        return Embedded(target, asked, vectors, sources)

    def search(
        self,
        queries: npt.ArrayLike,
        k: int = 10,
        version: Version = None,
        side: str | None = None,
        metric: Metric | None = None,
        ids: pa.Array | Sequence[int | str] | None = None,
        *,
        filter: Filter | None = None,
        scores: Scores = "raw",
        query_side: str | None = None,
        query_vectors: QueryVectors | int | None = None,
    ) -> list[Hits]:
        """Return the k nearest stored objects to query vectors of a version.

        With a sidecar, `depth` hits (see `SidecarFiles`) are re-ranked by its vectors, unless
        scores are calibrated. The store may change between batches of queries then.

        Args:
            queries: [Q, D_j] or [D_j], in the space of version j.
            metric: "ip", ⟨q, z̃⟩; "l2", −‖q − z̃‖²; "cosine". A larger score is nearer. None is
                `default_metric`.
            ids: search only among these.
            filter: search only rows whose metadata match, in your own table: docs/stores.md,
                "Filters".
            scores: "calibrated" maps scores to the distribution that the version's own model gave,
                so that as many pairs as before exceed any threshold, if not the same ones. The k
                nearest are by these scores.
            query_side: the side of the queries, for calibrated scores; default: "query" if there is
                one, else `side`.
            query_vectors: required for calibrated scores. "own" if version j's own model made the
                queries, such as vectors from before an upgrade or read by a sidecar; "read_back" if
                they were mapped from production; or the version that they were mapped from, as in
                `embed`'s `sources`.
        Returns: hits for each query.
        Raises: UnknownVersionError. LineageError: a transform is not affine, the store was never
            filled, or the versions have too few common canaries to calibrate scores. ShapeError,
            DataError: invalid queries, or `query_vectors` is missing.
        Source: docs/method.md, "One index for all versions"; docs/old-readers.md, "Scores".
        """
        target = self.lineage.resolve(version)
        asked = SearchOptions(
            target,
            self.default_side if side is None else side,
            self.default_metric(target, side) if metric is None else metric,
            None if ids is None else self.store(side, target).as_ids(ids),
            filter,
            scores,
            query_side,
            query_vectors,
        )
        check_k(k)
        return self._searched(self.queries(queries, target), k, asked)

    def _searched(self, queries: Floats, k: int, asked: SearchOptions) -> list[Hits]:
        store, own = self.store(asked.side, asked.target), self.store(asked.side)
        calibrates = asked.scores == "calibrated"
        if calibrates:
            query_side = asked.query_side
            if query_side is None:
                query_side = QUERY if QUERY in self.sides else asked.side
            made = query_version_of(asked.query_vectors, asked.target, self.lineage.production)
            sides = query_side, asked.side
            scored = ScoredSearch(asked.target, sides, asked.metric, self.lineage.resolve(made))
        if asked.filter is not None and store is not own:
            raise DataError(
                f"Version {asked.target} is after production ({self.lineage.production}), and "
                f"{own.address} has no rows of it, or some that cannot be read as it, so that the "
                "published vectors are searched, which have no metadata: write its vectors there "
                "and open the store again, or search without a filter."
            )
        depth = k if calibrates else self._sidecars.depth(asked.side, asked.target, k)
        read = depth if asked.ids is None else min(depth, len(asked.ids))
        at_once = max(1, HITS // max(1, read)) if depth > k else len(queries)
        if len(queries) > at_once:
            parts_of_queries = np.split(queries, range(at_once, len(queries), at_once))
            return [hits for part in parts_of_queries for hits in self._searched(part, k, asked)]

        def search(view: ReadableStore) -> tuple[bool, list[list[Hits]]]:
            chosen = view if asked.filter is None else view.where(asked.filter)
            filled = chosen.filled()
            if not calibrates:
                rereads = self._sidecars.apply(asked.side, asked.target, filled)
                width = depth if rereads else k
                return rereads, [self._best(chosen, filled, queries, width, asked, rereads)]
            # Uncalibrated scores of two versions' rows are not comparable.
            parts = [{version: space} for version, space in filled.items()]
            return False, [self._best(chosen, one, queries, k, asked) for one in parts or [{}]]

        # Read all spaces at one moment, so that no row is missed by moving between them.
        with span("search", store=store.kind, version=asked.target, rows=len(queries), k=k):
            rereads, parts = store.read_consistently(search)
        if rereads:
            embed = partial(self.embed, version=asked.target, side=asked.side)
            return reread(embed, parts[0], queries, asked.metric, k)
        if not calibrates:
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
        """Return the k best rows of the spaces `filled` for each query [Q, D_j].

        Args:
            proposals: the hits will be re-ranked, so they may be approximate, without valid scores.
        Raises: LineageError: a transform is not affine, or the store was never filled. DataError:
            too many table rows to read, or a query of length 0 for cosine.
        """
        if not filled and not view.spaces() and not view.adopted:
            raise LineageError(
                f"{view.address} was never filled; 'evergram store fill' or fill(lineage, "
                "store, side) fills it."
            )
        if not filled:
            return [joined_hits([], view.id_type)] * len(queries)
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
        """Return the k best rows of a version in a table for each query, by exact search."""
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
        # Count late, because it takes a database as long as a search.
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

    def default_metric(self, version: Version = None, side: str | None = None) -> Metric:
        """Return the default metric: "ip", or "cosine" where rows are mapped to a version whose
        canaries have length 1: mapped rows have other lengths, which would change the ranking. For
        a table of your own at production it is "ip", because "cosine" reads all mapped rows."""
        target, side = self.lineage.resolve(version), self.default_side if side is None else side
        if (target, side) not in self._unit:
            canaries = self.lineage.canaries(target).get(side)
            lengths = torch.zeros(1) if canaries is None else canaries[1].double().norm(dim=1)
            self._unit[target, side] = len(lengths) > 0 and float((lengths - 1).abs().max()) < UNIT
        store, mapped = self.store(side, target), target < self.lineage.production
        if self._unit[target, side] and not mapped and not store.adopted:
            mapped = bool(store.filled().keys() - {target})
        return "cosine" if self._unit[target, side] and mapped else "ip"

    def encode(
        self, texts: Sequence[str], version: Version = None, role: Role = "document"
    ) -> Floats:
        """Return the vectors [n, D_j] of texts at version j, like a service's `/v1/embeddings`.

        Production's encoder (a later version's own) runs in this process, and the backward
        transform maps its vectors to version j.

        Args:
            version: j; default: production.
            role: chooses the encoder's prompt.
        Raises: UnknownVersionError. DataError: no texts, or an empty one; or the encoder is not
            recorded, cannot be opened, differs, or must be named in `open`. ServiceError: a remote
            encoder cannot be reached.
        """
        target = self.lineage.resolve(version)
        if role not in ("query", "document"):
            raise DataError(f"There is no role {role!r}; there is query and document.")
        if isinstance(texts, str):
            short = texts[:40]
            raise DataError(f"texts is the text {short!r}; give a list, such as [{short!r}].")
        if not len(texts):
            raise DataError("There are no texts to encode; give at least one.")
        for number, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"The text at {number} is empty, or is no string; leave it out.")
        source = max(target, self.lineage.production)
        with span("encoder", version=source, rows=len(texts)):
            with self._opening:
                if source not in self._encoders:
                    self._encoders[source] = self._opened(source)
                encoder = self._encoders[source]
            try:
                vectors = encoder.encode(texts, role)
            except MismatchError as error:
                with self._opening:
                    self._encoders.pop(source, None)
                raise DataError(
                    f"{encoder.encoder.address} is no longer the encoder that version {source} "
                    f"records: {error}."
                ) from error
        dim = self.lineage.manifest(source).dim
        return self._maps.rows(checked_vectors(vectors, dim, source), source, target)

    def _opened(self, version: int) -> RecordedEncoder:
        """Open the encoder of a version. Raises: DataError: it cannot be opened."""
        record = self.lineage.manifest(version).text_encoder
        if record is None:
            raise DataError(
                f"Version {version} of {self.lineage.address} records no encoder of text, so it "
                "cannot encode strings ('evergram vectors encode' writes files that record one)."
            )
        recorded, kind = record.address, record.address.partition(":")[0]
        tried = " or ".join(recorded if a == RECORDED else a for a in self._addresses)
        if self._addresses == (RECORDED,) and kind in TRUSTED_ONLY:
            raise DataError(
                f"Version {version} was encoded by {recorded}, and a lineage must not run code or "
                "send texts elsewhere by itself; name that address in 'encoder'."
            )
        try:
            return RecordedEncoder(open_recorded(record, self._addresses), record)
        except MismatchError as error:
            raise DataError(
                f"{tried} is not the encoder that version {version} records: {error}."
            ) from error
        except EvergramError as error:
            raise type(error)(
                f"Version {version} was encoded by {recorded}, and {tried} cannot be "
                f"opened: {error} Give its address on this machine in 'encoder'."
            ) from error

    def search_texts(
        self,
        texts: Sequence[str],
        k: int = 10,
        version: Version = None,
        role: Role = "query",
        *,
        side: str | None = None,
        metric: Metric | None = None,
        ids: pa.Array | Sequence[int | str] | None = None,
        filter: Filter | None = None,
        scores: Scores = "raw",
    ) -> list[Hits]:
        """Return the k stored objects nearest to each of the texts, at a version.

        Args:
            version: version of the texts and the objects; default: production.
            role: chooses the encoder's prompt.
            side, metric, ids, filter, scores: as for `search`.
        Raises: as `encode` and `search`.
        """
        target = self.lineage.resolve(version)
        check_k(k)
        queries = self.encode(texts, target, role)
        return self.search(
            queries,
            k,
            target,
            side,
            metric,
            ids,
            filter=filter,
            scores=scores,
            query_vectors="own" if target >= self.lineage.production else "read_back",
        )

    def recommend(
        self,
        ids: pa.Array | Sequence[int | str],
        k: int = 10,
        *,
        exclude_seen: bool = True,
        version: Version = None,
    ) -> list[Hits]:
        """Return the k stored candidates with the largest inner product for each stored query.

        Args:
            ids: ids of side "query".
            exclude_seen: leave out the candidates of the query's training pairs. A lineage stores
                32-bit hashes of these, so with N training pairs, a candidate is wrongly left out
                with probability N / 2³².
            version: a number, "v0" or a label; default: production.
        Returns: hits for each query; fewer than k if there are no more candidates.
        Raises: UnknownVersionError. DataError: a query is not stored. LineageError: the versions
            have no queries or candidates, or the training pairs are not recorded.
        """
        check_k(k)
        target = self.lineage.resolve(version)
        queries, store = self.embed(ids, target, QUERY), self.store(CANDIDATE, target)
        if len(queries.missing):
            raise DataError(
                f"{len(queries.missing)} of {len(queries.ids)} queries are not stored; the first "
                f"is {queries.missing[0].as_py()!r}. Leave them out, or encode() them and search()."
            )
        if not exclude_seen:
            return self.search(queries.vectors, k, target, CANDIDATE, "ip")
        history = self.lineage.pair_history
        if history.untested is not None or history.salt is None:
            raise LineageError(
                f"The pairs that {self.lineage} was trained on are not recorded, so those that "
                "were seen cannot be left out: give exclude_seen=False, and leave them out "
                "yourself."
            )
        hasher, best, waiting = PairHash(history.salt), {}, list(range(len(queries.ids)))
        # Widen the search until each query has k hits or all candidates were searched.
        width, stored = max(LEAST, WIDER * k), max(1, sum(store.count().values()))
        while waiting:
            vectors = queries.vectors[waiting]
            found = self.search(vectors, min(width, stored), target, CANDIDATE, "ip")
            for place, hits in zip(waiting, found, strict=True):
                if len(hits):
                    pairs = hasher.of_pairs(pa.repeat(queries.ids[place], len(hits)), hits.ids)
                    hits = hits.where(~history.trained.has(pairs))
                best[place] = hits.first(k)
            waiting = [place for place in waiting if len(best[place]) < k and width < stored]
            width *= 4
        return [best[place] for place in range(len(queries.ids))]

    def fold_in(
        self,
        candidates: Lists,
        weights: Lists | None = None,
        values: Lists | None = None,
        *,
        version: Version = None,
        missing: Missing = "error",
    ) -> Floats:
        """Return the vectors of new queries, float32 [Q, D_j], from their stored candidates.

        They are computed at production (a later version: at itself) and mapped to version j. If
        some of these candidates' rows are older, they are computed at that version, because rows
        that are mapped forward are only estimates.

        Args:
            candidates, weights, values, missing: as for `View.fold_in`.
            version: j; default: production.
        Raises: UnknownVersionError. Others as `View.fold_in`.
        """
        lists = candidates, weights, values
        return self.fold_in_with_source(*lists, version=version, missing=missing)[0]

    def fold_in_with_source(
        self,
        candidates: Lists,
        weights: Lists | None = None,
        values: Lists | None = None,
        *,
        version: Version = None,
        missing: Missing = "error",
    ) -> tuple[Floats, int]:
        """Return the vectors of `fold_in`, and the version at which they were computed."""
        target = self.lineage.resolve(version)
        source = self._fold_in_source(as_lists(candidates, "candidates"), target)

        def lookup(ids: list[int | str]) -> tuple[Tensor, Tensor]:
            stored = self.embed(ids, source, CANDIDATE)
            return torch.from_numpy(stored.sources >= 0), torch.from_numpy(stored.vectors)

        folded = fold_in(
            self._form(source),
            lookup,
            candidates,
            weights,
            values,
            missing=missing,
            owner=f"Version {source}",
        )
        return self._maps.rows(folded.numpy(), source, target), source

    def _fold_in_source(self, candidates: Sequence[Sequence[int | str]], target: int) -> int:
        """Return the version at which to fold in: the first one with a query form, not before the
        candidates' oldest row or the target."""
        last = max(target, self.lineage.production)
        if self.store(CANDIDATE, last).read_consistently(_versions) <= {last}:
            return last
        store = self.store(CANDIDATE, target)
        ids = store.as_ids(list(chain.from_iterable(candidates)))
        oldest = min((rows.version for rows in store.fetch(ids)), default=last)
        versions = [m.version for m in self.lineage.versions if oldest <= m.version <= last]
        return next((v for v in versions if v >= target and self._form(v) is not None), last)

    def _form(self, version: int) -> QueryForm | None:
        if version not in self._forms:
            self._forms[version] = self.lineage.reader(version).query_form()
        return self._forms[version]

    def transform(
        self, vectors: npt.ArrayLike, source: int | str, target: int | str | None = None
    ) -> Floats:
        """Map vectors [n, D_source] to [n, D_target]; `target` is production by default.

        Raises: UnknownVersionError. ShapeError. DataError: a vector is not finite. LineageError: no
            forward map to a later `target` was published.
        """
        start, end = self.lineage.resolve(source), self.lineage.resolve(target)
        return self._maps.rows(self.queries(vectors, start), start, end)

    def oldest_row(self, version: int, side: str | None = None) -> int | None:
        """Return the oldest version of the stored rows, except `version`, unless all rows are of
        `version`; None without rows."""
        filled = self.store(side).read_consistently(_versions)
        return version if filled == {version} else min(filled - {version}, default=None)

    def own_rows(
        self, ids: pa.Array, version: int, side: str | None = None
    ) -> tuple[pa.Array, Floats]:
        """Return the ids whose stored rows are of `version`, and their vectors [n, D]."""
        dim = self.lineage.manifest(version).dim
        own, vectors = ids.slice(0, 0), np.zeros((0, dim), dtype=np.float32)
        for store in dict.fromkeys([self.store(side, version), self.store(side)]):
            left = ids.filter(pc.invert(pc.is_in(ids, value_set=own)))
            for rows in store.fetch(left) if len(left) else ():
                if rows.version == version:
                    own = pa.concat_arrays([own, rows.ids])
                    vectors = np.concatenate([vectors, rows.vectors[:, :dim]])
        return own, vectors

    def close(self) -> None:
        """Close the stores and all text encoders."""
        with self._opening:
            for opened in self._encoders.values():
                opened.encoder.close()
            self._encoders.clear()
        for store in (*self._by_side.values(), *self._canaries.values()):
            store.close()

    def _as(self, rows: Rows, target: int, side: str, sidecars: bool) -> Floats:
        """Map stored rows, with or without norms, to version `target`."""
        own = rows.vectors[:, : self.lineage.manifest(rows.version).dim]
        if not (sidecars and self._sidecars.apply(side, target, [rows.version])):
            return self._maps.rows(own, rows.version, target)
        return self._sidecars.rows(self._maps, replace(rows, vectors=own), target, side)

    def queries(self, queries: npt.ArrayLike, version: int) -> Floats:
        """Return queries as float32 [Q, D]. Raises: ShapeError. DataError: one is not finite."""
        return checked_vectors(queries, self.lineage.manifest(version).dim, version)


def _versions(view: ReadableStore) -> set[int]:
    return set(view.filled())
