"""Stores in Qdrant, and the user's own collections there.

A store has a collection for each space, and a small one, its record, that lists them. A point's id
is derived from the row's id (any int64 or text), which is in the payload with the checksum.

A user's collection has one named vector per version. Qdrant itself runs searches by a vector's
configured distance, exactly and without its graph; other searches read all rows. Filling a named
vector changes no other; the ids are first written to the journal, `COLLECTION_evergram`.
"""

from __future__ import annotations

import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from uuid import UUID, uuid4, uuid5
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.adopted_store import (
    BARE,
    NO_CHECKS,
    AdoptedStore,
    TableFacts,
    canonical_uuids,
)
from evergram.stores.filters import Condition, moment_of, type_of
from evergram.stores.store import (
    ID_TYPES,
    Checks,
    Floats,
    Hits,
    ReadableStore,
    Rows,
    Space,
    Store,
    best_by,
    errors_as_store_errors,
    joined_hits,
    joined_ids,
    merge_hits,
    no_store,
    not_ours,
    unchanged,
    was_closed,
)
from evergram.stores.table_per_version import FORMAT, TablePerVersionStore

try:
    from qdrant_client import QdrantClient, models
    from qdrant_client.http.exceptions import ResponseHandlingException
except ImportError as error:
    raise DataError(
        "A store in Qdrant needs qdrant-client: pip install 'evergram[qdrant]'."
    ) from error

T = TypeVar("T")

KEY = "QDRANT_API_KEY"
TIMEOUT = 10  # seconds per request
# Maximum points and floats per request (a server accepts 32 MB), and ids per page without vectors.
POINTS, FLOATS, IDS = 1_000, 500_000, 10_000
LOOKED_UP = 10_000  # a search among at most this many ids is exact
LOOKS = 10  # attempts to read while rows move
# Never change it: all point ids are derived from it.
NAMESPACE = UUID("6f0d3a52-6f4e-5c0b-9a3c-0e2f9b1c7d84")
LOOKED_AT = 128  # minimum hnsw_ef
WHOLE = {"with_payload": True, "with_vectors": True}
REMEDY = (
    "see that a Qdrant server runs at this address, or that no other process has this folder open"
)


