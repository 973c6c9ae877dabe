"""`prepare`: interactions of any size, from files to a prepared folder, in bounded memory.

DuckDB orders, filters and numbers them. Its table `interactions` has one column a role, and `rowid`
is the place of a row; each step makes it anew in the order of the old one. The ids of earlier parts
are in tables `known_…`, and all ids in `entities_…`, each (id, row, counts); a table is named after
its file of entities: `query` and `candidate`, or `entities` where ids are shared.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from evergram.data.data_sets import existing, whole_path
from evergram.data.feature_types import is_measure, type_name, typed
from evergram.data.loaders import LOADERS, load, path_kinds
from evergram.data.prepared.files import (
    FORMAT_VERSION,
    NAME,
    Choices,
    ColumnType,
    PartRecord,
    PreparedRecord,
    SideRecord,
    release,
    sha256_of,
)
from evergram.data.reading.files import MemoryTable, Paths
from evergram.data.reading.interactions import (
    AdjacencyList,
    InteractionSource,
    InteractionSources,
    check_roles,
    read_features,
    source_of,
    sources_of_files,
)
from evergram.data.reading.keyed_table import rows_by_id
from evergram.data.reading.rules import SIDES, BadRows, BadRowsChoice, Clock, SideName
from evergram.data.rolling_window import date_text
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, reason_and_remedy
from evergram.ids import refuse_repeats

if TYPE_CHECKING:
    from evergram.data.corpus import Corpus
    from evergram.data.features import Side

    Source: TypeAlias = Paths | Corpus | pa.Table

# By side, `stored_features`; the same table for both if they are the same.
Features = Mapping[SideName, pa.Table]
# Columns in the order of `prepared.json`.
ORDER = ("query", "candidate", "value", "weight", "time")
# Columns of the files of entities that are no features.
COUNTS = ("query_count", "candidate_count")
# The engine's memory where none is named: a quarter of the machine's, between these.
LEAST_MEMORY, MOST_MEMORY = 128 << 20, 2 << 30
# Seconds between two lines of progress.
EVERY = 5.0
# Rows that are fetched from the engine at once, and batches that are written before their pages
# are released.
FETCHED, RELEASED = 1 << 17, 16
AGAIN = "prepare everything again with --overwrite"


@dataclass(frozen=True)
class PrepareSettings:
    """Which columns a corpus is prepared from, what is left out, and what the engine may use.

    Args:
        columns: the files' own names of the columns query, candidate, value, time and weight,
            {"query": "user_id"}; and of the ids in files of features, {"candidate_id": "sku"}.
        weights: by name of an event its weight, {"view": 1, "cart": 3}, where the column of weights
            holds such names.
        query_features, candidate_features: files with a column `id` and one column a feature.
        shared_ids: query and candidate ids name the same things.
        unique: keep of each pair its first interaction in time; without times, in the sources'
            order.
        k_core: keep the largest part of the interactions in which each query and each candidate
            has at least k of them; 0 keeps all. Applied last.
        minimum_value: leave out interactions of a smaller value. Applied first.
        bad_rows: "drop" leaves out rows without an id, or with a value, weight or time that is no
            number or date, and says so; "refuse" raises an error that counts them.
        memory: bytes that the engine may hold, or a text such as "2GiB"; None takes a quarter of
            the machine's memory, at most 2 GiB.
        threads: of the engine; None takes one for each core.
        kind: "table", or another kind of a recipe's data, whose loader reads the source; of an
            adjacency_list interactions are streamed, other loaders hold their corpus in memory.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    query_features: Paths | None = None
    candidate_features: Paths | None = None
    shared_ids: bool = False
    unique: bool = False
    k_core: int = 0
    minimum_value: float | None = None
    bad_rows: BadRowsChoice = "refuse"
    memory: int | str | None = None
    threads: int | None = None
    kind: str = "table"

    def __post_init__(self) -> None:
        check_roles(self.columns)
        if self.bad_rows not in get_args(BadRowsChoice):
            raise DataError(f"bad_rows is {self.bad_rows!r}; it is 'refuse' or 'drop'.")
        for name, least in (("k_core", 0), ("threads", 1), ("minimum_value", -math.inf)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise DataError(f"{name} is {value}; it must be a number ≥ {least}.")
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
    """What a run of `prepare` read, left out and wrote; docs/commands.md explains each value."""

    out: str
    fingerprint: str
    rows_read: int
    bad_rows: dict[str, Any]
    below_minimum: int
    repeats_dropped: int
    outside_core: int
    added: int
    interactions: int
    parts: int
    entities: dict[str, int]
    new_entities: dict[str, int]
    columns: dict[str, str]
    unread: list[str]
    first_time: int | float | None
    last_time: int | float | None
    size: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return it in lines for people."""
        left_out = {
            "bad rows": self.bad_rows["count"],
            "below the minimum value": self.below_minimum,
            "repeats": self.repeats_dropped,
            "outside the core": self.outside_core,
        }
        dropped = "".join(f", {count:,} {why}" for why, count in left_out.items() if count)
        part = f" (part {self.parts}; {self.interactions:,} in all)" if self.parts > 1 else ""
        queries, candidates = self.entities["query"], self.entities["candidate"]
        lines = [
            f"{self.out}: {self.added:,} interactions{part} of {queries:,} queries with "
            f"{candidates:,} candidates.",
            f"Read {self.rows_read:,} rows{dropped and '; left out' + dropped[1:]}.",
            *(f"Bad: {reason}." for reason in self.bad_rows["reasons"]),
        ]
        if self.parts > 1:
            new = self.new_entities
            lines.append(f"New: {new['query']:,} queries, {new['candidate']:,} candidates.")
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
    sources: Source,
    out: str | Path,
    settings: PrepareSettings | None = None,
    *,
    append: bool = False,
    overwrite: bool = False,
    progress: Callable[[str], object] = lambda line: None,
) -> PrepareSummary:
    """Write interactions to a prepared folder, which `data.kind = "prepared"` trains from.

    Ids get rows by first appearance, interactions are in order of time (ties and interactions
    without times in the order of the sources, files of a folder or glob by name), as in
    `Corpus.from_tables`; all of it on disk, by DuckDB. The folder holds the old content or the new
    one at any moment.

    Args:
        sources: one or several files (Parquet, Arrow, CSV or TSV, gzipped or not), folders of
            files, globs and addresses such as s3://…; or a `Corpus`, or an Arrow table whose
            columns are named by role.
        out: the folder.
        settings: which columns are read, what is left out, and what the engine may use.
        append: add a part to the folder. Its interactions begin no earlier than the last part
            ends; rows of earlier ids stay, and so do their features; what the first part left out
            (unique, k_core, minimum_value) is left out again, counted over all parts.
        overwrite: replace the folder if it is a prepared corpus.
        progress: takes lines, such as `print`.
    Returns: what was read, left out and written.
    Raises: DataError: a source or a row cannot be used, the folder holds something else or is being
        written by another process, appended data is too early, or DuckDB is not installed. The
        folder is then as it was.
    """
    started = time.monotonic()
    # An append goes where a link leads; a first write refuses one.
    out = Path(out).resolve() if append else Path(out).absolute()
    settings = settings or PrepareSettings()
    with _writing(out):
        _check_place(out, append=append, overwrite=overwrite)
        record = PreparedRecord.load(out) if append else None
        if record is not None:
            settings = _kept_settings(record, settings, out)
        with _new_content(out) as folder:
            opened, features, settings = _opened(sources, settings)
            if record is not None and settings.shared_ids != record.shared_ids:
                own = f"Queries and candidates of {out} have ids of their own"
                raise DataError(f"{own}, and those of {sources!r} share theirs; {AGAIN}.")
            summary = NewPart(out, folder, settings, record, progress).write(opened, features)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return replace(summary, size=size, seconds=time.monotonic() - started)


def _kept_settings(record: PreparedRecord, settings: PrepareSettings, out: Path) -> PrepareSettings:
    """Return the settings of an append: what is left out of a corpus holds for all of its parts."""
    first = {"shared_ids": record.shared_ids, **record.choices.model_dump()}
    columns = first.pop("columns")
    for name, value in first.items():
        given = getattr(settings, name)
        if given not in (getattr(PrepareSettings(), name), value):
            raise DataError(
                f"{out} was prepared with {name} = {value!r}, which holds for what is appended, "
                f"and now {name} is {given!r}; leave it out, or {AGAIN}."
            )
    return replace(settings, columns=settings.columns or columns, **first)


def _opened(
    sources: Source, settings: PrepareSettings
) -> tuple[list[InteractionSource], Features, PrepareSettings]:
    """Return the interactions of the sources, the features of each side, and the settings.

    Features are read whole: what cannot be used is refused before hours of interactions are read.
    """
    features: dict[SideName, pa.Table] = {}
    opened: Any = sources
    if isinstance(sources, str | Path | list | tuple):
        opened = _of_paths(sources, settings)
    elif isinstance(sources, pa.Table):
        opened = [source_of(MemoryTable(sources, "The table"), settings.columns)]
    if hasattr(opened, "interactions"):
        sides: dict[SideName, Side] = {"query": opened.queries, "candidate": opened.candidates}
        features = {name: _table_of(side) for name, side in sides.items() if side.features}
        settings = replace(settings, shared_ids=settings.shared_ids or opened.shared_ids)
        opened = [_source_of_corpus(opened)]
    if not isinstance(opened, list):
        raise DataError(
            f"sources is {type(sources).__name__}; give paths, an Arrow table or a Corpus."
        )
    files = settings.query_features, settings.candidate_features
    features |= read_features(*files, settings.columns, settings.bad_rows)
    features = {s: _stored_features(table, f"{s} features") for s, table in features.items()}
    if settings.shared_ids and len(features) == 2:
        query, candidate = (features[side] for side in SIDES)
        both = set(query.column_names[1:]) & set(candidate.column_names)
        same = set(query.column_names) == set(candidate.column_names)
        if same and query.equals(candidate.select(query.column_names)):
            features["candidate"] = query
        elif both:
            raise DataError(
                f"Queries and candidates share their ids, and both tables of features have "
                f"{min(both)!r}; give one table for both sides, or other names."
            )
    return opened, features, settings


def _of_paths(sources: Paths, settings: PrepareSettings) -> list[InteractionSource] | Corpus:
    """Return the interactions of files, or the corpus of a loader that does not stream."""
    kind, kinds = settings.kind, [one for one in path_kinds() if one != "prepared"]
    paths = sources if isinstance(sources, list | tuple) else [sources]
    if kind == "table":
        return sources_of_files(paths, settings.columns)
    if kind not in kinds:
        raise DataError(
            f"kind (--kind) is {kind!r}; it is one of: {', '.join(kinds)}"
            f"{did_you_mean(kind, kinds)}."
        )
    if len(paths) != 1:
        raise DataError(f"The kind {kind} reads one file or folder, and {len(paths)} are named.")
    path = existing(whole_path(str(paths[0]), Path()))
    if kind == "adjacency_list":
        return [source_of(AdjacencyList(path), {})]
    return load(LOADERS.of({"kind": kind, "path": str(path)}), 0)


def _source_of_corpus(corpus: Corpus) -> InteractionSource:
    columns = {name: corpus.interactions[name] for name in corpus.interactions.column_names}
    for name, side in (("query", corpus.queries), ("candidate", corpus.candidates)):
        keys = side.vocabulary.keys
        ids = [pa.DictionaryArray.from_arrays(rows, keys) for rows in columns[name].chunks]
        columns[name] = pa.chunked_array(ids)
    return source_of(MemoryTable(pa.table(columns), repr(corpus)), {})


def _table_of(side: Side) -> pa.Table:
    columns = {"id": side.vocabulary.keys}
    for name, feature in side.features.items():
        keys = feature.vocabulary.keys.take(pa.array(feature.indices.numpy()))
        if is_measure(keys.type):  # one of each object that has it
            empty = (feature.offsets[1:] == feature.offsets[:-1]).numpy()
            rows = np.where(empty, 0, feature.offsets[:-1].numpy())
            columns[name] = keys.take(pa.array(rows, mask=empty))
        else:
            offsets = pa.array(feature.offsets.numpy().astype("int32"))
            columns[name] = pa.ListArray.from_arrays(offsets, keys)
    return pa.table(columns)


def _stored_features(table: pa.Table, source: str) -> pa.Table:
    """Return a table of features in the types of the files of entities, see `typed`."""
    refuse_repeats(table["id"], source)
    for name in set(COUNTS) & set(table.column_names):
        raise DataError(
            f"{source} have a column {name!r}, a name that counts of interactions have; rename it."
        )
    names = [name for name in table.column_names if name != "id"]
    return pa.table({"id": table["id"], **{n: typed(table[n], n, source) for n in names}})


class Database:
    """A DuckDB of tables that may exceed memory; a context manager.

    Args:
        folder: exists; its maker removes it with everything in it.
        memory: bytes that the engine may hold.
    """

    def __init__(self, folder: Path, memory: int, threads: int | None = None) -> None:
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
        if threads is None:
            mine = getattr(os, "sched_getaffinity", None)  # Linux: of this process or container
            threads = (os.cpu_count() or 1) if mine is None else len(mine(0))
        self._connection: Any = duckdb.connect(
            str(folder / "interactions.duckdb"),
            config={
                "memory_limit": f"{memory >> 10}KiB",
                "threads": threads,
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

    def rewrite(self, query: str) -> int:
        """Make `interactions` what a query selects, and return how many rows fewer there are."""
        before = self.size("interactions")
        self.run(
            f"CREATE TABLE replaced AS {query}",
            "DROP TABLE interactions",
            "ALTER TABLE replaced RENAME TO interactions",
        )
        return before - self.size("interactions")

    def _refusal(self, error: Exception) -> DataError:
        text = " ".join(str(error).split("\n")[0].split()).rstrip(".")
        if not isinstance(error, self._exhaustion):
            return DataError(f"The engine cannot use the data: {text}.")
        return DataError(
            f"The engine could not go on with {self._memory >> 20} MiB of memory and the disk of "
            f"{self._folder.parent} ({text}); give it more memory by --memory, or "
            "a disk with more room."
        )


class NewPart:
    """One run of `prepare`, which fills an empty `folder` with the new content of `out`: the parts
    of the record `before`, if there is one, and a new part."""

    def __init__(
        self,
        out: Path,
        folder: Path,
        settings: PrepareSettings,
        before: PreparedRecord | None,
        report: Callable[[str], object],
    ) -> None:
        self._out, self._folder, self._settings = out, folder, settings
        self._before, self._report = before, report
        self._in_order = True
        # By the name of each file of entities, its sides.
        self._files: dict[str, tuple[SideName, ...]] = {side: (side,) for side in SIDES}
        if settings.shared_ids:
            self._files = {"entities": SIDES}
        self._file_of: dict[SideName, str] = {
            side: name for name, sides in self._files.items() for side in sides
        }

    def write(self, sources: Sequence[InteractionSource], features: Features) -> PrepareSummary:
        scratch = self._folder / ".engine"
        scratch.mkdir()
        with Database(scratch, self._settings.memory_bytes, self._settings.threads) as database:
            names = self._names_of_features(features)
            interactions = self._load(database, sources)
            usable = interactions.rows - interactions.bad_rows.count
            loaded = database.size("interactions")
            self._load_known(database, interactions.types)
            repeats, outside = self._leave_out(database, "time" in interactions.types)
            self._report("numbering ids")
            for file, sides in self._files.items():
                number_ids(database, file, sides)
            part = self._write_columns(database, interactions)
            self._report("writing entities")
            digests = self._write_entities(database, interactions.types, features)
        remove_tree(scratch)
        record = self._record_of(part, interactions, names, digests)
        for earlier in record.parts[:-1]:
            _link(self._out / earlier.folder, self._folder / earlier.folder)
        write_text(self._folder / NAME, record.model_dump_json(indent=1))
        known = {} if self._before is None else self._before.parts[-1].entities
        return PrepareSummary(
            out=str(self._out),
            fingerprint=record.fingerprint,
            rows_read=interactions.rows,
            bad_rows=interactions.bad_rows.as_json(),
            below_minimum=usable - loaded,
            repeats_dropped=repeats,
            outside_core=outside,
            added=part.interactions,
            interactions=record.interactions,
            parts=len(record.parts),
            entities=part.entities,
            new_entities={side: part.entities[side] - known.get(side, 0) for side in SIDES},
            columns=dict(record.columns),
            unread=list(dict.fromkeys(name for source in sources for name in source.unread)),
            first_time=part.first_time,
            last_time=part.last_time,
        )

    def _names_of_features(self, features: Features) -> dict[SideName, list[str]]:
        """Return the names of each side's features, which an append may not add to."""
        names = {s: features[s].column_names[1:] if s in features else [] for s in SIDES}
        if self._before is None:
            return names
        earlier = {side: self._before.sides[side].features for side in SIDES}
        for side in SIDES:
            if other := [name for name in names[side] if name not in earlier[side]]:
                raise DataError(
                    f"{self._out} has no {side} feature {other[0]!r} (it has "
                    f"{', '.join(earlier[side]) or 'none'}); leave it out, or {AGAIN}."
                )
        return earlier

    def _load(self, database: Database, sources: Sequence[InteractionSource]) -> InteractionSources:
        """Fill the table `interactions`, without values below the minimum."""
        self._report(f"reading {len(sources)} source{'s' if len(sources) > 1 else ''}")
        settings, before = self._settings, self._before
        least = settings.minimum_value
        interactions = InteractionSources(
            sources,
            shared_ids=settings.shared_ids,
            bad_rows=BadRows(settings.bad_rows),
            weights=settings.weights,
            clock=Clock() if before is None else Clock(before.times, str(self._out)),
            types={} if before is None else _least_types(before),
        )
        if least is not None and "value" not in interactions.types:
            what = f"{interactions.name} has no values for minimum_value (--minimum-value)"
            raise DataError(f"{what}; name their column by --column value=NAME.")

        def fill(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
            database.run("DROP TABLE IF EXISTS interactions")
            database.create("interactions", schema, self._watched(batches, interactions))

        interactions.read(fill)
        if not database.size("interactions"):
            raise DataError(f"No value is at least {least}; give a smaller --minimum-value.")
        if before is not None:
            _check_fits(before, interactions.types, database, self._out)
        return interactions

    def _watched(
        self, batches: Iterator[pa.RecordBatch], interactions: InteractionSources
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of at least the minimum value; note whether they are in order of time, and
        report how many there are."""
        started = shown = time.monotonic()
        self._in_order, last = True, -np.inf
        for batch in batches:
            rows = batch
            if self._settings.minimum_value is not None:
                least = pa.scalar(self._settings.minimum_value, pa.float32())
                rows = batch.filter(pc.greater_equal(batch["value"], least))
            if "time" in interactions.types and rows.num_rows and self._in_order:
                times = rows["time"].to_numpy()
                self._in_order = bool(last <= times[0] and np.all(times[1:] >= times[:-1]))
                last = times[-1]
            if time.monotonic() - shown > EVERY:
                shown = time.monotonic()
                speed = interactions.rows / (shown - started)
                self._report(f"read {interactions.rows:,} rows, {speed:,.0f} rows/s")
            yield rows

    def _load_known(self, database: Database, types: Mapping[str, pa.DataType]) -> None:
        """Make the tables of earlier ids."""
        for name, sides in self._files.items():
            numbers = dict.fromkeys(["row", *map(_count, sides)], pa.int64())
            schema = pa.schema({"id": types[sides[0]], **numbers})
            known = schema.empty_table()
            if self._before is not None:
                table = self._earlier(name)
                known = table.append_column("row", pa.array(np.arange(len(table))))
                known = known.select(schema.names).cast(schema)
            database.create(f"known_{name}", schema, known.to_batches())

    def _earlier(self, name: str) -> pa.Table:
        with pa.memory_map(str(self._out / f"{name}.arrow")) as mapped:
            return pa.ipc.open_file(mapped).read_all()

    def _leave_out(self, database: Database, has_times: bool) -> tuple[int, int]:
        """Order the interactions, leave out what the settings say, and return how many repeat a
        pair and how many are outside of the core."""
        settings, repeats, outside = self._settings, 0, 0
        if has_times and not self._in_order:
            self._report(f"sorting {database.size('interactions'):,} interactions by time")
            database.rewrite("SELECT * FROM interactions ORDER BY time, rowid")
        if settings.unique:
            self._report("looking for repeated pairs")
            repeats = database.rewrite(
                "SELECT i.* FROM interactions i JOIN (SELECT min(rowid) AS first FROM interactions "
                "GROUP BY query, candidate) f ON i.rowid = f.first ORDER BY i.rowid"
            )
            if self._before is not None:
                repeats += self._drop_known_pairs(database, self._before)
        if settings.k_core > 1:
            self._report(f"looking for the {settings.k_core}-core")
            outside = keep_core(database, settings.k_core, self._file_of)
        return repeats, outside

    def _drop_known_pairs(self, database: Database, before: PreparedRecord) -> int:
        """Leave out pairs that an earlier part has, and return how many rows that are."""
        schema = pa.schema([(side, pa.int64()) for side in SIDES])

        def pairs() -> Iterator[pa.RecordBatch]:
            for part in before.parts:
                rows = [np.load(self._out / part.folder / f"{s}.npy", mmap_mode="r") for s in SIDES]
                for start in range(0, part.interactions, FETCHED):
                    some = (one[start : start + FETCHED].astype(np.int64) for one in rows)
                    yield pa.record_batch(list(map(pa.array, some)), schema=schema)

        database.create("old_rows", schema, pairs())
        query, candidate = (f"known_{self._file_of[side]}" for side in SIDES)
        dropped = database.rewrite(
            "SELECT i.* FROM interactions i ANTI JOIN (SELECT q.id AS query, c.id AS candidate "
            f"FROM old_rows o JOIN {query} q ON o.query = q.row "
            f"JOIN {candidate} c ON o.candidate = c.row) o "
            "ON i.query = o.query AND i.candidate = o.candidate ORDER BY i.rowid"
        )
        database.run("DROP TABLE old_rows")
        if not database.size("interactions"):
            raise DataError(f"All pairs are in {self._out} already; there is nothing to append.")
        return dropped

    def _write_columns(self, database: Database, interactions: InteractionSources) -> PartRecord:
        """Write the interactions by rows as .npy files, in their order."""
        name = f"parts/{0 if self._before is None else len(self._before.parts):05}"
        folder = self._folder / name
        folder.mkdir(parents=True)
        dtypes = _dtypes(interactions)
        self._report("writing interactions")
        rows = database.size("interactions")
        others = "".join(f", i.{role}" for role in dtypes if role not in SIDES)
        in_no_order = database.batches(
            f"SELECT i.rowid AS place, q.row::INT AS query, c.row::INT AS candidate{others} "
            f"FROM interactions i JOIN entities_{self._file_of['query']} q ON i.query = q.id "
            f"JOIN entities_{self._file_of['candidate']} c ON i.candidate = c.id"
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
        times = columns.get("time", np.zeros(0))
        return PartRecord(
            folder=name,
            interactions=rows,
            entities={str(s): database.size(f"entities_{f}") for s, f in self._file_of.items()},
            first_time=times[0].item() if len(times) else None,
            last_time=times[-1].item() if len(times) else None,
            sources=[source.table.name for source in interactions.sources],
            sha256={role: sha256_of(folder / f"{role}.npy") for role in dtypes},
        )

    def _write_entities(
        self, database: Database, types: Mapping[str, pa.DataType], features: Features
    ) -> dict[str, str]:
        """Write the files of entities, and return the SHA-256 of each."""
        digests = {}
        for name, sides in self._files.items():
            counts = list(map(_count, sides))
            schema = pa.schema({"id": types[sides[0]], **dict.fromkeys(counts, pa.int64())})
            ordered = f"SELECT id, {', '.join(counts)} FROM entities_{name} ORDER BY row"
            batches = [batch.cast(schema) for batch in database.batches(ordered)]
            table = pa.Table.from_batches(batches, schema).combine_chunks()
            # One table of both sides is there once.
            own = {id(features[s]): (f"{s} features", features[s]) for s in sides if s in features}
            before = None if self._before is None else self._earlier(name)
            table = _described(table, [*own.values()], before)
            path = self._folder / f"{name}.arrow"
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            digests[path.name] = sha256_of(path)
        return digests

    def _record_of(
        self,
        part: PartRecord,
        interactions: InteractionSources,
        names: Mapping[SideName, list[str]],
        digests: dict[str, str],
    ) -> PreparedRecord:
        settings, before = self._settings, self._before
        parts = [part] if before is None else [*before.parts, part]
        content = ["" if before is None else before.fingerprint, *digests.values()]
        content += [f"{role} {digest}" for role, digest in part.sha256.items()]
        columns = {role: dtype.name for role, dtype in _dtypes(interactions).items()}
        return PreparedRecord(
            format_version=FORMAT_VERSION,
            shared_ids=settings.shared_ids,
            interactions=sum(one.interactions for one in parts),
            sides={
                side: SideRecord(
                    entities=part.entities[side],
                    ids="int64" if pa.types.is_integer(interactions.types[side]) else "string",
                    features=names[side],
                )
                for side in SIDES
            },
            columns=cast(dict[str, ColumnType], columns),
            times=interactions.clock.form,
            parts=parts,
            fingerprint=hashlib.sha256(" ".join(content).encode()).hexdigest(),
            choices=Choices.model_validate(settings, from_attributes=True),
            entity_files=digests,
        )


def _count(side: str) -> str:
    """Return the column of entities that counts the interactions of a side."""
    return f"{side}_count"


def keep_core(database: Database, k: int, files: Mapping[SideName, str]) -> int:
    """Keep the largest part of the interactions in which each query and each candidate has k, with
    those of earlier parts in the `files` of each side, and return how many rows were left out."""
    for side in SIDES:
        database.run(f"CREATE TABLE few_{side} AS SELECT {side} AS id FROM interactions LIMIT 0")
    left = (
        "interactions i ANTI JOIN few_query q ON i.query = q.id "
        "ANTI JOIN few_candidate c ON i.candidate = c.id"
    )
    few, before = 0, -1
    while few > before:
        before = few
        for side, file in files.items():
            database.run(
                f"INSERT INTO few_{side} SELECT n.id FROM "
                f"(SELECT i.{side} AS id, count(*) AS count FROM {left} GROUP BY i.{side}) n "
                f"LEFT JOIN known_{file} k ON n.id = k.id "
                f"WHERE n.count + coalesce(k.{_count(side)}, 0) < {k}"
            )
        few = sum(database.size(f"few_{side}") for side in SIDES)
    dropped = database.rewrite(f"SELECT i.* FROM {left} ORDER BY i.rowid")
    if not database.size("interactions"):
        raise DataError(f"No interaction is left with k_core (--k-core) {k}; give a smaller one.")
    return dropped


def number_ids(database: Database, file: str, sides: Sequence[SideName]) -> None:
    """Make the table `entities_…` of a file: the earlier ids, and then the new ones in the order of
    their first appearance; of shared ids, as in `Corpus`, those of queries come first."""
    counts = list(map(_count, sides))
    size = database.size("interactions")
    each = " UNION ALL ".join(
        f"SELECT {side} AS id, min(rowid) + {number * size} AS first, "
        + ", ".join(f"{'count(*)' if one == side else '0'} AS {_count(one)}" for one in sides)
        + f" FROM interactions GROUP BY {side}"
        for number, side in enumerate(sides)
    )
    added = ", ".join(f"sum({one})::BIGINT AS {one}" for one in counts)
    database.run(
        f"CREATE TABLE met AS SELECT id, min(first) AS first, {added} FROM ({each}) GROUP BY id",
        f"CREATE TABLE new AS SELECT m.* FROM met m ANTI JOIN known_{file} k ON m.id = k.id "
        "ORDER BY m.first",
        f"CREATE TABLE entities_{file} AS SELECT k.id, k.row, "
        + ", ".join(f"k.{one} + coalesce(m.{one}, 0) AS {one}" for one in counts)
        + f" FROM known_{file} k LEFT JOIN met m ON k.id = m.id UNION ALL SELECT id, rowid + "
        f"(SELECT count(*) FROM known_{file}), {', '.join(counts)} FROM new",
        "DROP TABLE met",
        "DROP TABLE new",
    )


def _described(
    table: pa.Table, features: Sequence[tuple[str, pa.Table]], before: pa.Table | None
) -> pa.Table:
    """Return the ids and counts of all entities, `table`, with their features: those of earlier
    parts as they were `before`."""
    known = 0 if before is None else len(before)
    new_ids = table["id"].slice(known).combine_chunks()
    new: dict[str, pa.ChunkedArray] = {}
    for source, own in features:
        rows = rows_by_id(own["id"], new_ids, source, must_match=before is None)
        new |= {name: own[name].take(rows) for name in own.column_names[1:]}
    if before is None:
        return pa.table({name: table[name] for name in table.column_names} | new)
    for place in before.schema:
        if place.name not in table.column_names:
            values = new.get(place.name, pa.chunked_array([pa.nulls(len(new_ids), place.type)]))
            try:
                values = values.cast(place.type)
            except pa.ArrowException:
                raise DataError(
                    f"The feature {place.name!r} is a {type_name(place.type)} ({place.type}) in "
                    f"earlier parts, and a {type_name(values.type)} ({values.type}) in what is "
                    f"appended; write it as before, or {AGAIN}."
                ) from None
            chunks = [*before[place.name].chunks, *values.chunks]
            table = table.append_column(place, pa.chunked_array(chunks, place.type))
    return table


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


def _least_types(record: PreparedRecord) -> dict[str, pa.DataType]:
    """Return the types that the new part's columns have at least."""
    least = {side: pa.string() for side in SIDES if record.sides[side].ids == "string"}
    return least | ({"time": pa.float64()} if record.columns.get("time") == "float64" else {})


def _check_fits(
    record: PreparedRecord, types: Mapping[str, pa.DataType], database: Database, out: Path
) -> None:
    """Refuse appended interactions of other columns or types than the earlier parts', or of before
    their end."""
    if set(record.columns) != set(types):
        raise DataError(
            f"{out} has the columns {', '.join(record.columns)}, and what is appended has "
            f"{', '.join(types)}; give it the same."
        )
    integers: list[str] = [side for side in SIDES if record.sides[side].ids == "int64"]
    integers += ["time"] * (record.columns.get("time") == "int64")
    for role in integers:
        if types[role] != pa.int64():
            what, others = ("times", "decimals") if role == "time" else (f"{role} ids", "text")
            raise DataError(
                f"The {what} of {out} are integers, and what is appended has {others}; write them "
                f"as integers, or {AGAIN}."
            )
    last = record.parts[-1].last_time
    if last is None:
        return
    first = database.rows("SELECT min(time) FROM interactions")[0][0]
    if first < last:
        early = database.size(f"interactions WHERE time < {last!r}")
        raise DataError(
            f"What is appended begins at {first}, before the end of {out} at {last} ({early:,} "
            f"interactions are earlier); append only later ones, or {AGAIN}."
        )


def _link(old: Path, new: Path) -> None:
    """Give a folder the files of an earlier part, by hard links where the disk has them."""
    new.mkdir(parents=True)
    for file in old.iterdir():
        with suppress(OSError):
            os.link(file, new / file.name)
        if not (new / file.name).exists():
            shutil.copy2(file, new / file.name)


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


def _check_place(out: Path, *, append: bool, overwrite: bool) -> None:
    """Refuse to write over something, or to append to nothing."""
    if append and overwrite:
        raise DataError("append and overwrite (--append, --overwrite) exclude each other.")
    if append:
        return
    if out.is_file() or out.is_symlink():
        raise DataError(f"{out} is a file or a link; name a new folder.")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not (out / NAME).is_file():
        raise DataError(f"{out} holds other files and is no prepared corpus; name a new folder.")
    if not overwrite:
        how = "--append adds a new part to it, --overwrite replaces it"
        raise DataError(f"{out} is a prepared corpus already; {how}.")


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
