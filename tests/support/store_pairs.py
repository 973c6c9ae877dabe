"""A store and the oracle, to which the same is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from tests.support.agreement import Id
from tests.support.dictionary_store import DictionaryStore

from evergram.stores.store import Floats, Rows, Space, Store

OLD, NEW = Space(0, 6, "sha256:old"), Space(3, 4, "sha256:new")
DIMS = {OLD.version: OLD.dim, NEW.version: NEW.dim}


def constant(ids: Sequence[int], version: int = 0, dim: int = 4, value: float = 1.0) -> Rows:
    """Rows whose vectors have one value everywhere."""
    vectors = np.full((len(ids), dim), value, dtype=np.float32)
    return Rows(version, pa.array(ids, pa.int64()), vectors)


class Pair:
    """A store and the oracle; `upsert` writes to both."""

    def __init__(
        self, open_again: Callable[[], Store], id_type: str, spaces: Sequence[Space] = (OLD, NEW)
    ) -> None:
        self._open, self._spaces = open_again, spaces
        self.id_type = id_type
        self.store = open_again()
        self.oracle = DictionaryStore(id_type)
        self.both: list[Store] = [self.store, self.oracle]
        self._random = np.random.default_rng(0)

    def spaces(self) -> Pair:
        for store in self.both:
            for space in self._spaces:
                store.add_space(space)
        return self

    def name(self, number: int) -> Id:
        return number if self.id_type == "int64" else f"id-{number}"

    def names(self, numbers: Sequence[int]) -> list[Id]:
        return [self.name(n) for n in numbers]

    def rows(self, version: int, ids: Sequence[Id]) -> Rows:
        (dim,) = (space.dim for space in self._spaces if space.version == version)
        return Rows(version, self.array(ids), self.floats(len(ids), dim))

    def array(self, ids: Sequence[Id | None]) -> pa.Array:
        return pa.array(ids, self.store.id_type)

    def floats(self, count: int, dim: int) -> Floats:
        return self._random.standard_normal((count, dim)).astype(np.float32)

    def upsert(self, rows: Rows) -> None:
        for store in self.both:
            store.upsert(rows)

    def fill(self) -> Pair:
        """30 rows of the old version, of which 10 were then written with the new one, and 10 of the
        new one alone."""
        self.spaces()
        self.upsert(self.rows(OLD.version, self.names(range(30))))
        self.upsert(self.rows(NEW.version, self.names(range(20, 40))))
        return self

    def queries(self, count: int = 3) -> dict[int, Floats]:
        return {space.version: self.floats(count, space.dim) for space in self._spaces}

    def opened_again(self) -> Store:
        """Another handle of the same store."""
        return self._open()

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()
        self.both = [self.store, self.oracle]
