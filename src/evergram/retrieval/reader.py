"""Stored embeddings at any version: by id, by search, or as given vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from evergram.errors import DataError, LineageError, ShapeError, StoreError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.embedded import Embedded
from evergram.retrieval.fill import SideProgress, canary_stores, local_stores, open_stores
from evergram.retrieval.metric_search import Field, by_cosine, by_distance, by_inner_product
from evergram.retrieval.store_check import check_spaces, check_store
from evergram.retrieval.version_maps import Ways
from evergram.stores.store import Floats, Hits, Rows, Store, StoreView

Metric = Literal["ip", "l2", "cosine"]
Version = int | str | None

__all__ = ["Embedded", "Metric", "Reader", "Version", "check_spaces"]


class Reader:
    """A lineage and where its embeddings are stored, one store a side.

    Several threads may use one. Every row is answered from the version that it was embedded with,
    so a store that is only partly refreshed gives no wrong vector.

    Args:
        stores: side to the store of production's embeddings.
        canaries: side to a store of the newest version's, while that is not production: versions
            after production are read from it, and nobody else sees it.
        settled: the last version that is read from `stores`; production by default.
    Raises: IntegrityError: a store holds vectors of another lineage, or of another side.
    """

    def __init__(
        self,
        lineage: Lineage,
        stores: Mapping[str, Store],
        canaries: Mapping[str, Store] | None = None,
        settled: int | None = None,
    ) -> None:
        if not stores:
            raise LineageError(f"{lineage.path} was opened without a store to read from.")
        self.lineage = lineage
        self._stores = dict(stores)
        self._canaries = dict(canaries or {})
        self._settled = lineage.production if settled is None else settled
        self._ways = Ways(lineage)
        for side, store in (*self._stores.items(), *self._canaries.items()):
            check_store(lineage, store, side)

    @classmethod
    def open(
        cls,
        lineage: Lineage | str | Path,
        stores: Mapping[str, str] | None = None,
        progress: SideProgress | None = None,
    ) -> Reader:
        """A lineage read from stores, or from its own snapshots, which are then filled first.

        Args:
            stores: side to address, see `stores.opening`.
            progress: is told, while a snapshot is filled, its side and version, and how many rows
                are written, of how many.
        """
        found = lineage if isinstance(lineage, Lineage) else Lineage.open(lineage)
        opened = local_stores(found, progress) if stores is None else open_stores(found, stores)
        with ExitStack() as failed:
            for store in opened.values():
                failed.callback(store.close)
            reader = cls(found, opened, canary_stores(found, progress))
            failed.pop_all()
        return reader

    def carried(self, lineage: Lineage) -> Reader:
        """A reader of the lineage as it has become, on the same stores as they are.

        While these are then brought to another version, up or back, rows of both are in them. What
        is later than either production is read from the newest version's own rows until then.
        """
        from evergram.stores.open_store import open_store

        if lineage.newest != lineage.production:
            canaries = canary_stores(lineage)
        else:
            known = {m.version for m in lineage.versions}
            canaries = {}
            for side, store in self._canaries.items():
                # Another process on the folder may have removed them: the stores are then full.
                with suppress(DataError, StoreError):
                    if store.spaces().keys() <= known:
                        canaries[side] = open_store(store.address)
        stores = {side: open_store(store.address) for side, store in self._stores.items()}
        settled = min(self._settled, lineage.production)
        return Reader(lineage, stores, canaries, settled)

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(self._stores)

    @property
    def default_side(self) -> str:
        """What is meant where no side is named."""
        return "candidate" if "candidate" in self._stores else self.sides[0]

    def store(self, side: str | None = None) -> Store:
        """Raises: LineageError: there is no such side."""
        side = self.default_side if side is None else side
        if side not in self._stores:
            raise LineageError(
                f"There is no side {side!r} here; there is {' and '.join(self._stores)}."
            )
        return self._stores[side]

    def _store(self, side: str | None, target: int) -> Store:
        """Where rows for version `target` are read from."""
        store = self.store(side)
        if target <= self._settled:
            return store
        return self._canaries.get(self.default_side if side is None else side, store)

    def embed(
        self,
        ids: pa.Array | Sequence[int | str],
        version: Version = None,
        side: str | None = None,
    ) -> Embedded:
        """The embeddings of ids at a version.

        Args:
            version: a number, "v0" or a label; production's where it is None.
        Raises: UnknownVersionError, DataError: ids of another type. LineageError: no such side; a
            row of an older version, and no way forward.
        """
        target = self.lineage.resolve(version)
        store = self._store(side, target)
        asked = store.as_ids(ids)
        found = store.fetch(asked)
        if len(found) == 1 and found[0].ids.equals(asked):
            # All of them, once and in order, as it is most often.
            source = found[0].version
            sources = np.full(len(asked), source)
            return Embedded(target, asked, self._as(found[0], target), sources, source)
        vectors = np.zeros((len(asked), self.lineage.manifest(target).dim), dtype=np.float32)
        sources = np.full(len(asked), -1, dtype=np.int64)
        for rows in found:
            read = self._as(rows, target)
            places = pc.index_in(asked, value_set=rows.ids)
            mine = places.is_valid().to_numpy(zero_copy_only=False)
            vectors[mine] = read[places.drop_null().to_numpy()]
            sources[mine] = rows.version
        return Embedded(target, asked, vectors, sources)

    def search(
        self,
        queries: npt.ArrayLike,
        k: int = 10,
        version: Version = None,
        side: str | None = None,
        metric: Metric = "ip",
        ids: pa.Array | Sequence[int | str] | None = None,
    ) -> list[Hits]:
        """The k nearest stored objects to vectors of a version, on the one index of the newest.

        Args:
            queries: [Q, D_j] or [D_j], in the space of version j.
            metric: "ip", ⟨q, z̃⟩; "l2", −‖q − z̃‖²; "cosine". A larger score is nearer.
            ids: search among these alone.
        Returns: one a query.
        Raises: LineageError: the way to version j is not affine. ShapeError, DataError.
        Source: docs/method.md, "One index for all versions".
        """
        if metric not in get_args(Metric):
            raise DataError(f"There is no metric {metric!r}; there is ip, l2 and cosine.")
        if k < 1:
            raise DataError(f"k is {k}; it must be at least 1.")
        target = self.lineage.resolve(version)
        store = self._store(side, target)
        given = self._queries(queries, target)

        def search(view: StoreView) -> list[Hits]:
            fields = [
                Field(view, self._ways, v, target, self.lineage.manifest(v).dim, space.dim)
                for v, space in view.filled().items()
            ]
            if not fields:
                return [_nothing(view) for _ in given]
            return _SEARCHES[metric](fields, given, k, ids)

        # Of one moment: rows that move to another version while the spaces are searched one after
        # the other are otherwise in none of them.
        return store.read_consistently(search)

    def transform(
        self, vectors: npt.ArrayLike, source: int | str, target: int | str | None = None
    ) -> Floats:
        """Vectors [n, D_source] of one version as another reads them, [n, D_target].

        Raises: LineageError: `target` is later, and no forward map was published between them.
        """
        start, end = self.lineage.resolve(source), self.lineage.resolve(target)
        return self._ways.rows(self._queries(vectors, start), start, end)

    def close(self) -> None:
        for store in (*self._stores.values(), *self._canaries.values()):
            store.close()

    def _as(self, rows: Rows, target: int) -> Floats:
        """Stored rows, which may carry norms after their vectors, as a version reads them."""
        dim = self.lineage.manifest(rows.version).dim
        return self._ways.rows(rows.vectors[:, :dim], rows.version, target)

    def _queries(self, given: npt.ArrayLike, version: int) -> Floats:
        try:
            found = np.ascontiguousarray(given, dtype=np.float32)
        except (ValueError, TypeError):
            raise ShapeError("Vectors must be numbers, all of one length.") from None
        found = found[None] if found.ndim == 1 else found
        dim = self.lineage.manifest(version).dim
        if found.ndim != 2 or found.shape[1] != dim:
            raise ShapeError(
                f"Vectors are {list(found.shape)}; those of version {version} have dim {dim}."
            )
        flat = found.reshape(-1)
        # The sum of squares is finite only if all are, and costs a quarter of looking at each.
        with np.errstate(over="ignore", invalid="ignore"):
            quick = bool(np.isfinite(np.dot(flat, flat)))
        if not quick and not np.isfinite(found).all():
            raise DataError("A given vector is not finite.")
        return found


_SEARCHES = {"ip": by_inner_product, "l2": by_distance, "cosine": by_cosine}


def _nothing(store: StoreView) -> Hits:
    return Hits(pa.array([], store.id_type), np.zeros(0, np.float32), np.zeros(0, np.int64))
