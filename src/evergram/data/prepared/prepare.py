"""`prepare`: interactions of any size, from files to a prepared folder, in bounded memory.

DuckDB orders and numbers them. Its table `interactions` has one column a role, in order of time;
`entities_query` and `entities_candidate` have `id` and `pairs`, the number of its interactions. In
each of them, `rowid` is the place of a row.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

import numpy as np
import pyarrow as pa
from filelock import Timeout
from pydantic import ByteSize, TypeAdapter, ValidationError

from evergram.atomic_files import (
    commit,
    exchange_folders,
    file_lock,
    part_of,
    remove_tree,
    restore_displaced,
    sync,
    write_text,
)
from evergram.data.feature_types import typed
from evergram.data.prepared.files import (
    FORMAT_VERSION,
    NAME,
    ColumnType,
    PreparedRecord,
    SideRecord,
    release,
    sha256_of,
)
from evergram.data.reading.files import MemoryTable, Paths
from evergram.data.reading.interactions import (
    SIDES,
    BadRows,
    BadRowsChoice,
    InteractionSources,
    SideName,
    check_roles,
    source_of,
    sources_of_files,
)
from evergram.data.reading.keyed_table import read_features, rows_by_id
from evergram.data.rolling_window import date_text
from evergram.errors import DataError, reason_and_remedy
from evergram.ids import refuse_repeats

Report: TypeAlias = Callable[[str], object]
# By side, tables in the types of the files of entities.
Features = Mapping[SideName, pa.Table]
# Columns in the order of `prepared.json`.
ORDER = ("query", "candidate", "value", "weight", "time")
# The engine's memory where none is named: a quarter of the machine's, between these.
LEAST_MEMORY, MOST_MEMORY = 128 << 20, 2 << 30
# Seconds between two lines of progress.
EVERY = 5.0
# Rows that are fetched from the engine at once, and batches that are written before their pages
# are released.
FETCHED, RELEASED = 1 << 17, 16


@dataclass(frozen=True)
class PrepareSettings:
    """Which columns a corpus is prepared from, and what the engine may use.

    Args:
        columns: the files' own names of the columns query, candidate, value, time and weight,
            {"query": "user_id"}; and of the ids in files of features, {"candidate_id": "sku"}.
        query_features, candidate_features: files with a column `id` and one column a feature.
        shared_ids: query and candidate ids name the same things.
        bad_rows: "drop" leaves out rows without an id, or with a value, weight or time that is no
            number or date, and says so; "refuse" raises an error that counts them.
        memory: bytes that the engine may hold, or a text such as "2GiB"; None takes a quarter of
            the machine's memory, at most 2 GiB.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    query_features: Paths | None = None
    candidate_features: Paths | None = None
    shared_ids: bool = False
    bad_rows: BadRowsChoice = "refuse"
    memory: int | str | None = None

    def __post_init__(self) -> None:
        check_roles(self.columns)
        if self.bad_rows not in get_args(BadRowsChoice):
            raise DataError(f"bad_rows is {self.bad_rows!r}; it is 'refuse' or 'drop'.")
        _ = self.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes that the engine may hold. Raises: DataError: `memory` is no size, or too small."""
        if self.memory is None:
            return max(LEAST_MEMORY, min(MOST_MEMORY, machine_memory() // 4))
        size = 0
        with suppress(ValidationError):
            size = int(TypeAdapter(ByteSize).validate_python(self.memory))
        if size < LEAST_MEMORY:
            raise DataError(
                f"memory (--memory) is {self.memory}; write a size such as 2GiB or 500MiB, of at "
                f"least {LEAST_MEMORY >> 20}MiB, which the engine needs."
            )
        return size


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its container's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or "max"
            total = min(total, int(Path(path).read_text()))
    return total


@dataclass(frozen=True)
class PrepareSummary:
    """What a run of `prepare` read and wrote; docs/commands.md explains each value."""

    out: str
    fingerprint: str
    rows_read: int
    bad_rows: dict[str, Any]
    interactions: int
    entities: dict[str, int]
    columns: dict[str, str]
    unread: list[str]
    first_time: int | float | None
    last_time: int | float | None
    size: int
    seconds: float

    def __str__(self) -> str:
        """Return it in lines for people."""
        bad = self.bad_rows["count"]
        queries, candidates = self.entities["query"], self.entities["candidate"]
        lines = [
            f"{self.out}: {self.interactions:,} interactions of {queries:,} queries with "
            f"{candidates:,} candidates.",
            f"Read {self.rows_read:,} rows{f'; left out {bad:,} bad rows' if bad else ''}.",
            *(f"Bad: {reason}." for reason in self.bad_rows["reasons"]),
        ]
        if self.first_time is None or self.last_time is None:
            lines.append("There are no times.")
        else:
            lines.append(f"Times from {date_text(self.first_time)} to {date_text(self.last_time)}.")
        if self.unread:
            roles = [role for role in ("time", "value", "weight") if role not in self.columns]
            reads = " or ".join(f"--column {role}=NAME" for role in roles)
            unread = ", ".join(self.unread)
            lines.append(f"Not read: {unread}{reads and f'; {reads} reads one'}.")
        lines.append(
            f"{self.size / 1e6:,.1f} MB on disk; {self.seconds:.1f} s, "
            f"{self.rows_read / max(self.seconds, 1e-9):,.0f} rows/s."
        )
        return "\n".join(lines)


def prepare(
    sources: Paths | pa.Table,
    out: str | Path,
    settings: PrepareSettings | None = None,
    *,
    overwrite: bool = False,
    progress: Report = lambda line: None,
) -> PrepareSummary:
    """Write interactions to a prepared folder, which `data.kind = "prepared"` trains from.

    Ids get rows by first appearance, interactions are in order of time (ties and interactions
    without times in the order of the sources, files of a folder or glob by name), as in
    `Corpus.from_tables`; all of it on disk, by DuckDB. The folder holds the old content or the new
    one at any moment.

    Args:
        sources: one or several files (Parquet, Arrow, CSV or TSV, gzipped or not), folders of
            files, globs and addresses such as s3://…; or an Arrow table.
        out: the folder.
        settings: which columns are read, and what the engine may use.
        overwrite: replace the folder if it is a prepared corpus.
        progress: takes lines, such as `print`.
    Returns: what was read and written.
    Raises: DataError: a source or a row cannot be used, the folder holds something else or is being
        written by another process, or DuckDB is not installed. The folder is then as it was.
    """
    started = time.monotonic()
    out, settings = Path(out).absolute(), settings or PrepareSettings()
    with _writing(out):
        _check_place(out, overwrite=overwrite)
        with _new_content(out) as folder:
            interactions, features = _opened(sources, settings)
            record = _fill(folder, interactions, features, settings.memory_bytes, progress)
            first = last = None
            if "time" in record.columns:
                times = np.load(folder / "time.npy", mmap_mode="r")
                first, last = times[0].item(), times[-1].item()
    bad = interactions.bad_rows
    return PrepareSummary(
        out=str(out),
        fingerprint=record.fingerprint,
        rows_read=interactions.rows,
        bad_rows={"count": bad.count, "reasons": bad.sentences()},
        interactions=record.interactions,
        entities={str(side): record.sides[side].entities for side in SIDES},
        columns=dict(record.columns),
        unread=list(dict.fromkeys(name for one in interactions.sources for name in one.unread)),
        first_time=first,
        last_time=last,
        size=sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        seconds=time.monotonic() - started,
    )


def _opened(
    sources: Paths | pa.Table, settings: PrepareSettings
) -> tuple[InteractionSources, Features]:
    """Return the interactions of the sources, and the features of each side.

    Features are read whole: what cannot be used is refused before hours of interactions are read.
    """
    if isinstance(sources, pa.Table):
        opened = [source_of(MemoryTable(sources, "The table"), settings.columns)]
    else:
        opened = sources_of_files(sources, settings.columns)
    interactions = InteractionSources(
        opened,
        shared_ids=settings.shared_ids,
        bad_rows=BadRows(settings.bad_rows),
    )
    files = settings.query_features, settings.candidate_features
    features = read_features(*files, settings.columns, settings.bad_rows)
    return interactions, {side: _stored(table, side) for side, table in features.items()}


def _stored(table: pa.Table, side: SideName) -> pa.Table:
    """Return a table of features in the types of the files of entities, see `typed`."""
    source = f"{side} features"
    refuse_repeats(table["id"], source)
    if _count(side) in table.column_names:
        raise DataError(f"{source} have a column {_count(side)!r}, which is taken; rename it.")
    names = [name for name in table.column_names if name != "id"]
    return pa.table({"id": table["id"], **{n: typed(table[n], n, source) for n in names}})


class Database:
    """A DuckDB of tables that may exceed memory; a context manager.

    Args:
        folder: exists; its maker removes it with everything in it.
        memory: bytes that the engine may hold.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        try:
            import duckdb
        except ImportError:
            raise DataError(
                "A corpus is prepared by DuckDB, which is not installed: "
                "pip install 'evergram[prepare]'."
            ) from None
        self._errors: type[Exception] = duckdb.Error
        self._exhaustion = (duckdb.OutOfMemoryException, duckdb.IOException, pa.ArrowException)
        self._memory, self._folder = memory, folder
        mine = getattr(os, "sched_getaffinity", None)  # Linux: of this process or container
        self._connection: Any = duckdb.connect(
            str(folder / "interactions.duckdb"),
            config={
                "memory_limit": f"{memory >> 10}KiB",
                "threads": (os.cpu_count() or 1) if mine is None else len(mine(0)),
                "temp_directory": str(folder / "spilled"),
                "preserve_insertion_order": True,
                # Nothing is fetched from outside, and no file is read by a name in a statement.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.rows(statement)

    def create(self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Make a table of batches, in their order; an error that they raise is raised as it is."""
        errors: list[Exception] = []

        def noted() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:  # of which the engine would tell only the text
                errors.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, noted())
        self._connection.register("arrow_batches", reader)
        try:
            self.run(f"CREATE TABLE {table} AS SELECT * FROM arrow_batches")
        except Exception:
            if errors:
                raise errors[0] from None
            raise
        finally:
            self._connection.unregister("arrow_batches")

    def size(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM {table}")[0][0])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query, which are few."""
        try:
            rows: list[tuple[Any, ...]] = self._connection.execute(query).fetchall()
        except self._errors as error:
            raise self._refusal(error) from error
        return rows

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._connection.sql(query).to_arrow_reader(FETCHED)
        except (self._errors, pa.ArrowException) as error:  # Arrow wraps errors of the engine
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> DataError:
        text = " ".join(str(error).split("\n")[0].split()).rstrip(".")
        if not isinstance(error, self._exhaustion):
            return DataError(f"The engine cannot use the data: {text}.")
        return DataError(
            f"The engine could not go on with {self._memory >> 20} MiB of memory and the disk of "
            f"{self._folder.parent} ({text}); give it more memory by --memory, or "
            "a disk with more room."
        )


def _fill(
    folder: Path, interactions: InteractionSources, features: Features, memory: int, report: Report
) -> PreparedRecord:
    """Fill an empty folder, and return its record, which is written last."""
    scratch = folder / ".engine"
    scratch.mkdir()
    with Database(scratch, memory) as database:
        _load(database, interactions, report)
        report("numbering ids")
        number_ids(database, shared=interactions.shared_ids)
        report("writing interactions")
        dtypes = _dtypes(interactions)
        _write_columns(database, folder, dtypes)
        report("writing entities")
        for side in SIDES:
            _write_entities(database, folder, side, interactions.types[side], features.get(side))
        sides = {
            side: SideRecord(
                entities=database.size(f"entities_{side}"),
                features=features[side].column_names[1:] if side in features else [],
            )
            for side in SIDES
        }
        rows = database.size("interactions")
    remove_tree(scratch)
    digests = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    content = " ".join(f"{name} {digest}" for name, digest in digests.items())
    record = PreparedRecord(
        format_version=FORMAT_VERSION,
        shared_ids=interactions.shared_ids,
        interactions=rows,
        sides=sides,
        columns=cast(dict[str, ColumnType], {role: dtype.name for role, dtype in dtypes.items()}),
        sources=[source.table.name for source in interactions.sources],
        fingerprint=hashlib.sha256(content.encode()).hexdigest(),
        sha256=digests,
    )
    write_text(folder / NAME, record.model_dump_json(indent=1))
    return record


def _load(database: Database, interactions: InteractionSources, report: Report) -> None:
    """Fill the table `interactions`, in order of time."""
    sources, in_order = len(interactions.sources), True

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Note whether rows are in order of time, and report how many there are."""
        nonlocal in_order
        started = shown = time.monotonic()
        in_order, last = True, -np.inf
        for batch in batches:
            if "time" in interactions.types and batch.num_rows and in_order:
                times = batch["time"].to_numpy()
                in_order = bool(last <= times[0] and np.all(times[1:] >= times[:-1]))
                last = times[-1]
            if time.monotonic() - shown > EVERY:
                shown = time.monotonic()
                speed = interactions.rows / (shown - started)
                report(f"read {interactions.rows:,} rows, {speed:,.0f} rows/s")
            yield batch

    def fill(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        database.run("DROP TABLE IF EXISTS interactions")
        database.create("interactions", schema, watched(batches))

    report(f"reading {sources} source{'s' if sources > 1 else ''}")
    interactions.read(fill)
    if not in_order:
        report(f"sorting {database.size('interactions'):,} interactions by time")
        database.run(
            "CREATE TABLE sorted AS SELECT * FROM interactions ORDER BY time, rowid",
            "DROP TABLE interactions",
            "ALTER TABLE sorted RENAME TO interactions",
        )


def number_ids(database: Database, *, shared: bool) -> None:
    """Make the tables of entities, in the order of their first appearance; of shared ids, both have
    all, and as in `Corpus` those of queries come first."""
    size = database.size("interactions")
    for side in SIDES:
        each = " UNION ALL ".join(
            f"SELECT {one} AS id, min(rowid) + {number * size} AS first, "
            f"{'count(*)' if one == side else '0'} AS pairs FROM interactions GROUP BY {one}"
            for number, one in enumerate(SIDES if shared else [side])
        )
        database.run(
            f"CREATE TABLE entities_{side} AS SELECT id, sum(pairs)::BIGINT AS pairs "
            f"FROM ({each}) GROUP BY id ORDER BY min(first)"
        )


def _write_columns(database: Database, folder: Path, dtypes: Mapping[str, np.dtype[Any]]) -> None:
    """Write the interactions by rows as .npy files, in their order."""
    rows = database.size("interactions")
    others = "".join(f", i.{role}" for role in dtypes if role not in SIDES)
    in_no_order = database.batches(
        f"SELECT i.rowid AS place, q.rowid::INT AS query, c.rowid::INT AS candidate{others} "
        "FROM interactions i JOIN entities_query q ON i.query = q.id "
        "JOIN entities_candidate c ON i.candidate = c.id"
    )
    columns = {r: _new_column(folder / f"{r}.npy", dtype, rows) for r, dtype in dtypes.items()}
    for written, batch in enumerate(in_no_order):
        place = batch["place"].to_numpy()
        for role, column in columns.items():
            column[place] = batch[role].to_numpy(zero_copy_only=False)
        if written % RELEASED == 0:
            release(columns.values())
    for column in columns.values():
        column.flush()


def _write_entities(
    database: Database, folder: Path, side: str, kind: pa.DataType, features: pa.Table | None
) -> None:
    schema = pa.schema({"id": kind, _count(side): pa.int64()})
    ordered = f"SELECT id, pairs AS {_count(side)} FROM entities_{side} ORDER BY rowid"
    batches = [batch.cast(schema) for batch in database.batches(ordered)]
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    if features is not None:
        ids = table["id"].combine_chunks()
        rows = rows_by_id(features["id"], ids, f"{side} features")
        for name in features.column_names[1:]:
            table = table.append_column(name, features[name].take(rows))
    path = folder / f"{side}.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _count(side: str) -> str:
    """Return the column of entities that counts the interactions of a side."""
    return f"{side}_count"


def _new_column(path: Path, dtype: np.dtype[Any], rows: int) -> Any:
    """Return a new mapped column; its blocks exist, as a full disk must not end a write to them."""
    column = np.lib.format.open_memmap(path, "w+", dtype.newbyteorder("<"), (rows,))
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return column


def _dtypes(interactions: InteractionSources) -> dict[str, np.dtype[Any]]:
    """Return the type of each column on disk, in the order of `prepared.json`."""
    kinds = {role: interactions.types[role] for role in ORDER if role in interactions.types}
    kinds |= dict.fromkeys(SIDES, pa.int32())
    return {role: np.dtype(kind.to_pandas_dtype()) for role, kind in kinds.items()}


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Hold the lock of a prepared folder, and remove what a killed run left beside it.

    Raises: DataError: another process holds it, or something cannot be written.
    """
    path = out.with_name(f".{out.name}.lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()  # the lock waits where no file can be made
        with file_lock(path, timeout=0):
            try:
                restore_displaced(out)
                remove_tree(part_of(out))
                yield
            finally:
                # filelock refuses a file that was removed between its opening and its locking.
                path.unlink(missing_ok=True)
    except Timeout:
        raise DataError(f"Another process is preparing {out}; wait for it and try again.") from None
    except OSError as error:
        why = reason_and_remedy(error, "it is as it was")
        raise DataError(f"{out} cannot be written: {why}.") from error


def _check_place(out: Path, *, overwrite: bool) -> None:
    """Refuse to write over something."""
    if out.is_file() or out.is_symlink():
        raise DataError(f"{out} is a file or a link; name a new folder.")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / NAME).is_file():
        raise DataError(f"{out} holds other files and is no prepared corpus; name a new folder.")
    if not overwrite:
        raise DataError(f"{out} is a prepared corpus already; --overwrite replaces it.")


@contextmanager
def _new_content(out: Path) -> Iterator[Path]:
    """Yield a folder to fill, which takes the place of `out` when the block ends well."""
    part = part_of(out)
    try:
        part.mkdir(parents=True)
        yield part
        for path in (*part.rglob("*"), part):
            sync(path)
        if out.exists():
            exchange_folders(part, out)
        else:
            commit(part, out)
    finally:
        remove_tree(part)
