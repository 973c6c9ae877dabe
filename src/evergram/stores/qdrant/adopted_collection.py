"""A collection of somebody's own in Qdrant, with a named vector for each version, read where it
is.

A point belongs to the newest version whose vector it has. A search by the distance that Qdrant
keeps for a vector is Qdrant's, exact and without its graph; `computes` says which, and others are
by reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.adopted_scores import best_by
from evergram.stores.adopted_store import NO_CHECKS, AdoptedStore, read_only
from evergram.stores.filters import Filter
from evergram.stores.qdrant.collection_facts import (
    CollectionAddress,
    VectorFacts,
    read_collection_address,
    read_vector_facts,
)
from evergram.stores.qdrant.own_points import OwnPoints
from evergram.stores.qdrant.qdrant_connection import QdrantConnection
from evergram.stores.qdrant.qdrant_filter import filter_of
from evergram.stores.store import (
    ID_TYPES,
    Checks,
    Floats,
    Hits,
    Rows,
    Space,
    StoreView,
    merge_hits,
)

T = TypeVar("T")

# By the distance of a vector, the metrics by which Qdrant orders its rows as a comparison of all
# would. Vectors under Cosine have length 1, or 0, so the order by inner product is that by cosine.
COMPUTED = {"Dot": ("ip",), "Cosine": ("ip", "cosine"), "Euclid": ("l2",)}
# Ids in one request.
LOOKED_UP = 10_000
# So often something is read again because rows came to a version that had none.
LOOKS = 10


class AdoptedCollection(AdoptedStore):
    kind: ClassVar[str] = "qdrant-collection"

    def __init__(self, address: CollectionAddress) -> None:
        super().__init__()
        self._at = address
        self._filter: Any = None
        # Of a view; None where each call asks.
        self._known: dict[int, VectorFacts] | None = None
        self._connection = QdrantConnection(address.place, address.shown, create=False)
        self._ask = self._connection.ask
        try:
            self._facts()
            self._points = OwnPoints(self._connection, address)
            self._id_type = ID_TYPES[self._points.read_id_type()]
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`. The key of a server is in the environment, as QDRANT_API_KEY.

        Raises: StoreError: it shall be created, and so written.
        """
        read = read_collection_address(address)
        if create is not None:
            raise read_only(read.shown)
        if not read.remote and not (Path(read.place) / "meta.json").exists():
            raise DataError(
                f"There is no folder {read.place} of Qdrant's local mode; give the folder of your "
                "collections, or the URL of a server."
            )
        return cls(read)

    @property
    def address(self) -> str:
        return self._at.shown

    @property
    def place(self) -> str:
        return self._at.resolved

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    def computes(self, metric: str, version: int) -> bool:
        return metric in COMPUTED[self._facts()[version].distance]

    def remark(self, version: int) -> str:
        if self._facts()[version].distance != "Cosine":
            return ""
        return (
            " Qdrant brings vectors of the distance Cosine to length 1 when they are written: if "
            "those that were published have other lengths, their lengths are lost in the "
            "collection. Publish vectors of length 1, or keep them under Dot or Euclid."
        )

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        """Return what `work` returns, once no version got its first row meanwhile.

        Qdrant has no view of one moment. Versions are read from the oldest to the newest, so a row
        that gets a newer vector meanwhile is in one of them, or in both and returned once.
        """
        for _ in range(LOOKS):
            with self._turn():
                view = copy(self)
                view._known = self._facts()
                before = view.filled().keys()
                result = work(view)
                if view.filled().keys() <= before:
                    return result
        raise StoreError(
            f"Versions of {self.address} got their first rows each of the {LOOKS} times that it "
            "was read; try again."
        )

    def where(self, conditions: Filter) -> Self:
        view = copy(self)
        view._filter = filter_of(conditions, self._at.filters)
        return view

    def spaces(self) -> dict[int, Space]:
        return {version: Space(version, one.dim, "") for version, one in self._facts().items()}

    def filled(self) -> dict[int, Space]:
        return {version: space for version, space in self.spaces().items() if self._any(version)}

    def count(self) -> dict[int, int]:
        counts = {
            version: self._ask(
                "count", self._at.collection, count_filter=self._own(version), exact=True
            ).count
            for version in self._at.vectors
        }
        return {version: rows for version, rows in counts.items() if rows}

    def close(self) -> None:
        self._connection.close()

    def column_rows(self, version: int, ids: pa.Array | None, size: int) -> Rows:
        points: list[Any] = []
        for among in self._points.among(ids, LOOKED_UP):
            condition = self._points.having(self._at.vectors[version], among)
            points += self._points.scroll(condition, [self._at.vectors[version]], size, pages=1)
        return self._rows(version, points[:size])

    def nearest_by(
        self, metric: str, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[Hits]:
        self.require(version)
        nothing = Hits(pa.array([], self._id_type), np.zeros(0, np.float32), np.zeros(0, np.int64))
        best = [nothing] * len(queries)
        for among in self._points.among(ids, LOOKED_UP):
            condition = self._own(version, among)
            answers = self._points.nearest(condition, self._at.vectors[version], queries, k)
            for i, points in enumerate(answers):
                rows = self._rows(version, points)
                self._verify(rows, NO_CHECKS)
                # Scores are of the vectors themselves, to the last digit.
                (hits,) = best_by(metric, queries[i : i + 1], k, [rows], version, self._id_type)
                best[i] = merge_hits([best[i], hits], k)
        return best

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        if not self.computes("ip", version):
            blocks = self._scan(version, LOOKED_UP) if ids is None else self._read(ids)
            rows = (block for block, _ in blocks if block.version == version)
            hits = best_by("ip", queries, k, rows, version, self._id_type)
        else:
            hits = self.nearest_by("ip", version, queries, k, ids)
        return [(one.ids, one.scores) for one in hits]

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        points: dict[int, list[Any]] = {version: [] for version in self._at.vectors}
        names = list(self._at.vectors.values())
        for among in self._points.among(ids, LOOKED_UP):
            # All vectors of a point are read at once, so that it is in one version.
            for point in self._points.scroll(self._points.having(None, among, self._filter), names):
                version = self._points.version_of(point)
                if version is not None:
                    points[version].append(point)
        blocks = []
        for version, some in points.items():
            if some:
                self.require(version)
                blocks.append((self._rows(version, some), NO_CHECKS))
        return blocks

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        self.require(version)
        name = self._at.vectors[version]
        for page in self._points.pages(self._own(version), [name], size):
            yield self._rows(version, page), NO_CHECKS

    def _rows(self, version: int, points: Sequence[Any]) -> Rows:
        facts = self._facts()[version]
        dim = facts.dim
        keys = pa.array([self._points.id_of(point) for point in points], self._id_type)
        self.refuse_twice_in(keys)
        name = self._at.vectors[version]
        vectors = [self._points.vector_of(point, name) for point in points]
        if any(vector is None or len(vector) != dim for vector in vectors):
            raise IntegrityError(
                f"A vector {name!r} of {self.address} does not have {dim} dims, as the collection "
                "says; write it again."
            )
        with np.errstate(over="ignore"):
            block = np.array(vectors, dtype=np.float32).reshape(len(vectors), dim)
        return Rows(version, keys, _unit(block) if facts.distance == "Cosine" else block)

    def _own(self, version: int, among: Any = None) -> Any:
        """Return the filter for the rows of a version that the filter of this view leaves."""
        later = [name for one, name in self._at.vectors.items() if one > version]
        return self._points.having(self._at.vectors[version], among, self._filter, later)

    def _any(self, version: int) -> bool:
        return bool(self._points.scroll(self._own(version), [], 1, pages=1))

    def _facts(self) -> dict[int, VectorFacts]:
        if self._known is not None:
            return self._known
        return read_vector_facts(self._ask, self._at)

    def _turn(self) -> AbstractContextManager[object]:
        """In the local mode, keep the other threads of the process from writing."""
        return nullcontext() if self._at.remote else self._connection.writing


def _unit(vectors: Floats) -> Floats:
    """Return vectors with length 1. A server has brought those of a Cosine collection to it; the
    local mode returns them as they were written until they are first searched."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
