"""`prepare`: converts interactions of any size from files to a prepared folder, in bounded memory;
`PreparedRecord` is the folder's `prepared.json`, see docs/large-data.md.

DuckDB sorts and numbers the interactions. Its table `interactions` has one column per role, sorted
by time; `entities_query` and `entities_candidate` have `id` and `pairs`, the number of
interactions. `rowid` is a row's position in each table.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa
from filelock import Timeout
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from evergram.atomic_files import (
    file_lock,
    part_of,
    remove_tree,
    replace_folder,
    restore_displaced,
    sync,
    write_text,
)
from evergram.data.feature_types import typed
from evergram.data.reading.files import MemoryTable, Paths
from evergram.data.reading.interactions import (
    SIDES,
    BadRows,
    BadRowsChoice,
    InteractionSource,
    InteractionSources,
    SideName,
    check_roles,
    read_features,
    rows_by_id,
    source_of,
    sources_of_files,
)
from evergram.data.rolling_window import date_text
from evergram.errors import DataError, reason_and_remedy
from evergram.file_content import sha256
from evergram.ids import refuse_repeats
from evergram.validation import sentence_of

NAME = "prepared.json"
Column = NDArray[Any]
ColumnType: TypeAlias = Literal["int32", "int64", "float32", "float64"]
Report: TypeAlias = Callable[[str], object]
# Columns in the order of `prepared.json`.
ORDER = ("query", "candidate", "value", "weight", "time")
# DuckDB's default memory is a quarter of the machine's, within these limits.
LEAST_MEMORY, MOST_MEMORY = 128 << 20, 2 << 30
# Seconds between lines of progress.
EVERY = 5.0
# Fetch this many rows from DuckDB at once; release written pages after this many batches.
FETCHED, RELEASED = 1 << 17, 16


class SideRecord(BaseModel):
    entities: int = Field(ge=1)
    features: list[str]


class PreparedRecord(BaseModel):
    """The content of `prepared.json`."""

    # Later versions may add keys that this one ignores.
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    format_version: Literal[1] = 1
    shared_ids: bool
    interactions: int = Field(ge=1)  # n
    sides: dict[SideName, SideRecord]
    columns: dict[str, ColumnType]  # the type of each column of interactions
    sources: list[str] = []  # the names of the source files
    # Identifies the folder's content; names the cache of derived files.
    fingerprint: str = Field(pattern=r"^[A-Za-z0-9_-]{8,200}$")
    sha256: dict[str, str] = {}  # the SHA-256 of each file; a file without one is not checked

    @model_validator(mode="after")
    def _agrees(self) -> PreparedRecord:
        if set(self.sides) != set(SIDES) or not set(SIDES) <= set(self.columns):
            raise ValueError(
                f"it has the sides {', '.join(self.sides)} and the columns "
                f"{', '.join(self.columns)}, but both must include query and candidate"
            )
        return self

    @classmethod
    def load(cls, folder: Path) -> PreparedRecord:
        path = folder / NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"{folder} is not a prepared corpus: it has no {NAME}, which `evergram prepare` "
                f"writes last; `evergram prepare SOURCE {folder}` creates one."
            ) from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
        except ValidationError as error:
            problem = sentence_of(error, cls).rstrip(".")
            raise DataError(f"{path} is damaged: {problem}; prepare the corpus again.") from error


def release(columns: Iterable[Column]) -> None:
    """Drop the pages of mapped columns, or of their slices, from memory until the next read."""
    for column in columns:
        memory: Any = column
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            memory.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class PrepareSettings:
    """Which columns `prepare` reads, and how much memory it may use.

    Args:
        columns: the files' names for the columns query, candidate, value, time and weight,
            {"query": "user_id"}, and for the id columns of features, {"candidate_id": "sku"}.
        query_features, candidate_features: files with a column `id` and one column per feature.
        shared_ids: query and candidate ids name the same things.
        bad_rows: "drop" leaves out rows without an id, or whose value, weight or time is not a
            number or date, and reports them; "refuse" raises an error that counts them.
        memory: DuckDB's memory limit in bytes, or a text such as "2GiB"; None takes a quarter of
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
        _ = self.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """DuckDB's memory limit in bytes. Raises: DataError: `memory` is too small or no size."""
        if self.memory is None:
            return max(LEAST_MEMORY, min(MOST_MEMORY, machine_memory() // 4))
        size = 0
        with suppress(ValidationError):
            size = int(TypeAdapter(ByteSize).validate_python(self.memory))
        if size < LEAST_MEMORY:
            raise DataError(
                f"memory (--memory) is {self.memory}; give a size such as 2GiB or 500MiB, at least "
                f"{LEAST_MEMORY >> 20}MiB, which DuckDB needs."
            )
        return size


def machine_memory() -> int:
    """Return the memory of the machine or of its container, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or "max"
            total = min(total, int(Path(path).read_text()))
    return total


@dataclass(frozen=True)
class PrepareSummary:
    """What `prepare` read and wrote; docs/commands.md explains each value."""

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

    def __str__(self) -> str:
        """Return a readable summary of several lines."""
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
            lines.append(f"Not read: {', '.join(self.unread)}; --column ROLE=NAME reads one.")
        return "\n".join([*lines, f"{self.size / 1e6:,.1f} MB on disk."])


def prepare(
    sources: Paths | pa.Table,
    out: str | Path,
    settings: PrepareSettings | None = None,
    *,
    overwrite: bool = False,
    progress: Report = lambda line: None,
) -> PrepareSummary:
    """Write interactions to a prepared folder, for training with `data.kind = "prepared"`.

    As in `Corpus.of`, ids get rows by first appearance, and interactions are sorted by time. Ties
    and interactions without times keep the order of the sources (sorted by name within a folder or
    glob). DuckDB does the work on disk. The folder is replaced atomically.

    Args:
        sources: one or several files (Parquet, Arrow, CSV or TSV, optionally gzipped), folders of
            files, globs and addresses such as s3://…; or an Arrow table.
        out: the folder.
        settings: which columns to read, and how much memory to use.
        overwrite: replace the folder if it is a prepared corpus.
        progress: a function that takes lines of text, such as `print`.
    Returns: what was read and written.
    Raises: DataError: a source or a row cannot be used, the folder has other content, another
        process is writing it, or DuckDB is not installed. The folder is then unchanged.
    """
    out, settings = Path(out).absolute(), settings or PrepareSettings()
    with _writing(out, overwrite=overwrite) as folder:
        opened, bad = opened_sources(sources, settings), BadRows(settings.bad_rows)
        interactions = InteractionSources(opened, shared_ids=settings.shared_ids, bad_rows=bad)
        # Check features before reading interactions, which may take hours.
        files = settings.query_features, settings.candidate_features
        features = {
            side: _checked_features(table, side)
            for side, table in read_features(*files, settings.columns, settings.bad_rows).items()
        }
        record = _fill(folder, interactions, features, settings.memory_bytes, progress)
        first = last = None
        if "time" in record.columns:
            times = np.load(folder / "time.npy", mmap_mode="r")
            first, last = times[0].item(), times[-1].item()
    return PrepareSummary(
        out=str(out),
        fingerprint=record.fingerprint,
        rows_read=interactions.rows,
        bad_rows={"count": bad.count, "reasons": bad.sentences()},
        interactions=record.interactions,
        entities={str(side): record.sides[side].entities for side in SIDES},
        columns=dict(record.columns),
        unread=list(dict.fromkeys(name for source in opened for name in source.unread)),
        first_time=first,
        last_time=last,
        size=sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
    )


def opened_sources(sources: Paths | pa.Table, settings: PrepareSettings) -> list[InteractionSource]:
    if isinstance(sources, pa.Table):
        return [source_of(MemoryTable(sources, "The table"), settings.columns)]
    return sources_of_files(sources, settings.columns)


def refuse_occupied(out: Path, *, overwrite: bool) -> None:
    """Raise a DataError if `prepare` may not write to a path."""
    if out.is_file() or out.is_symlink():
        raise DataError(f"{out} is a file or a link; name a new folder.")
    if out.is_dir() and any(out.iterdir()):
        if not (out / NAME).is_file():
            why = "has other files and is not a prepared corpus; name a new folder"
            raise DataError(f"{out} {why}.")
        if not overwrite:
            raise DataError(f"{out} is already a prepared corpus; --overwrite replaces it.")


@contextmanager
def _writing(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder that replaces `out` if the block succeeds, under a lock."""
    lock, part = out.with_name(f".{out.name}.lock"), part_of(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock.open("ab").close()  # fail here if the file cannot be created: the lock would wait
        with file_lock(lock, timeout=0):
            try:
                restore_displaced(out)
                remove_tree(part)
                refuse_occupied(out, overwrite=overwrite)
                part.mkdir(parents=True)
                yield part
                for path in (*part.rglob("*"), part):
                    sync(path)
                replace_folder(part, out)
            finally:
                remove_tree(part)
                # Safe: filelock rejects a file removed between its opening and its locking.
                lock.unlink(missing_ok=True)
    except Timeout:
        raise DataError(f"Another process is preparing {out}; wait for it and try again.") from None
    except OSError as error:
        why = reason_and_remedy(error, "it is unchanged")
        raise DataError(f"{out} cannot be written: {why}.") from error


def _checked_features(table: pa.Table, side: SideName) -> pa.Table:
    """Check a table of features and convert its columns, see `typed`."""
    source = f"{side} features"
    refuse_repeats(table["id"], source)
    if f"{side}_count" in table.column_names:
        raise DataError(f"{source} have a column '{side}_count', a reserved name; rename it.")
    names = [name for name in table.column_names if name != "id"]
    return pa.table({"id": table["id"], **{n: typed(table[n], n, source) for n in names}})


class Database:
    """A DuckDB database in a folder, which the caller removes; `memory` is a limit in bytes."""

    def __init__(self, folder: Path, memory: int) -> None:
        try:
            import duckdb
        except ImportError:
            raise DataError(
                "Preparing a corpus needs DuckDB, which is not installed: "
                "pip install 'evergram[prepare]'."
            ) from None
        self._errors = (duckdb.Error, pa.ArrowException)  # Arrow wraps some of DuckDB's errors
        self._memory, self._folder = memory, folder
        affinity = getattr(os, "sched_getaffinity", None)  # Linux only; respects containers
        self._connection: Any = duckdb.connect(
            str(folder / "interactions.duckdb"),
            config={
                "memory_limit": f"{memory >> 10}KiB",
                "threads": (os.cpu_count() or 1) if affinity is None else len(affinity(0)),
                "temp_directory": str(folder / "spilled"),
                "preserve_insertion_order": True,
                # Do not download extensions.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )

    def close(self) -> None:
        self._connection.close()

    def rows(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements and return the rows of the last one; for small results."""
        rows: list[tuple[Any, ...]] = []
        with self._data_errors():
            for statement in statements:
                rows = self._connection.execute(statement).fetchall()
        return rows

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        with self._data_errors():
            yield from self._connection.sql(query).to_arrow_reader(FETCHED)

    def create(
        self, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], select: str = "*"
    ) -> None:
        """Create a table of what `select` makes of batches, in their order; the batches' errors
        propagate unchanged."""
        errors: list[Exception] = []

        def recorded() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except Exception as error:  # DuckDB would replace it by an error with its text
                errors.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, recorded())
        self._connection.register("arrow_batches", reader)
        try:
            self.rows(f"CREATE OR REPLACE TABLE {table} AS SELECT {select} FROM arrow_batches")
        except Exception:
            if errors:
                raise errors[0] from None
            raise
        finally:
            self._connection.unregister("arrow_batches")

    def size(self, table: str) -> int:
        return int(self.rows(f"SELECT count(*) FROM {table}")[0][0])

    @contextmanager
    def _data_errors(self) -> Iterator[None]:
        """Convert DuckDB's errors to DataErrors."""
        try:
            yield
        except self._errors as error:
            text = " ".join(str(error).split("\n")[0].split()).rstrip(".")
            raise DataError(
                f"DuckDB failed with {self._memory >> 20} MiB of memory and the disk of "
                f"{self._folder.parent}: {text}. If memory or disk space was too small, raise "
                "--memory or use a larger disk."
            ) from error


def _fill(
    folder: Path,
    interactions: InteractionSources,
    features: Mapping[SideName, pa.Table],
    memory: int,
    report: Report,
) -> PreparedRecord:
    """Fill an empty folder, write its record last, and return the record."""
    scratch = folder / ".engine"
    scratch.mkdir()
    types = interactions.types
    with closing(Database(scratch, memory)) as database:
        _load(database, interactions, report)
        report("numbering ids")
        number_ids(database, shared=interactions.shared_ids)
        report("writing interactions")
        dtypes = {
            role: np.dtype("int32" if role in SIDES else types[role].to_pandas_dtype())
            for role in ORDER
            if role in types
        }
        _write_columns(database, folder, dtypes)
        report("writing entities")
        sides: dict[SideName, SideRecord] = {}
        for side in SIDES:
            spool = scratch / "entities.arrow"
            table = _entities(database, side, types[side], features.get(side), spool)
            path = str(folder / f"{side}.arrow")
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            sides[side] = SideRecord(entities=len(table), features=table.column_names[2:])
        rows = database.size("interactions")
    remove_tree(scratch)
    digests = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    content = " ".join(f"{name} {digest}" for name, digest in digests.items())
    record = PreparedRecord(
        shared_ids=interactions.shared_ids,
        interactions=rows,
        sides=sides,
        columns={role: cast(ColumnType, dtype.name) for role, dtype in dtypes.items()},
        sources=[source.table.name for source in interactions.sources],
        fingerprint=hashlib.sha256(content.encode()).hexdigest(),
        sha256=digests,
    )
    write_text(folder / NAME, record.model_dump_json(indent=1))
    return record


def _load(database: Database, interactions: InteractionSources, report: Report) -> None:
    """Fill the table `interactions`, sorted by time."""
    sources, is_sorted = len(interactions.sources), True

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check whether rows are sorted by time, and report how many there are."""
        nonlocal is_sorted
        reported = time.monotonic()
        is_sorted, last = True, -np.inf
        for batch in batches:
            if "time" in interactions.types and batch.num_rows and is_sorted:
                times = batch["time"].to_numpy()
                is_sorted = bool(last <= times[0] and np.all(times[1:] >= times[:-1]))
                last = times[-1]
            if time.monotonic() - reported > EVERY:
                reported = time.monotonic()
                report(f"read {interactions.rows:,} rows")
            yield batch

    report(f"reading {sources} source{'s' if sources > 1 else ''}")
    interactions.read(
        lambda schema, batches: database.create("interactions", schema, watched(batches))
    )
    if not is_sorted:
        report(f"sorting {database.size('interactions'):,} interactions by time")
        database.rows(
            "CREATE TABLE sorted AS SELECT * FROM interactions ORDER BY time, rowid",
            "DROP TABLE interactions",
            "ALTER TABLE sorted RENAME TO interactions",
        )


def number_ids(database: Database, *, shared: bool) -> None:
    """Create the tables of entities, by first appearance; shared ids start with the queries'."""
    size = database.size("interactions")
    for side in SIDES:
        columns = SIDES if shared else [side]
        appearances = " UNION ALL ".join(
            f"SELECT {column} AS id, min(rowid) + {number * size} AS first, "
            f"{'count(*)' if column == side else '0'} AS pairs FROM interactions GROUP BY {column}"
            for number, column in enumerate(columns)
        )
        database.rows(
            f"CREATE TABLE entities_{side} AS SELECT id, sum(pairs)::BIGINT AS pairs "
            f"FROM ({appearances}) GROUP BY id ORDER BY min(first)"
        )


def _write_columns(database: Database, folder: Path, dtypes: Mapping[str, np.dtype[Any]]) -> None:
    """Write the interactions in order as .npy files, with row numbers instead of ids."""
    rows, columns = database.size("interactions"), dict[str, Any]()
    for role, dtype in dtypes.items():
        path = folder / f"{role}.npy"
        columns[role] = np.lib.format.open_memmap(path, "w+", dtype.newbyteorder("<"), (rows,))
        if hasattr(os, "posix_fallocate"):  # writing to a mapping on a full disk kills the process
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    others = "".join(f", i.{role}" for role in dtypes if role not in SIDES)
    unordered = database.batches(
        f"SELECT i.rowid AS position, q.rowid::INT AS query, c.rowid::INT AS candidate{others} "
        "FROM interactions i JOIN entities_query q ON i.query = q.id "
        "JOIN entities_candidate c ON i.candidate = c.id"
    )
    for number, batch in enumerate(unordered):
        positions = batch["position"].to_numpy()
        for role, column in columns.items():
            column[positions] = batch[role].to_numpy(zero_copy_only=False)
        if number % RELEASED == 0:
            release(columns.values())
    for column in columns.values():
        column.flush()


def _entities(
    database: Database, side: SideName, kind: pa.DataType, features: pa.Table | None, spool: Path
) -> pa.Table:
    """Return the ids of a side in order, their numbers of interactions, and their features, by way
    of the file `spool`."""
    schema = pa.schema({"id": kind, f"{side}_count": pa.int64()})
    ordered = f"SELECT id, pairs AS {side}_count FROM entities_{side} ORDER BY rowid"
    with pa.ipc.new_file(str(spool), schema) as writer:
        for batch in database.batches(ordered):
            writer.write_batch(batch.cast(schema))
    with pa.memory_map(str(spool)) as source:
        # One batch, which can be mapped as one array.
        table = pa.ipc.open_file(source).read_all().combine_chunks()
    if features is not None:
        rows = rows_by_id(features["id"], table["id"].combine_chunks(), f"{side} features")
        for name in features.column_names[1:]:
            table = table.append_column(name, features[name].take(rows))
    return table
