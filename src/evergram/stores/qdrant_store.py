"""A store in Qdrant: a collection for each space, and a small one, its record, that names them.

A point's id is derived from the row's, which may be any int64 or text; the row's own id and its
checksum are in the payload.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from uuid import UUID, uuid4, uuid5
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, StoreError
from evergram.stores.open_store import is_url
from evergram.stores.rows import Checks, Floats, Rows, Space
from evergram.stores.store import (
    ReadableStore,
    errors_as_store_errors,
    no_store,
    not_ours,
    was_closed,
)
from evergram.stores.table_per_version import (
    FORMAT,
    StoreRecord,
    TablePerVersionStore,
    parse_record,
)

try:
    from qdrant_client import QdrantClient, models
    from qdrant_client.http.exceptions import ResponseHandlingException
except ImportError as error:
    raise DataError(
        "A store in Qdrant needs qdrant-client: pip install 'evergram[qdrant]'."
    ) from error

T = TypeVar("T")

KEY = "QDRANT_API_KEY"
TIMEOUT = 10  # seconds a request
# The most points, and floats, of a request: a server takes 32 MB.
POINTS, FLOATS = 1_000, 500_000
# A search among so few ids is exact.
LOOKED_UP = 10_000
# Attempts to read while rows move.
LOOKS = 10
# Every point's id is made with it, so it never changes.
NAMESPACE = UUID("6f0d3a52-6f4e-5c0b-9a3c-0e2f9b1c7d84")
INDEXING = 3_600.0  # seconds that a server may take
UNFINISHED, FAILED = "yellow", "red"
# The least points that a search of the graph looks at.
LOOKED_AT = 128


class QdrantStore(TablePerVersionStore):
    kind: ClassVar[str] = "qdrant"
    form: ClassVar[str] = "qdrant:http://HOST:6333#NAME or qdrant:DIR#NAME"

    # The payload of the record that a view of one moment has; None where each call asks.
    _moment: dict[str, Any] | None = None

    @classmethod
    def _check_place(cls, place: str) -> None:
        if ("://" in place and not is_url(place)) or (is_url(place) and set("@?") & set(place)):
            raise DataError(
                f"A store in Qdrant is at {cls.form}; a key is not part of the address but of the "
                f"environment, as {KEY}."
            )

    @property
    def place(self) -> str:
        return self.address if self._remote else super().place

    def _connect(self, create: str | None) -> None:
        self._remote = is_url(self._place)
        self._connection = QdrantConnection(self._place, self.address, create is not None)
        self._ask = self._connection.ask

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        for look in range(LOOKS):
            # The local mode does one thing at a time anyway; a server's writers are made to wait
            # only by a reader whose first attempts have failed.
            locked = not self._remote or look > LOOKS // 2
            with self._writing() if locked else nullcontext():
                view = copy(self)
                view._moment = before = self._payload() or {}
                result = work(view)
                # A row leaves a space only after it is in the other one and the token has changed;
                # so where the token is the same, no row was in neither.
                if (self._payload() or {}).get("moved") == before.get("moved"):
                    return result
        raise StoreError(
            f"Rows of {self.address} were moved to other versions by another process each of the "
            f"{LOOKS} times that it was read; wait until that is done, and try again."
        )

    def filled(self) -> dict[int, Space]:
        # Without a filter an inexact count is a sum over segments, and 0 only where there is none.
        spaces = self.spaces()
        return {v: spaces[v] for v in spaces if self._ask("count", self._at(v), exact=False).count}

    def _count(self, version: int) -> int:
        return int(self._ask("count", self._at(version), exact=True).count)

    def build_index(self) -> list[int]:
        """Wait until a server has indexed by itself; the local mode has no index. Raises:
        StoreError: it takes too long, or fails."""
        spaces = list(self.spaces()) if self._remote else []
        for version in spaces:
            until = time.monotonic() + INDEXING
            while (status := self._status(version)) == UNFINISHED:
                if time.monotonic() > until:
                    raise StoreError(f"{self.address} is still indexing after {INDEXING:.0f} s.")
                time.sleep(0.5)
            if status == FAILED:
                raise StoreError(
                    f"The server of {self.address} could not index: see its log, and try again."
                )
        return spaces

    def _status(self, version: int) -> str:
        return str(self._ask("get_collection", self._at(version)).status.value)

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _writing(self) -> Iterator[Self]:
        with self._connection.writing:
            yield self

    def _payload(self) -> dict[str, Any] | None:
        """Return the record: each space under a key of its own, and `moved`, a token that changes
        whenever rows are about to leave a space."""
        if self._moment is not None:
            return self._moment
        if not self._ask("collection_exists", self._name):
            return None
        points = self._ask("retrieve", self._name, [0], with_payload=True)
        return (points[0].payload or {}) if points else None

    def _found(self) -> StoreRecord | None:
        payload = self._payload()
        return None if payload is None else parse_record(lambda: payload, self.address)

    def _save(self, record: StoreRecord) -> None:
        facts, held = record.as_json(), self._payload()
        if held is None:
            self._make(self._name, 1)
            # Another process may have been quicker, and have added a space since.
            held = self._payload()
        if held is None:
            point = models.PointStruct(id=0, vector=[0.0], payload=facts)
            self._ask("upsert", self._name, [point], wait=True)
            return
        # What is there stays, and another process may set the side meanwhile.
        new = [key for key in facts if held.get(key) is None and facts[key] is not None]
        self._set_fields({key: facts[key] for key in new})

    def _set_fields(self, fields: dict[str, Any]) -> None:
        """Set some fields of the record; the others stay."""
        self._ask("set_payload", self._name, {"format_version": FORMAT, **fields}, [0], wait=True)

    def _make(self, collection: str, dim: int) -> None:
        if self._ask("collection_exists", collection):
            return
        shape = models.VectorParams(size=dim, distance=models.Distance.DOT)
        try:
            self._ask("create_collection", collection, vectors_config=shape)
        except StoreError:
            # Another process was quicker, or the first of two attempts had succeeded.
            if not self._ask("collection_exists", collection):
                raise

    def _refuse_others(self) -> None:
        self._refuse_filled(self._name)

    def _refuse_filled(self, collection: str) -> bool:
        """Return whether there is a collection. Raises: StoreError: it has points that this store
        did not write."""
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
        at, keys = self._at(rows.version), rows.ids.to_pylist()
        step = max(1, min(POINTS, FLOATS // rows.vectors.shape[1]))
        for start in range(0, len(keys), step):
            part = slice(start, start + step)
            payloads = [
                {"id": key, "check": check}
                for key, check in zip(keys[part], checks[part].tolist(), strict=True)
            ]
            vectors = rows.vectors[part].tolist()
            batch = models.Batch(ids=points_of(keys[part]), vectors=vectors, payloads=payloads)
            self._ask("upsert", at, batch, wait=True)

    def _remove(self, version: int, ids: pa.Array) -> None:
        at, announced = self._at(version), False
        for keys in blocks_of(points_of(ids.to_pylist()), POINTS):
            # The local mode writes to its disk for every id, be it there or not.
            held = self._ask("retrieve", at, keys, with_payload=False, with_vectors=False)
            if held:
                if not announced:
                    # Readers compare it: see `read_consistently`.
                    self._set_fields({"moved": uuid4().hex})
                    announced = True
                chosen = models.PointIdsList(points=[point.id for point in held])
                self._ask("delete", at, chosen, wait=True)

    def _get(self, version: int, ids: pa.Array) -> Iterator[tuple[Rows, Checks]]:
        at = self._at(version)
        for keys in blocks_of(points_of(ids.to_pylist()), POINTS):
            points = self._ask("retrieve", at, keys, with_payload=True, with_vectors=True)
            if points:
                yield self._block(version, points)

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        # The local mode sorts all ids for every page.
        limit = min(size, POINTS) if self._remote else size
        whole = {"with_payload": True, "with_vectors": True}
        for points in self._connection.pages(self._at(version), limit, **whole):
            yield self._block(version, points)

    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        at, among = self._at(version), None
        exact = exact or (ids is not None and len(ids) <= LOOKED_UP)
        if ids is not None:
            points = points_of(ids.to_pylist())
            among = models.Filter(must=[models.HasIdCondition(has_id=points)])
        # The local mode compares all in any case, and warns of parameters.
        params = None
        if self._remote:
            # If the collection was quantized, with Qdrant's own API, scores are of whole vectors.
            codes = models.QuantizationSearchParams(ignore=exact, rescore=True)
            size = max(LOOKED_AT, k)
            params = models.SearchParams(hnsw_ef=size, exact=exact, quantization=codes)
        requests = [
            models.QueryRequest(
                query=query, limit=k, filter=among, params=params, with_payload=["id"]
            )
            for query in queries.tolist()
        ]
        # Every request repeats the ids.
        step = max(1, 100_000 // max(1, 0 if ids is None else len(ids)))
        results = []
        for some in blocks_of(requests, max(1, len(requests)) if ids is None else step):
            for answer in self._ask("query_batch_points", at, some):
                keys = pa.array([point.payload["id"] for point in answer.points], self._id_type)
                scores = np.array([point.score for point in answer.points], dtype=np.float32)
                results.append((keys, scores))
        return results

    def _at(self, version: int) -> str:
        return f"{self._name}-v{version}"

    def _block(self, version: int, points: Sequence[Any]) -> tuple[Rows, Checks]:
        with self._connection.errors_as_store_errors():
            keys = pa.array([point.payload["id"] for point in points], self._id_type)
            vectors = np.array([point.vector for point in points], dtype=np.float32)
            checks = np.array([point.payload["check"] for point in points]).astype(np.uint32)
        return Rows(version, keys, vectors), checks


def points_of(keys: Sequence[int | str]) -> list[Any]:
    """Return the ids of the points of rows: a UUID made of each row's own id."""
    return [str(uuid5(NAMESPACE, str(key))) for key in keys]


