"""A store in Qdrant: a collection for each space, and a small one, its record, that names them.

A point's id is derived from the row's, which may be any int64 or text; the row's own id and its
checksum are in the payload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from uuid import UUID, uuid4, uuid5

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, StoreError
from evergram.stores.index_codes import FLOAT32, IndexCodes, too_few_found
from evergram.stores.qdrant.qdrant_connection import KEY, QdrantConnection, blocks_of, is_url
from evergram.stores.rows import ID_TYPES, Checks, Floats, Rows, Space
from evergram.stores.store import StoreView, checked_name, no_store, not_ours, other_id_type
from evergram.stores.table_per_version import (
    FORMAT,
    StoreRecord,
    TablePerVersionStore,
    parse_record,
)

T = TypeVar("T")

# A request has so many points, and so many floats, at most: 32 MB is what a server takes.
POINTS, FLOATS = 1_000, 500_000
# A search among so few ids is exact.
LOOKED_UP = 10_000

# So often something is read again because rows moved meanwhile.
LOOKS = 10


# Every point's id is made with it, so it never changes.
NAMESPACE = UUID("6f0d3a52-6f4e-5c0b-9a3c-0e2f9b1c7d84")
# Qdrant's float16 is a type of the vectors that are stored, so there is none of an index.
KINDS = (FLOAT32.kind, "int8", "binary")
INDEXING = 3_600.0  # seconds that a server may take
UNFINISHED, FAILED = "yellow", "red"
# A search of the graph looks at so many points at least.
LOOKED_AT = 128
# So many stored rows are the queries by which codes are measured; codes must find this share of the
# ten that the graph finds of whole vectors.
SAMPLE, NEAREST, RECALL = 100, 10, 0.95


@dataclass(frozen=True)
class QdrantRecord(StoreRecord):
    """The record of a store, its small collection.

    Args:
        moved: a token that changes whenever rows are about to leave a space.
        oversample: of the codes of each space that has codes, by version.
    """

    moved: str | None = None
    oversample: dict[int, int] = field(default_factory=dict)


class QdrantStore(TablePerVersionStore):
    kind: ClassVar[str] = "qdrant"

    # The record that a view of one moment has; None where each call asks.
    _moment: QdrantRecord | None = None

    def __init__(self, place: str, name: str, create: str | None) -> None:
        self._place = place
        self._name = name
        self._remote = is_url(place)
        self._connection = QdrantConnection(place, self.address, create is not None)
        self._ask = self._connection.ask
        try:
            self._id_type = self._begin(create)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`. The key of a server is in the environment, as QDRANT_API_KEY."""
        place, _, name = address.removeprefix("qdrant:").rpartition("#")
        foreign = "://" in place and not is_url(place)
        if not place or foreign or (is_url(place) and set("@?") & set(place)):
            raise DataError(
                "A store in Qdrant is at qdrant:http://HOST:6333#NAME or qdrant:DIR#NAME; a key "
                f"is not part of the address but of the environment, as {KEY}."
            )
        return cls(place, checked_name(name), create)

    @property
    def address(self) -> str:
        return f"qdrant:{self._place}#{self._name}"

    @property
    def place(self) -> str:
        where = self._place if self._remote else Path(self._place).resolve()
        return f"qdrant:{where}#{self._name}"

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        for look in range(LOOKS):
            # The local mode does one thing at a time anyway; a server's writers are made to wait
            # only by a reader whose first attempts have failed.
            locked = not self._remote or look > LOOKS // 2
            with self._writing() if locked else nullcontext():
                view = copy(self)
                view._moment = before = self._record()
                result = work(view)
                # A row leaves a space only after it is in the other one and the token has changed;
                # so where the token is the same, no row was in neither.
                if self._record().moved == before.moved:
                    return result
        raise StoreError(
            f"Rows of {self.address} were moved to other versions by another process each of the "
            f"{LOOKS} times that it was read; wait until that is done, and try again."
        )

    def filled(self) -> dict[int, Space]:
        # Without a filter an inexact count is a sum over segments, and 0 only where there is none.
        spaces = self.spaces()
        return {v: spaces[v] for v in spaces if self._ask("count", self._at(v), exact=False).count}

    def count(self) -> dict[int, int]:
        counts = {v: self._ask("count", self._at(v), exact=True).count for v in self.spaces()}
        return {version: count for version, count in counts.items() if count}

    def build_index(self, codes: IndexCodes = FLOAT32) -> list[int]:
        """Wait until a server has indexed, by itself, whole vectors or codes of them; the local
        mode has no index, and a version without rows none of codes. Raises: DataError: there are
        no such codes, or they find too few."""
        if self._remote:
            codes.check(KINDS, self.address)
        elif not codes.whole:
            raise DataError(
                f"{self.address} cannot build an index of {codes.kind}: it is a folder of Qdrant's "
                "local mode, which keeps whole vectors in memory and compares all of them. Run a "
                "Qdrant server and give its URL, or take another store."
            )
        # Without rows nothing tells whether codes find the best.
        spaces = list(self.spaces() if codes.whole else self.count()) if self._remote else []
        for version in spaces:
            # Searches by what is recorded are right whether or not the server has done it.
            self._record_codes(version, codes)
            self._quantize(version, codes)
            self._wait_until_indexed(version)
            share = 1.0 if codes.whole else self._share_found(version, codes.oversample)
            if share < RECALL:
                self._quantize(version, FLOAT32)
                self._record_codes(version, FLOAT32)
                raise too_few_found(codes, share, RECALL, version)
        return spaces

    def _wait_until_indexed(self, version: int) -> None:
        """Raises: StoreError: the server takes too long, or fails."""
        until = time.monotonic() + INDEXING
        while (status := self._collection(version).status.value) == UNFINISHED:
            if time.monotonic() > until:
                raise StoreError(f"{self.address} is still indexing after {INDEXING:.0f} s.")
            time.sleep(0.5)
        if status == FAILED:
            raise StoreError(
                f"The server of {self.address} could not index: see its log, and try again."
            )

    def _quantize(self, version: int, codes: IndexCodes) -> None:
        """Have a collection quantized as the codes say, with whole vectors on the disk; for whole
        vectors take both back. Raises: StoreError: the server has no such codes."""
        from qdrant_client import models

        if codes.whole and self._quantized(version) is None:
            return
        # `always_ram` is what servers of every age know.
        scalar = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
        config = {
            FLOAT32.kind: models.Disabled.DISABLED,
            "int8": models.ScalarQuantization(scalar=scalar),
            "binary": models.BinaryQuantization(
                binary=models.BinaryQuantizationConfig(always_ram=True)
            ),
        }[codes.kind]
        vectors = {"": models.VectorParamsDiff(on_disk=not codes.whole)}
        asked = {"quantization_config": config, "vectors_config": vectors}
        self._ask("update_collection", self._at(version), **asked)
        held = self._quantized(version)
        if held != (None if codes.whole else codes.kind):
            raise StoreError(
                f"The server of {self.address} was asked for an index of {codes.kind} and has one "
                f"of {held or FLOAT32.kind}; see that it is a recent Qdrant, and try again."
            )

    def _quantized(self, version: int) -> str | None:
        """Return the kind of codes that a collection has; None for whole vectors."""
        config = self._collection(version).config.quantization_config
        if config is None:
            return None
        kinds = {"scalar": "int8", "binary": "binary"}
        return next((kinds[name] for name in kinds if hasattr(config, name)), type(config).__name__)

    def _share_found(self, version: int, oversample: int) -> float:
        """Return which share of the best that the graph finds among whole vectors it finds by
        codes, with stored rows as queries."""
        from qdrant_client import models

        at, matched, wanted = self._at(version), 0, 0
        # Ids of points are hashes of the rows' ids, so the first of them are drawn by chance.
        points, _ = self._ask("scroll", at, limit=SAMPLE, with_payload=False, with_vectors=True)
        for point in points:
            requests = [
                models.QueryRequest(
                    query=point.vector, limit=NEAREST, params=search_params(NEAREST, chosen)
                )
                for chosen in (None, oversample)
            ]
            answers = self._ask("query_batch_points", at, requests)
            whole, codes = ([hit.score for hit in answer.points] for answer in answers)
            wanted += len(whole)
            # Rows with the same vector are as good as one another.
            matched += sum(score >= min(whole, default=score) for score in codes[: len(whole)])
        return matched / wanted if wanted else 0.0  # nothing measured is nothing found

    def _collection(self, version: int) -> Any:
        return self._ask("get_collection", self._at(version))

    def close(self) -> None:
        self._connection.close()

    def _writing(self) -> AbstractContextManager[object]:
        return self._connection.writing

    def _begin(self, create: str | None) -> pa.DataType:
        """Make the folder or collections that are missing, and return the type of ids."""
        from qdrant_client import models

        if create is not None:
            self._make(self._name, 1)
            if not self._ask("retrieve", self._name, [0]):
                self._refuse_filled(self._name)
                payload = {"format_version": FORMAT, "id_type": create}
                point = models.PointStruct(id=0, vector=[0.0], payload=payload)
                self._ask("upsert", self._name, [point], wait=True)
        if not self._ask("collection_exists", self._name):
            raise no_store(self.address)
        kind = self._record().id_type
        if create is not None and kind != create:
            raise other_id_type(self.address, kind, create)
        return ID_TYPES[kind]

    def _record(self) -> QdrantRecord:
        if self._moment is not None:
            return self._moment
        points, _ = self._ask("scroll", self._name, limit=100_000, with_payload=True)
        payloads = {point.id: point.payload for point in points}
        spaces = [space for key, space in payloads.items() if key != 0]
        record = parse_record(lambda: {**payloads[0], "spaces": spaces}, self.address)
        head = payloads[0]
        with self._connection.errors_as_store_errors():
            oversample = {int(v): int(n) for v, n in (head.get("oversample") or {}).items()}
        return QdrantRecord(**vars(record), moved=head.get("moved"), oversample=oversample)

    def _set_fields(self, **facts: Any) -> None:
        """Set some fields of the record; the others stay."""
        payload = {"format_version": FORMAT, **facts}
        self._ask("set_payload", self._name, payload, [0], wait=True)

    def _set_side(self, side: str) -> None:
        with self._writing():
            if self.side is None:
                self._set_fields(side=side)

    def _record_codes(self, version: int, codes: IndexCodes) -> None:
        with self._writing():
            before = self._record().oversample
            after = {**before, version: codes.oversample}
            if codes.whole:
                del after[version]
            if after != before:
                self._set_fields(oversample={str(v): n for v, n in after.items()})

    def _make(self, collection: str, dim: int) -> None:
        from qdrant_client import models

        if self._ask("collection_exists", collection):
            return
        shape = models.VectorParams(size=dim, distance=models.Distance.DOT)
        try:
            self._ask("create_collection", collection, vectors_config=shape)
        except StoreError:
            # Another process was quicker, or the first of two attempts had succeeded.
            if not self._ask("collection_exists", collection):
                raise

    def _refuse_filled(self, collection: str) -> None:
        """Refuse a collection with points that this store did not write. Raises: StoreError."""
        if self._ask("count", collection, exact=True).count:
            raise not_ours(f"collection {collection}", self.address)

    def _add_space(self, space: Space) -> None:
        from qdrant_client import models

        point = models.PointStruct(id=space.version + 1, vector=[0.0], payload=vars(space))
        with self._writing():
            if space.version not in self.spaces():
                # A collection that the record does not name was left, empty, by a killed writer.
                if self._ask("collection_exists", self._at(space.version)):
                    self._refuse_filled(self._at(space.version))
                    self._ask("delete_collection", self._at(space.version))
                self._make(self._at(space.version), space.dim)
                self._ask("upsert", self._name, [point], wait=True)

    def _put(self, rows: Rows, checks: Checks) -> None:
        from qdrant_client import models

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
        from qdrant_client import models

        at, announced = self._at(version), False
        for keys in blocks_of(points_of(ids.to_pylist()), POINTS):
            # The local mode writes to its disk for every id, be it there or not.
            held = self._ask("retrieve", at, keys, with_payload=False, with_vectors=False)
            if held:
                if not announced:
                    # Readers compare it: see `read_consistently`.
                    self._set_fields(moved=uuid4().hex)
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
        at, offset = self._at(version), None
        while True:
            points, offset = self._ask(
                "scroll", at, limit=limit, offset=offset, with_payload=True, with_vectors=True
            )
            if points:
                yield self._block(version, points)
            if offset is None:
                return

    def _held(self, version: int, ids: pa.Array) -> pa.Array:
        at = self._at(version)
        keys = ids.to_pylist()
        by_point = dict(zip(points_of(keys), keys, strict=True))
        held = []
        for some in blocks_of(list(by_point), POINTS):
            points = self._ask("retrieve", at, some, with_payload=False, with_vectors=False)
            held += [by_point[point.id] for point in points]
        return pa.array(held, self._id_type)

    def _best(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, *, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        from qdrant_client import models

        at, among = self._at(version), None
        exact = exact or (ids is not None and len(ids) <= LOOKED_UP)
        if ids is not None:
            points = points_of(ids.to_pylist())
            among = models.Filter(must=[models.HasIdCondition(has_id=points)])
        # The local mode compares all in any case, and warns of parameters.
        params = None
        if self._remote:
            params = search_params(k, self._record().oversample.get(version), exact=exact)
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


def search_params(k: int, oversample: int | None, *, exact: bool = False) -> Any:
    """Return how a server is to search for the k best.

    Args:
        oversample: of the collection's codes; None for a search by whole vectors, also where the
            server has codes.
        exact: whether to compare all points.
    """
    from qdrant_client import models

    codes = models.QuantizationSearchParams(ignore=True)
    if oversample is not None and not exact:
        # Without `rescore` scores may be those of the codes.
        codes = models.QuantizationSearchParams(
            ignore=False, rescore=True, oversampling=float(oversample)
        )
    return models.SearchParams(hnsw_ef=max(LOOKED_AT, k), exact=exact, quantization=codes)
