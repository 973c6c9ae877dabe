"""A store in one SQLite file, whose rows the extension sqlite-vec compares.

All rows are compared in each search, so it is exact; SQLite's transactions keep an id in one space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa

from evergram.errors import DataError, IntegrityError, StoreError
from evergram.stores.index_codes import FLOAT32, IndexCodes
from evergram.stores.sqlite.sqlite_file import SqliteFile
from evergram.stores.sqlite.sqlite_tables import (
    MORE,
    NEAREST,
    UNIT,
    create_space,
    create_tables,
    norms,
    read_record,
    read_spaces,
    refuse_others,
    whole_number,
)
from evergram.stores.store import ID_TYPES, Checks, Floats, Rows, Space, Store, StoreView
from evergram.stores.store_name import checked_name

if TYPE_CHECKING:
    from apsw import Connection

T = TypeVar("T")

# So many rows are looked at beyond the k that are asked for, and four times as many each time
# that rounding may hide a better one.
SPARE = 16
LARGEST_LIMIT = 2**62


class SqliteStore(Store):
    kind: ClassVar[str] = "sqlite"

    # The connection that a view of one moment has; None where each call borrows one.
    _moment: Connection | None = None

    def __init__(self, path: Path, name: str, create: str | None) -> None:
        self._path = path
        self._name = name
        self._file = SqliteFile(path, self.address, create is not None)
        try:
            kind = self._begin(create)
        except BaseException:
            self.close()
            raise
        if create is not None and kind != create:
            self.close()
            raise DataError(
                f"{self.address} has ids of type {kind}, not {create}; use another store."
            )
        self._id_type = ID_TYPES[kind]
        # What pages of rows go by: for integers the id itself.
        self._key = "id" if kind == "int64" else "place"

    @classmethod
    def open(cls, address: str, create: str | None = None) -> Self:
        """See `open_store`."""
        place, _, name = address.removeprefix("sqlite:").rpartition("#")
        if not place:
            raise DataError(f"{address!r} is no address of a SQLite store; give sqlite:FILE#NAME.")
        if checked_name(name).lower().startswith("sqlite_"):
            raise DataError(f"SQLite keeps names such as {name!r} for itself; give another one.")
        return cls(Path(place), name, create)

    @property
    def address(self) -> str:
        return f"sqlite:{self._path}#{self._name}"

    @property
    def place(self) -> str:
        # SQLite takes a and A for the same letter in names of tables.
        return f"sqlite:{self._path.resolve()}#{self._name.lower()}"

    @property
    def id_type(self) -> pa.DataType:
        return self._id_type

    @property
    def side(self) -> str | None:
        with self._reading() as connection:
            record = read_record(connection, self._name, self.address)
            if record is None:
                raise self._gone()
            return record[1]

    def spaces(self) -> dict[int, Space]:
        with self._reading() as connection:
            return read_spaces(connection, self._name, self.address)

    def count(self) -> dict[int, int]:
        with self._reading() as connection:
            counts = {
                version: whole_number(
                    connection.execute(f"select count(*) from {table}").fetchall()[0][0]
                )
                for version, table in self._tables(connection).items()
            }
        return {version: count for version, count in counts.items() if count}

    def filled(self) -> dict[int, Space]:
        # To count is to look at every page.
        with self._reading() as connection:
            spaces = read_spaces(connection, self._name, self.address)
            return {
                version: space
                for version, space in spaces.items()
                if connection.execute(f"select 1 from {self._table(version)} limit 1").fetchall()
            }

    def read_consistently(self, work: Callable[[StoreView], T]) -> T:
        with self._file.moment() as connection:
            view = copy(self)
            view._moment = connection
            return work(view)

    def build_index(self, codes: IndexCodes = FLOAT32) -> list[int]:
        """Build nothing: every search compares all rows.

        Raises: DataError: it is asked for codes.
        """
        if not codes.whole:
            raise DataError(
                f"{self.address} cannot build an index of {codes.kind}: every search compares all "
                "rows, with their whole vectors; leave the codes out, or take another store."
            )
        return []

    def close(self) -> None:
        self._file.close()

    def _begin(self, create: str | None) -> str:
        """Return the type of the ids, of the store that is there or is made."""
        with self._file.reading() as connection:
            record = read_record(connection, self._name, self.address)
            if record is None and create is not None:
                refuse_others(connection, self._name, self.address)
        if record is None and create is None:
            raise self._gone()
        self._file.log_ahead()
        if record is None and create is not None:
            with self._file.writing() as connection:
                create_tables(connection, self._name, create, self.address)
                record = read_record(connection, self._name, self.address)
        if record is None:
            raise self._gone()
        return record[0]

    def _add_space(self, space: Space) -> None:
        kind = "int64" if pa.types.is_integer(self._id_type) else "string"
        with self._file.writing() as connection:
            create_space(connection, self._name, kind, space, self.address)
        if self.spaces()[space.version] != space:
            # Another process was quicker, with another one.
            self.add_space(space)

    def _set_side(self, side: str) -> None:
        with self._file.writing() as connection:
            connection.execute(
                f'update "{self._name}_record" set side = ? where side is null', (side,)
            )

    def _write(self, rows: Rows, checks: Checks) -> None:
        ids = rows.ids.to_pylist()
        raw = [vector.tobytes() for vector in rows.vectors.astype("<f4", copy=False)]
        values = zip(ids, raw, norms(rows.vectors), checks.tolist(), strict=True)
        with self._file.writing() as connection:
            tables = self._tables(connection)
            connection.executemany(
                f"insert into {tables.pop(rows.version)} (id, vector, norm, checksum)"
                " values (?, ?, ?, ?) on conflict (id) do update set vector = excluded.vector,"
                " norm = excluded.norm, checksum = excluded.checksum",
                values,
            )
            self._remove(connection, tables.values(), ids)

    def _delete(self, ids: pa.Array) -> None:
        with self._file.writing() as connection:
            self._remove(connection, self._tables(connection).values(), ids.to_pylist())

    def _read(self, ids: pa.Array) -> list[tuple[Rows, Checks]]:
        keys = [(key,) for key in ids.to_pylist()]
        parts = []
        with self._reading() as connection:
            for version, table in self._tables(connection).items():
                query = f"select id, vector, checksum from {table} where id = ?"
                cells = list(connection.executemany(query, keys))
                if cells:
                    parts.append(self._block(version, cells))
        return parts

    def _scan(self, version: int, size: int) -> Iterator[tuple[Rows, Checks]]:
        # Page by page: no transaction stays open, in which the log of writes would only grow.
        last: int | None = None
        query = f"select id, vector, checksum, {self._key} from {self._table(version)}"
        while True:
            after = "" if last is None else f" where {self._key} > ?"
            values = (size,) if last is None else (last, size)
            with self._reading() as connection:
                cells = connection.execute(
                    f"{query}{after} order by {self._key} limit ?", values
                ).fetchall()
                block = self._block(version, cells) if cells else None
                before, last = last, whole_number(cells[-1][3]) if cells else None
                if before is not None and last is not None and last <= before:
                    raise StoreError(
                        f"{self.address} has rows out of their order: its file is damaged; restore "
                        "it from a copy."
                    )
            if block is not None:
                yield block
            if len(cells) < size:
                return

    def _nearest(
        self, version: int, queries: Floats, k: int, ids: pa.Array | None
    ) -> list[tuple[pa.Array, Floats]]:
        with self._reading() as connection:
            if ids is None:
                return [self._best(connection, version, query, k) for query in queries]
            query = f"select id, vector, checksum from {self._table(version)} where id = ?"
            cells = list(connection.executemany(query, [(key,) for key in ids.to_pylist()]))
            return [self._best_of(version, cells, query, k) for query in queries]

    def _best(
        self, connection: Connection, version: int, query: Floats, k: int
    ) -> tuple[pa.Array, Floats]:
        """Return the best rows of one query, by their own scores.

        sqlite-vec's float32 puts rows in order of a bound that no score exceeds; they are looked
        at until the last bound is not above the k-th score.
        """
        length = float(np.linalg.norm(query.astype(np.float64)))
        unit = (query / length if length else query).astype("<f4")
        slack = (len(query) + MORE) * UNIT
        statement = NEAREST.format(table=self._table(version), key=self._key)
        wanted = k + SPARE
        while True:
            limit = min(wanted, LARGEST_LIMIT)
            cells = connection.execute(statement, (unit.tobytes(), slack, limit)).fetchall()
            keys, scores = self._best_of(version, cells, query, k)
            bounds = [bound for *_, bound in cells if isinstance(bound, float)]
            if len(bounds) < limit or scores[-1] >= min(bounds) * length:
                return keys, scores
            wanted *= 4

    def _best_of(
        self, version: int, cells: list[Any], query: Floats, k: int
    ) -> tuple[pa.Array, Floats]:
        """Return the ids [≤k] of the cells with the largest inner products, and the products."""
        if not cells:
            return pa.array([], self._id_type), np.zeros(0, dtype=np.float32)
        rows, checks = self._block(version, cells)
        self._verify(rows, checks)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = rows.vectors @ query
        order = np.argsort(-scores, kind="stable")[:k]
        return rows.ids.take(pa.array(order)), scores[order]

    def _block(self, version: int, cells: list[Any]) -> tuple[Rows, Checks]:
        keys, raw, checks, *_ = zip(*cells, strict=True)
        if len({len(one) for one in raw}) > 1:
            raise IntegrityError(f"Rows of version {version} in {self.address} differ in dim.")
        vectors = np.frombuffer(b"".join(raw), dtype="<f4").reshape(len(raw), -1)
        rows = Rows(version, pa.array(keys, self._id_type), vectors.astype(np.float32))
        return rows, np.array(checks, dtype=np.int64).astype(np.uint32)

    def _remove(self, connection: Connection, tables: Iterable[str], ids: list[Any]) -> None:
        for table in tables:
            connection.executemany(f"delete from {table} where id = ?", [(key,) for key in ids])

    def _tables(self, connection: Connection) -> dict[int, str]:
        """Return the table of rows of each space, as SQL names it."""
        return {
            version: self._table(version)
            for version in read_spaces(connection, self._name, self.address)
        }

    def _table(self, version: int) -> str:
        return f'"{self._name}_v{version}"'

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        if self._moment is None:
            with self._file.reading() as connection:
                yield connection
        else:
            with self._file.errors_as_store_errors():
                yield self._moment

    def _gone(self) -> DataError:
        return DataError(f"There is no store at {self.address}; create it first.")