def blocks_of(items: list[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


class QdrantConnection:
    """The requests of one store to a server, or to a folder in the local mode. Raises: DataError:
    there is no such folder. StoreError: it cannot be opened, say because another process has it
    open."""

    # Qdrant lets one client a process open a folder, so stores in a folder share one.
    _living: ClassVar[WeakValueDictionary[Path, LocalClient]] = WeakValueDictionary()
    _opening: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, place: str, shown: str, create: bool) -> None:
        self._shown = shown
        self._closed = False
        # A writer holds it: one at a time of this store, or of all stores in the folder.
        self.writing: threading.RLock = threading.RLock()
        self._folder = None if is_url(place) else Path(place).resolve()
        if self._folder is None:
            with self.errors_as_store_errors():
                # It asks for the server's version and only warns where nobody answers.
                self._client = QdrantClient(
                    url=place,
                    api_key=os.environ.get(KEY) or None,
                    timeout=TIMEOUT,
                    check_compatibility=False,
                )
            return
        if not create and not (self._folder / "meta.json").exists():
            raise no_store(shown)
        with self._opening, self.errors_as_store_errors():
            local = self._living.get(self._folder)
            if local is None or not local.users:
                local = self._living[self._folder] = LocalClient(self._folder)
            local.users += 1
        self._local, self._client, self.writing = local, local.client, local.turn

    def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the answer of a method of the client, which is called a second time if a server
        that was restarted has cut the connection. Raises: StoreError: none, or an error."""
        if self._closed:
            raise was_closed(self._shown)
        call = getattr(self._client, method)
        with self.errors_as_store_errors():
            if self._folder is not None:
                # Filters of warnings cost a tenth of a small search, and only writing gives advice.
                with self.writing, _without_advice() if method == "upsert" else nullcontext():
                    return call(*args, **options)
            try:
                return call(*args, **options)
            except ResponseHandlingException as error:
                if "timed out" in str(error):
                    raise
                return call(*args, **options)

    def pages(self, collection: str, limit: int, **options: Any) -> Iterator[list[Any]]:
        """Yield the points of a collection that a scroll returns, at most `limit` at once."""
        offset = None
        while True:
            points, offset = self.ask("scroll", collection, limit=limit, offset=offset, **options)
            if points:
                yield points
            if offset is None:
                return

    @contextmanager
    def errors_as_store_errors(self) -> Iterator[None]:
        """Raise every error of the client as a StoreError."""
        todo = (
            "see that the server runs at this address and is a Qdrant"
            if self._folder is None
            else "see that no other process has this folder open, or give another"
        )
        with errors_as_store_errors(self._shown, todo):
            yield

    def close(self) -> None:
        """Let go of the client, and close it after its last store; closing twice is no error."""
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
    """A client of a folder, and how many stores use it."""

    def __init__(self, folder: Path) -> None:
        # The local mode knows nothing of threads: one at a time has the turn.
        self.turn: threading.RLock = threading.RLock()
        self.users = 0
        with _without_advice():
            # Its SQLite may change threads, as only one at a time has the turn.
            self.client = QdrantClient(path=str(folder), force_disable_check_same_thread=True)


@contextmanager
def _without_advice() -> Iterator[None]:
    """From 20,000 points on the client warns that a server would be faster; so do our documents."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Local mode is not recommended")
        yield
