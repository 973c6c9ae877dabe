"""The slow oracle of stores: a dictionary, and a loop over it in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from evergram.stores.store import ID_TYPES, Checks, Floats, ReadableStore, Rows, Space, Store

T = TypeVar("T")
# Rows of a version that are returned together: more come in several parts, as from databases.
PART = 100


class DictionaryStore(Store):
    kind: ClassVar[str] = "dictionary"

    def __init__(self, id_type: str = "int64", name: str = "one") -> None:
        self.address = f"dictionary:{name}"  # another for every store: a store holds one side
        self.id_type = ID_TYPES[id_type]
        self._side: str | None = None
        self._spaces: dict[int, Space] = {}
        self._rows: dict[int | str, tuple[int, Floats, int]] = {}

    @property
    def side(self) -> str | None:
        return self._side

    def read_consistently(self, work: Callable[[ReadableStore], T]) -> T:
        view = copy(self)
        view._spaces, view._rows = dict(self._spaces), dict(self._rows)
        return work(view)

    def spaces(self) -> dict[int, Space]:
        return dict(sorted(self._spaces.items()))

    def count(self) -> dict[int, int]:
        held = [version for version, _, _ in self._rows.values()]
        return {v: held.count(v) for v in sorted(set(held))}

    def build_index(self) -> list[int]:
        return []  # a loop needs none

    def close(self) -> None:
        """Nothing is open."""

    def _add_space(self, space: Space) -> None:
        self._spaces[space.version] = space

    def _set_side(self, side: str) -> None:
        self._side = side

    def _write(self, rows: Rows, checks: Checks) -> None:
        for key, vector, check in zip(rows.ids.to_pylist(), rows.vectors, checks, strict=True):
            self._rows[key] = rows.version, vector.copy(), int(check)

    def _delete(self, ids: pa.Array) -> None:
        for key in ids.to_pylist():
            self._rows.pop(key, None)

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        there = [key for key in ids.to_pylist() if key in self._rows]
        parts = []
        for version in sorted({self._rows[key][0] for key in there}):
            keys = [key for key in there if self._rows[key][0] == version]
            parts += [self._block(version, keys[i : i + PART]) for i in range(0, len(keys), PART)]
        return parts

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        keys = [key for key, (held, _, _) in self._rows.items() if held == version]
        for start in range(0, len(keys), size):
            yield self._block(version, keys[start : start + size])

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None, exact: bool
    ) -> list[tuple[pa.Array, Floats]]:
        among = None if ids is None else set(ids.to_pylist())
        nearest = []
        for query in queries:
            scored = [
                (float(query.astype(np.float64) @ vector.astype(np.float64)), key)
                for key, (held, vector, _) in self._rows.items()
                if held == version and (among is None or key in among)
            ]
            best = sorted(scored, key=lambda pair: -pair[0])[:k]
            scores = np.array([score for score, _ in best], dtype=np.float32)
            nearest.append((pa.array([key for _, key in best], self.id_type), scores))
        return nearest

    def _block(self, version: int, keys: list[int | str]) -> tuple[Rows, Checks]:
        vectors = np.stack([self._rows[key][1] for key in keys])
        checks = np.array([self._rows[key][2] for key in keys], dtype=np.uint32)
        return Rows(version, pa.array(keys, self.id_type), vectors), checks