class QdrantStore(TablePerVersionStore):
    kind: ClassVar[str] = "qdrant"

    def _connect(self, create: bool) -> None:
        self._remote = folder_of(self._place) is None
        self._connection = QdrantConnection(self._place, self.address, create)
        self._ask = self._connection.ask

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        for look in range(LOOKS):
            # The local mode is serial anyway; lock out a server's writers only after failures.
            locked = not self._remote or look > LOOKS // 2
            with self._writing() if locked else nullcontext():
                view = copy(self)
                view._moment = before = self._load() or {}
                result = work(view)
                # A row leaves a space only after it was written to the other and the token changed,
                # so with an unchanged token no row was missed.
                if (self._load() or {}).get("moved") == before.get("moved"):
                    return result
        raise StoreError(
            f"Rows of {self.address} were moved to other versions by another process each of the "
            f"{LOOKS} times that it was read; wait until that is done, and try again."
        )

    def filled(self) -> dict[int, Space]:
        # Without a filter, an inexact count sums over segments, and is 0 only if there are no rows.
        spaces = self.spaces()
        return {v: spaces[v] for v in spaces if self._ask("count", self._at(v), exact=False).count}

    def _count(self, version: int) -> int:
        return int(self._ask("count", self._at(version), exact=True).count)

    def build_index(self) -> list[int]:
        """Return the versions; a server indexes them automatically, the local mode never."""
        return list(self.spaces()) if self._remote else []

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _writing(self) -> Iterator[Self]:
        with self._connection.writing:
            yield self

    def _load(self) -> Mapping[str, Any] | None:
        """Return the record: a key per space, and `moved`, a token renewed before rows move."""
        if not self._ask("collection_exists", self._name):
            return None
        points = self._ask("retrieve", self._name, [0], with_payload=True)
        return (points[0].payload or {}) if points else None

    def _save(self, record: dict[str, Any]) -> None:
        held = self._load()
        if held is None:
            self._refuse_filled(self._name)
            self._make(self._name, 1)
            # Another process may have created it, and added a space.
            held = self._load()
        if held is None:
            point = models.PointStruct(id=0, vector=[0.0], payload=record)
            self._ask("upsert", self._name, [point], wait=True)
            return
        # Keep existing fields; another process may set the side meanwhile.
        self._set_fields({k: v for k, v in record.items() if held.get(k) is None and v is not None})

    def _set_fields(self, fields: dict[str, Any]) -> None:
        self._ask("set_payload", self._name, {"format_version": FORMAT, **fields}, [0], wait=True)

    def _make(self, collection: str, dim: int) -> None:
        if self._ask("collection_exists", collection):
            return
        shape = models.VectorParams(size=dim, distance=models.Distance.DOT)
        try:
            self._ask("create_collection", collection, vectors_config=shape)
        except StoreError:
            # Another process created it, or our first of two attempts did.
            if not self._ask("collection_exists", collection):
                raise

    def _refuse_filled(self, collection: str) -> bool:
        """Return whether it exists. Raises: StoreError: it has points of another program."""
        there = bool(self._ask("collection_exists", collection))
        if there and self._ask("count", collection, exact=True).count:
            raise not_ours(f"collection {collection}", self.address)
        return there

    def _make_table(self, space: Space) -> None:
        at = self._at(space.version)
        if self._refuse_filled(at):
            self._ask("delete_collection", at)
        self._make(at, space.dim)

    def _put(self, rows: Rows, checks: Checks) -> None:
        keys = rows.ids.to_pylist()
        step = max(1, min(POINTS, FLOATS // rows.vectors.shape[1]))
        for start in range(0, len(keys), step):
            part = slice(start, start + step)
            payloads = [
                {"id": key, "check": check}
                for key, check in zip(keys[part], checks[part].tolist(), strict=True)
            ]
            vectors = rows.vectors[part].tolist()
            batch = models.Batch(ids=points_of(keys[part]), vectors=vectors, payloads=payloads)
            self._ask("upsert", self._at(rows.version), batch, wait=True)

    def _remove(self, version: int, ids: pa.Array) -> None:
        announced = False
        # Delete only ids that exist: the local mode writes to disk for every id.
        for held in self._retrieved(version, ids, with_payload=False, with_vectors=False):
            if not announced:
                # Readers compare it: see `read_consistently`.
                self._set_fields({"moved": uuid4().hex})
                announced = True
            chosen = models.PointIdsList(points=[point.id for point in held])
            self._ask("delete", self._at(version), chosen, wait=True)

    def _get(self, version: int, ids: pa.Array) -> Iterator[tuple[Rows, Checks]]:
        for points in self._retrieved(version, ids, **WHOLE):
            yield self._block(version, points)

    def _retrieved(self, version: int, ids: pa.Array, **asked: bool) -> Iterator[Sequence[Any]]:
        """Yield the points of the ids that a space has, in non-empty blocks."""
        for keys in blocks_of(points_of(ids.to_pylist()), POINTS):
            points = self._ask("retrieve", self._at(version), keys, **asked)
            if points:
                yield points

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        for points in self._connection.pages(self._at(version), min(size, POINTS), size, **WHOLE):
            yield self._block(version, points)

    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        among = None
        exact = exact or (ids is not None and len(ids) <= LOOKED_UP)
        if ids is not None:
            points = points_of(ids.to_pylist())
            among = models.Filter(must=[models.HasIdCondition(has_id=points)])
        # If the user quantized the collection, scores are still of the full vectors.
        codes = models.QuantizationSearchParams(ignore=exact, rescore=True)
        request = {
            "limit": k,
            "filter": among,
            "params": {"hnsw_ef": max(LOOKED_AT, k), "exact": exact, "quantization": codes},
            "with_payload": ["id"],
        }
        # Every request repeats the ids.
        step = len(queries) if ids is None else 100_000 // max(1, len(ids))
        results = []
        for found in self._connection.search(self._at(version), queries, max(1, step), **request):
            keys = pa.array([point.payload["id"] for point in found], self.id_type)
            results.append((keys, np.array([point.score for point in found], dtype=np.float32)))
        return results

    def _at(self, version: int) -> str:
        return f"{self._name}-v{version}"

    def _block(self, version: int, points: Sequence[Any]) -> tuple[Rows, Checks]:
        with errors_as_store_errors(self.address, REMEDY):
            keys = pa.array([point.payload["id"] for point in points], self.id_type)
            vectors = np.array([point.vector for point in points], dtype=np.float32)
            checks = np.array([point.payload["check"] for point in points]).astype(np.uint32)
        return Rows(version, keys, vectors), checks


POINT = "point"  # `id=point` in an address: use the points' ids
# Qdrant reads other field names as paths into the payload.
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
# For each distance, the metrics that Qdrant can search by. Under Cosine vectors have length 1 or 0,
# so inner product and cosine give the same order.
COMPUTED = {"Dot": ("ip",), "Cosine": ("ip", "cosine"), "Euclid": ("l2",)}
# Tolerance of length 1 under Cosine, and relative tolerance of stored vectors.
UNIT = 1e-3
EXACT = 2**53  # Qdrant compares bounds as doubles, which hold integers up to this one


class AdoptedCollection(AdoptedStore):
    kind: ClassVar[str] = "qdrant-collection"
    _connection: QdrantConnection
    keys: ClassVar[tuple[str, ...]] = ("collection", "id", "filter")

    # None until a point has been read.
    _kind_of_id: pa.DataType | None = None

    def _connect(self) -> None:
        names, place, folder = self._names, self._place, folder_of(self._place)
        if not _PLAIN.fullmatch(names.id or POINT):
            raise DataError(
                f"Ids cannot be read from the field {names.id!r}; name a field of the payload "
                "itself, of ASCII letters, digits, _ and -."
            )
        if "" in names.vectors.values() and len(names.vectors) > 1:
            raise DataError("A collection with a vector without a name, v0=, has no other vector.")
        if folder is not None and not (folder / "meta.json").exists():
            raise DataError(
                f"There is no folder {place} of Qdrant's local mode; give the folder of your "
                "collections, or the URL of a server."
            )
        self._name, self._remote = names.table, folder is None
        self._field = None if names.id in (None, POINT) else names.id
        self._payload: Any = False if self._field is None else [self._field]
        self._connection = QdrantConnection(place, self.address, create=False)
        self._ask = self._connection.ask

    def _look(self) -> TableFacts:
        try:
            params = self._ask("get_collection", self._name).config.params
        except StoreError:
            there = sorted(one.name for one in self._ask("get_collections").collections)
            if self._name in there:
                raise
            raise DataError(
                f"There is no collection {self._name!r} at {self._place}; it has "
                f"{', '.join(there) or 'none'}."
            ) from None
        vectors = params.vectors or {}
        by_name = vectors if isinstance(vectors, dict) else {"": vectors}
        dims: dict[int, int] = {}
        distances = {}
        for version, name in self._wanted(by_name).items():
            if name not in by_name:
                has = [f"{own!r}" if own else "one without a name, v0=" for own in sorted(by_name)]
                raise StoreError(
                    f"{self.address} names the vector {name!r}, which the collection does not "
                    f"have; it has {', '.join(has) or 'none'}."
                )
            dims[version] = int(by_name[name].size)
            distance = by_name[name].distance
            distances[name] = str(getattr(distance, "value", distance))
            if by_name[name].multivector_config is not None or distances[name] not in COMPUTED:
                raise StoreError(
                    f"The vector {name!r} of {self.address} must be one vector a point, of the "
                    "distance Dot, Cosine or Euclid."
                )
        if self._kind_of_id is None:
            first = next(self._pages(self._of(None), [], 1), None)
            key = None if first is None else self._id_of(first[0])
            if isinstance(key, bool) or not isinstance(key, (int, str)):
                raise StoreError(
                    f"{self.address} has no point yet whose {self._field or 'id'!r} is a whole "
                    f"number or a text, as ids are (one is {str(key)[:40]}); write its points "
                    "first, or name another field."
                )
            self._kind_of_id = ID_TYPES["int64" if isinstance(key, int) else "string"]
        return TableFacts(self._kind_of_id, dims, distances)

    def _filter_of(self, conditions: list[Condition]) -> Any:
        return models.Filter(must=[_condition(one) for one in conditions])

    def _distance_of(self, version: int) -> str:
        return str(self._known.types[self._names.vectors[version]])

    def computes(self, metric: str, version: int) -> bool:
        return metric in COMPUTED[self._distance_of(version)]

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        # The local mode locks out other threads. A server has no snapshots, but versions are read
        # from oldest to newest, so a row that gets a newer vector meanwhile is found at least once.
        with nullcontext() if self._remote else self._connection.writing:
            self._facts()
            return work(self._at_this_moment())

    def _rows(
        self, version: int, ids: pa.Array | None, size: int, *, own: bool = True
    ) -> Iterator[Rows]:
        name = self._names.vectors[version]
        for among in self._among(ids):
            for page in self._pages(self._of(version, among, own), [name], size):
                yield self._block(version, page)

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        blocks = super()._read(ids)
        found = joined_ids([rows.ids for rows, _ in blocks], self.id_type)
        missing = ids.filter(pc.invert(pc.is_in(ids, value_set=found)))
        # A server has no snapshots: a row that loses its newest vector is found the second time.
        again = self._is_moment and self._remote and len(missing) > 0
        return blocks + super()._read(missing) if again else blocks

    def _count(self, version: int) -> int:
        condition = self._of(version)
        return int(self._ask("count", self._name, count_filter=condition, exact=True).count)

    def _has_rows(self, version: int) -> bool:
        return next(self._pages(self._of(version), [], 1), None) is not None

    def _by_database(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits]:
        name = self._names.vectors[version]
        best: list[list[Hits]] = [[] for _ in queries]
        for among in self._among(ids):
            request = {
                "using": name or None,
                "filter": self._of(version, among),
                # Quantized vectors are ignored, too.
                "params": {"exact": True, "quantization": {"ignore": True}},
                "limit": k,
                "with_payload": self._payload,
                "with_vector": _asked([name]),
            }
            # Every request repeats the filter, which may list many ids.
            found = self._connection.search(self._name, queries, 10, **request)
            for i, points in enumerate(found):
                rows = self._block(version, points)
                self._verify(rows, NO_CHECKS)
                # Scores are computed here from the vectors, in full precision.
                best[i] += best_by(metric, queries[i : i + 1], k, [rows], version, self.id_type)
        return [merge_hits(hits or [joined_hits([], self.id_type)], k) for hits in best]

    def bare_ids(self) -> Iterator[pa.Array]:
        self._facts()
        for page in self._pages(self._of(BARE), [], IDS):
            yield pa.array([self._id_of(point) for point in page], self.id_type)

    def begin(self, space: Space, side: str = "") -> None:
        name, dim, facts = self._names.vectors[space.version], space.dim, self._facts()
        if space.version in facts.dims:
            return
        distance = next(reversed(facts.types.values()), "Dot")
        config = models.DenseVectorConfig(size=dim, distance=models.Distance(distance))
        named = models.DenseVectorNameConfig(dense=config)
        try:
            self._ask("create_vector_name", self._name, name, named, wait=True)
        except StoreError as error:
            raise StoreError(
                f"The vector {name!r} cannot be added to {self.address} ({error}) Qdrant 1.18 and "
                "later can; else copy the points to a new collection that has a vector of this "
                f"name, of {dim} dims and distance {distance}, and give that one's address."
            ) from None
        # A process killed before this leaves an empty vector that `_drop_column` keeps.
        self._note(space.version, None)

    def refresh(self, rows: Rows, saved: Store | None = None) -> None:
        with self._connection.writing:
            rows, name = self._without_vector(rows), self._names.vectors[rows.version]
            lengths = np.linalg.norm(rows.vectors.astype(np.float64), axis=1)
            unit = np.allclose(lengths, 1, rtol=0, atol=UNIT)
            if self._distance_of(rows.version) == "Cosine" and not unit:
                raise DataError(
                    f"Vectors of version {rows.version} are not of length 1, and Qdrant would make "
                    f"them so in {name!r} of {self.address}, which has the distance Cosine; add a "
                    "vector of distance Dot to the collection, and name that."
                )
            if not len(rows):
                return
            self._note(rows.version, rows.ids)
            # A vector that another program wrote first stays.
            empty = models.Filter(must_not=[models.HasVectorCondition(has_vector=name)])
            places = {key: place for place, key in enumerate(rows.ids.to_pylist())}
            written = [
                models.PointVectors(id=point, vector={name: rows.vectors[places[key]].tolist()})
                for point, key in self._points(rows.ids)
            ]
            for some in blocks_of(written, max(1, min(POINTS, FLOATS // rows.vectors.shape[1]))):
                self._ask("update_vectors", self._name, some, wait=True, update_filter=empty)

    def journal(self, version: int) -> list[tuple[int, pa.Array]]:
        notes = self._notes(version)
        return [(number, pa.array(ids, self.id_type)) for number, ids in notes if ids is not None]

    def clear_cells(self, number: int, rows: Rows) -> None:
        with self._connection.writing:
            ids = unchanged(self._stored_rows(rows), rows, UNIT)
            points = [point for point, _ in self._points(ids)]
            for some in blocks_of(points, POINTS):
                name = self._names.vectors[rows.version]
                self._ask("delete_vectors", self._name, [name], some, wait=True)
            self._ask("delete", self._journal_name, [number], wait=True)

    def _drop_column(self, version: int) -> None:
        with self._connection.writing:
            notes, name = self._notes(version), self._names.vectors[version]
            added = version in self._facts().dims and any(ids is None for _, ids in notes)
            filled = models.Filter(must=[models.HasVectorCondition(has_vector=name)])
            if added and not self._ask("count", self._name, count_filter=filled).count:
                self._ask("delete_vector_name", self._name, name, wait=True)
            if notes and version not in self._facts().dims:
                self._ask("delete", self._journal_name, [number for number, _ in notes], wait=True)
            there = self._ask("collection_exists", self._journal_name)
            if there and not self._ask("count", self._journal_name).count:
                self._ask("delete_collection", self._journal_name)

    def _note(self, version: int, ids: pa.Array | None) -> None:
        """Write ids to the journal; None records that the column was added."""
        if not self._ask("collection_exists", self._journal_name):
            self._ask("create_collection", self._journal_name, vectors_config={})
        held = None if ids is None else ids.to_pylist()
        payload = {"vector": self._names.vectors[version], "ids": held}
        point = models.PointStruct(id=time.time_ns(), vector={}, payload=payload)
        self._ask("upsert", self._journal_name, [point], wait=True)

    def _notes(self, version: int) -> list[tuple[int, list[Any] | None]]:
        if not self._ask("collection_exists", self._journal_name):
            return []
        match = models.MatchValue(value=self._names.vectors[version])
        where = models.Filter(must=[models.FieldCondition(key="vector", match=match)])
        pages = self._connection.pages(self._journal_name, 10, IDS, scroll_filter=where)
        return [(point.id, point.payload["ids"]) for page in pages for point in page]

    def _points(self, ids: pa.Array) -> list[tuple[Any, Any]]:
        """Return (point id, id) for each of the ids that exists."""
        return [
            (point.id, self._id_of(point))
            for among in self._among(ids)
            for page in self._pages(self._of(None, among), [], IDS)
            for point in page
        ]

    def _pages(self, condition: Any, vectors: Sequence[str], size: int) -> Iterator[list[Any]]:
        """Yield the points that meet a condition, with these vectors, at most `size` at once."""
        limit = min(size, POINTS if vectors else IDS)
        asked = {"with_payload": self._payload, "with_vectors": _asked(vectors)}
        return self._connection.pages(self._name, limit, size, scroll_filter=condition, **asked)

    def _block(self, version: int, points: Sequence[Any]) -> Rows:
        name, dim = self._names.vectors[version], self._known.dims[version]
        try:
            keys = pa.array([self._id_of(point) for point in points], self.id_type)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise IntegrityError(
                f"The ids of {self.address} must all be whole numbers of at most 63 bits, or all "
                f"be texts ({error}): keep ids of one type in a field, and name it by id=FIELD."
            ) from None
        vectors: list[Any] = [point.vector for point in points]
        if name:
            vectors = [one.get(name) if isinstance(one, dict) else None for one in vectors]
        if any(not isinstance(vector, list) or len(vector) != dim for vector in vectors):
            raise IntegrityError(
                f"A vector {name!r} of {self.address} does not have {dim} dims, as the collection "
                "says; write it again."
            )
        with np.errstate(over="ignore"):
            block = np.array(vectors, dtype=np.float32).reshape(len(vectors), dim)
        if self._distance_of(version) == "Cosine":
            # A server normalizes vectors when written; the local mode only at the first search.
            lengths = np.linalg.norm(block.astype(np.float64), axis=1, keepdims=True)
            block = (block / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        return Rows(version, keys, block)

    def _id_of(self, point: Any) -> Any:
        return point.id if self._field is None else (point.payload or {}).get(self._field)

    def _among(self, ids: pa.Array | None) -> Iterator[Any]:
        """Yield conditions for the ids, or None for all rows."""
        if ids is None:
            yield None
            return
        keys: list[Any] = ids.to_pylist()
        if self._field is None:
            number = pa.types.is_integer(ids.type)
            keys = [key for key in keys if key >= 0] if number else canonical_uuids(keys)
        for some in blocks_of(keys, IDS):
            if self._field is None:
                yield models.HasIdCondition(has_id=some)
            else:
                yield models.FieldCondition(key=self._field, match=models.MatchAny(any=some))

    def _of(self, version: int | None, among: Any = None, own: bool = True) -> Any:
        """Return the filter for a version's rows, or for all versions' if None; without `own`, for
        all rows with the version's vector."""
        must: list[Any] = [one for one in (among, self._chosen) if one is not None]
        must_not: list[Any] = []
        if self._field is not None:
            must_not.append(models.IsEmptyCondition(is_empty=models.PayloadField(key=self._field)))
        for name, there in () if version is None else self._conditions_on(version, own):
            (must if there else must_not).append(models.HasVectorCondition(has_vector=name))
        return models.Filter(must=must, must_not=must_not)


def _asked(vectors: Sequence[str]) -> bool | list[str]:
    """Return Qdrant's `with_vectors`: names, True for the unnamed vector, or False for none."""
    return True if "" in vectors else list(vectors) or False


def _condition(condition: Condition) -> Any:
    def of_field(**test: Any) -> Any:
        return models.FieldCondition(key=condition.field, **test)

    values: list[Any] = list(condition.values)
    sort, operator = type_of(condition), condition.operator
    if operator != "in":
        if sort == "text":
            moment = moment_of(condition, values[0], "times and numbers")
            return of_field(range=models.DatetimeRange(**{operator: moment}))
        if sort == "number" and not (isinstance(values[0], int) and abs(values[0]) > EXACT):
            return of_field(range=models.Range(**{operator: values[0]}))
        raise DataError(
            f"A bound of field {condition.field[:80]!r} is {str(values[0])[:40]}; Qdrant orders "
            "doubles and times alone: give a number, a whole one of at most 2**53."
        )
    if sort == "text":
        return of_field(match=models.MatchAny(any=values))
    # MatchValue matches integers with integers only; as a range, 3 equals 3.0.
    equal = [
        of_field(match=models.MatchValue(value=v))
        if sort == "boolean" or (isinstance(v, int) and abs(v) > EXACT)
        else of_field(range=models.Range(gte=v, lte=v))
        for v in values
    ]
    return models.Filter(should=equal)


def folder_of(place: str) -> Path | None:
    """Return the folder, or None for a server's URL. Raises: DataError: the URL is wrong; the
    message does not quote it, because it may hold a key."""
    if "://" not in place:
        return Path(place).resolve()
    if not place.startswith(("http://", "https://")) or set("@?") & set(place):
        raise DataError(
            "A server of Qdrant has an http or https URL without a user, a password or a key; a "
            f"key is given in the environment, as {KEY}."
        )
    return None


def points_of(keys: Sequence[int | str]) -> list[Any]:
    """Return the point ids of rows: a UUID derived from each row's id."""
    return [str(uuid5(NAMESPACE, str(key))) for key in keys]


def blocks_of(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


class QdrantConnection:
    """One store's connection to a server, or to a folder in the local mode. Raises: DataError: the
    folder does not exist. StoreError: it cannot be opened, say because another process has."""

    # Qdrant allows one client per folder, so the stores in a folder share it.
    _living: ClassVar[WeakValueDictionary[Path, LocalClient]] = WeakValueDictionary()
    _opening: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, place: str, shown: str, create: bool) -> None:
        self._shown = shown
        self._closed = False
        # The writers' lock of this store, or of all stores in the folder.
        self.writing: threading.RLock = threading.RLock()
        self._folder = folder_of(place)
        if self._folder is None:
            with errors_as_store_errors(self._shown, REMEDY):
                # The check only warns if the server does not answer.
                self._client = QdrantClient(
                    url=place,
                    api_key=os.environ.get(KEY) or None,
                    timeout=TIMEOUT,
                    check_compatibility=False,
                )
            return
        if not create and not (self._folder / "meta.json").exists():
            raise no_store(shown)
        with self._opening, errors_as_store_errors(self._shown, REMEDY):
            local = self._living.get(self._folder)
            if local is None or not local.users:
                local = self._living[self._folder] = LocalClient(self._folder)
            local.users += 1
        self._local, self._client, self.writing = local, local.client, local.turn

    def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the result of a client method, retried once if the connection was lost, say by a
        restart. Raises: StoreError: the server answers with an error, or not at all."""
        if self._closed:
            raise was_closed(self._shown)
        call = getattr(self._client, method)
        with errors_as_store_errors(self._shown, REMEDY):
            if self._folder is not None:
                # Filtering warnings costs a tenth of a small search, and only upserts warn.
                with self.writing, _without_advice() if method == "upsert" else nullcontext():
                    return call(*args, **options)
            try:
                return call(*args, **options)
            except ResponseHandlingException as error:
                if "timed out" in str(error):
                    raise
                return call(*args, **options)

    def pages(
        self, collection: str, remote_limit: int, local_limit: int, **options: Any
    ) -> Iterator[list[Any]]:
        """Yield the points of a scroll in pages of at most the limit for this kind of client."""
        offset = None
        # The local mode sorts all ids for every page.
        limit = remote_limit if self._folder is None else local_limit
        while True:
            points, offset = self.ask("scroll", collection, limit=limit, offset=offset, **options)
            if points:
                yield points
            if offset is None:
                return

    def search(
        self, collection: str, queries: Floats, at_once: int, **request: Any
    ) -> Iterator[Sequence[Any]]:
        """Yield the points found for each query of [Q, D]."""
        if self._folder is not None:
            # The local mode always searches exactly, and warns about parameters.
            request["params"] = None
        requests = [models.QueryRequest(query=query, **request) for query in queries.tolist()]
        for some in blocks_of(requests, at_once):
            for answer in self.ask("query_batch_points", collection, some):
                yield answer.points

    def close(self) -> None:
        """Close the client with its last store; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._folder is None:
            self._client.close()
            return
        with self._opening:
            self._local.users -= 1
            if not self._local.users:
                self._client.close()


class LocalClient:
    """The client of a folder, and the number of stores that use it."""

    def __init__(self, folder: Path) -> None:
        # The local mode is not thread-safe: one thread at a time.
        self.turn: threading.RLock = threading.RLock()
        self.users = 0
        with _without_advice():
            # Under the lock, SQLite may be used from any thread.
            self.client = QdrantClient(path=str(folder), force_disable_check_same_thread=True)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silence the advice, from 20,000 points on, to use a server; our documents give it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Local mode is not recommended")
        yield
