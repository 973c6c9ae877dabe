"""`NewPart`: a part of a prepared folder, from sources to its files."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evergram.atomic_files import remove_tree, write_text
from evergram.data.feature_types import is_measure, type_name, typed
from evergram.data.prepared import engine
from evergram.data.prepared.column_file import release, sha256_of
from evergram.data.prepared.engine import Database
from evergram.data.prepared.record import (
    FORMAT_VERSION,
    NAME,
    SIDES,
    Choices,
    ColumnType,
    PartRecord,
    PreparedRecord,
    SideName,
    SideRecord,
)
from evergram.data.prepared.settings import PrepareSettings
from evergram.data.reading.interaction_source import Interactions, InteractionSource
from evergram.data.reading.keyed_table import refuse_repeated_ids, rows_by_id
from evergram.data.reading.rules import BadRows, Clock
from evergram.errors import DataError

# By side, `stored_features`; the same table for both if they are the same.
Features = Mapping[SideName, pa.Table]
# Columns in the order of `prepared.json`.
ORDER = ("query", "candidate", "value", "weight", "time")
# Columns of the files of entities that are no features.
COUNTS = ("count", "query_count", "candidate_count")
# Seconds between two lines of progress.
EVERY = 5.0
# Rows that are compared at once, and batches that are written before their pages are released.
BLOCK, RELEASED = 1 << 20, 16


class NewPart:
    """One run of `prepare`.

    Args:
        out: the prepared folder, with the earlier parts if there is a record.
        folder: an empty folder to fill with the new content of `out`.
        record: of the earlier parts; None for a first part.
        report: takes lines of progress.
    """

    def __init__(
        self,
        out: Path,
        folder: Path,
        settings: PrepareSettings,
        record: PreparedRecord | None,
        report: Callable[[str], object],
    ) -> None:
        self._out, self._folder, self._settings = out, folder, settings
        self._before, self._report = record, report
        self._in_order = True
        # By the name of each file of entities, its sides.
        self._files: dict[str, list[SideName]] = (
            {"entities": [*SIDES]} if settings.shared_ids else {side: [side] for side in SIDES}
        )

    def write(self, sources: Sequence[InteractionSource], features: Features) -> dict[str, Any]:
        """Fill the folder, and return the facts of `PrepareSummary` that are known by then.

        Raises: DataError: see `prepare`.
        """
        self._check_names(features)
        scratch = self._folder / ".engine"
        scratch.mkdir()
        with self._engine(scratch) as database:
            interactions = self._load(database, sources)
            usable = interactions.rows - interactions.bad_rows.count
            loaded = database.size("interactions")
            repeats, outside = self._leave_out(database, interactions)
            self._report("numbering ids")
            engine.number_ids(database, shared=self._settings.shared_ids)
            part = self._write_columns(database, interactions)
            self._report("writing entities")
            digests = self._write_entities(database, interactions, features)
        remove_tree(scratch)
        record = self._new_record(part, interactions, features, digests)
        if self._before is not None:
            _link_parts(self._before, self._out, self._folder)
        write_text(self._folder / NAME, record.model_dump_json(indent=1))
        known = {} if self._before is None else self._before.parts[-1].entities
        return {
            "out": str(self._out),
            "fingerprint": record.fingerprint,
            "rows_read": interactions.rows,
            "bad_rows": interactions.bad_rows.as_json(),
            "below_minimum": usable - loaded,
            "repeats_dropped": repeats,
            "outside_core": outside,
            "added": part.interactions,
            "interactions": record.interactions,
            "parts": len(record.parts),
            "entities": part.entities,
            "new_entities": {side: part.entities[side] - known.get(side, 0) for side in SIDES},
            "columns": record.columns,
            "unread": list(dict.fromkeys(name for source in sources for name in source.unread)),
            "first_time": part.first_time,
            "last_time": part.last_time,
        }

    def _engine(self, folder: Path) -> Database:
        return Database(folder, self._settings.memory_bytes, self._settings.thread_count)

    def _check_names(self, features: Features) -> None:
        """Refuse features of a name that another has, or that earlier parts do not have."""
        if self._settings.shared_ids and len({id(table) for table in features.values()}) == 2:
            query, candidate = (set(features[side].column_names[1:]) for side in SIDES)
            if both := query & candidate:
                raise DataError(
                    f"Both tables of features have {min(both)!r}, and ids are shared; give one "
                    "table for both sides, or other names."
                )
        if self._before is None:
            return
        for side, table in features.items():
            names = self._before.sides[side].features
            if other := [name for name in table.column_names[1:] if name not in names]:
                raise DataError(
                    f"{self._out} has no {side} feature {other[0]!r} (it has "
                    f"{', '.join(names) or 'none'}); leave it out, or prepare everything again "
                    "with --overwrite."
                )

    def _load(self, database: Database, sources: Sequence[InteractionSource]) -> Interactions:
        """Fill the table `interactions`, without values below the minimum.

        Raises: DataError: a source cannot be used, or there is no interaction.
        """
        self._report(f"reading {len(sources)} source{'s' if len(sources) > 1 else ''}")
        settings, before = self._settings, self._before
        least = settings.minimum_value
        interactions = Interactions(
            sources,
            shared_ids=settings.shared_ids,
            bad_rows=BadRows(settings.bad_rows),
            weights=settings.weights,
            clock=Clock() if before is None else Clock(before.times, str(self._out)),
            types={} if before is None else _least_types(before),
        )
        if least is not None and "value" not in interactions.types:
            raise DataError(
                f"minimum_value (--minimum-value) is {least}, and {interactions.name} has no "
                "values; name their column by --column value=NAME."
            )

        def fill(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
            database.run("DROP TABLE IF EXISTS interactions")
            database.create("interactions", schema, self._watched(batches, interactions))

        interactions.read(fill)
        if not database.size("interactions"):
            raise DataError(
                f"No interaction has a value of at least {least}; give a smaller "
                "minimum_value (--minimum-value)."
            )
        if before is not None:
            _check_columns(before, interactions.types, self._out)
            _check_times(before, database, self._out)
        return interactions

    def _watched(
        self, batches: Iterator[pa.RecordBatch], interactions: Interactions
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of at least the minimum value, note whether they are in order of time, and
        report how many there are."""
        started = shown = monotonic()
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
            if monotonic() - shown > EVERY:
                shown = monotonic()
                speed = interactions.rows / (shown - started)
                self._report(f"read {interactions.rows:,} rows, {speed:,.0f} rows/s")
            yield rows

    def _leave_out(self, database: Database, interactions: Interactions) -> tuple[int, int]:
        """Order the interactions, leave out what the settings say, and return how many repeat a
        pair, and how many are outside of the core."""
        settings, repeats, outside = self._settings, 0, 0
        self._load_known(database, interactions.types)
        if "time" in interactions.types and not self._in_order:
            self._report(f"sorting {database.size('interactions'):,} interactions by time")
            engine.sort_by_time(database)
        if settings.unique:
            self._report("looking for repeated pairs")
            repeats = engine.drop_repeats(database)
            if self._before is not None:
                repeats += self._drop_known_pairs(database, self._before)
                if not database.size("interactions"):
                    raise DataError(
                        f"All pairs are in {self._out} already, which keeps each once; there is "
                        "nothing to append."
                    )
        if settings.k_core > 1:
            self._report(f"looking for the {settings.k_core}-core")
            outside = engine.keep_core(database, settings.k_core)
        return repeats, outside

    def _load_known(self, database: Database, types: Mapping[str, pa.DataType]) -> None:
        """Make the tables of earlier ids, `known_query` and `known_candidate`; a first part has
        none."""
        for name, sides in self._files.items():
            for side in sides:
                counts = pa.int64()
                schema = pa.schema([("id", types[side]), ("row", counts), ("count", counts)])
                known = schema.empty_table()
                if self._before is not None:
                    table = _read(self._out / f"{name}.arrow")
                    rows = pa.array(np.arange(len(table)))
                    columns = [table["id"], rows, table[_count(side, len(sides) > 1)]]
                    known = pa.table(columns, ["id", "row", "count"]).cast(schema)
                database.create(f"known_{side}", schema, known.to_batches())

    def _drop_known_pairs(self, database: Database, before: PreparedRecord) -> int:
        """Leave out pairs that an earlier part has, and return how many rows that are."""
        schema = pa.schema([(side, pa.int64()) for side in SIDES])

        def pairs() -> Iterator[pa.RecordBatch]:
            for part in before.parts:
                rows = [np.load(self._out / part.folder / f"{s}.npy", mmap_mode="r") for s in SIDES]
                for start in range(0, part.interactions, engine.FETCHED):
                    some = (one[start : start + engine.FETCHED].astype(np.int64) for one in rows)
                    yield pa.record_batch(list(map(pa.array, some)), schema=schema)

        database.create("old_rows", schema, pairs())
        database.run(
            "CREATE TABLE old_pairs AS SELECT q.id AS query, c.id AS candidate FROM old_rows o "
            "JOIN known_query q ON o.query = q.row JOIN known_candidate c ON o.candidate = c.row "
            "SEMI JOIN interactions i ON i.query = q.id AND i.candidate = c.id",
            "DROP TABLE old_rows",
        )
        dropped = engine.drop_pairs(database, "old_pairs")
        database.run("DROP TABLE old_pairs")
        return dropped

    def _write_columns(self, database: Database, interactions: Interactions) -> PartRecord:
        """Write the interactions by rows as .npy files, in their order."""
        number = 0 if self._before is None else len(self._before.parts)
        folder = self._folder / "parts" / f"{number:05}"
        folder.mkdir(parents=True)
        entities: dict[str, int] = {side: database.size(f"ids_{side}") for side in SIDES}
        dtypes = {
            role: np.dtype(interactions.types[role].to_pandas_dtype())
            for role in ORDER
            if role in interactions.types
        } | {side: np.dtype(row_type(entities[side])) for side in SIDES}
        if self._before is not None and any(
            self._before.columns[side] != dtypes[side].name for side in SIDES
        ):
            raise DataError(
                f"{self._out} would have more than 2³¹ entities of a side, and its rows are "
                "int32; prepare everything again with --overwrite."
            )
        self._report("writing interactions")
        rows = database.size("interactions")
        others = "".join(f", i.{role}" for role in dtypes if role not in SIDES)
        in_no_order = database.batches(
            f"SELECT i.rowid AS place, q.row AS query, c.row AS candidate{others} "
            "FROM interactions i JOIN ids_query q ON i.query = q.id "
            "JOIN ids_candidate c ON i.candidate = c.id"
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
        for start in range(0, len(times), BLOCK):
            block = times[start : start + BLOCK + 1]
            if not bool(np.all(block[1:] >= block[:-1])):
                raise AssertionError("the engine's order of the interactions is not by time")
            release([times])
        return PartRecord(
            folder=f"parts/{number:05}",
            interactions=rows,
            entities=entities,
            first_time=times[0].item() if len(times) else None,
            last_time=times[-1].item() if len(times) else None,
            sources=[source.name for source in interactions.sources],
            sha256={role: sha256_of(folder / f"{role}.npy") for role in dtypes},
        )

    def _write_entities(
        self, database: Database, interactions: Interactions, features: Features
    ) -> dict[str, str]:
        """Write the files of entities, and return the SHA-256 of each."""
        digests: dict[str, str] = {}
        for name, sides in self._files.items():
            counts = {_count(side, len(sides) > 1): _counts(database, side) for side in sides}
            own: dict[str, pa.Table] = {}  # one table of both sides is there once
            for side in sides:
                if side in features and not any(features[side] is one for one in own.values()):
                    own[f"{side} features"] = features[side]
            kind = interactions.types[sides[0]]
            new = [
                batch["id"].cast(kind)
                for batch in database.batches(f"SELECT id FROM new_{sides[0]} ORDER BY rowid")
            ]
            ids = pa.concat_arrays([pa.array([], kind), *new])
            before = None if self._before is None else _read(self._out / f"{name}.arrow")
            path = self._folder / f"{name}.arrow"
            table = _entities(ids, counts, own, before)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            digests[path.name] = sha256_of(path)
        return digests

    def _new_record(
        self,
        part: PartRecord,
        interactions: Interactions,
        features: Features,
        digests: dict[str, str],
    ) -> PreparedRecord:
        settings, before = self._settings, self._before
        parts = [part] if before is None else [*before.parts, part]
        names = {s: features[s].column_names[1:] if s in features else [] for s in SIDES}
        if before is not None:
            names = {side: before.sides[side].features for side in SIDES}
        content = ["" if before is None else before.fingerprint, *digests.values()]
        content += [f"{role} {digest}" for role, digest in part.sha256.items()]
        columns = {
            role: interactions.types[role].to_pandas_dtype().__name__
            for role in ORDER
            if role in interactions.types
        } | {side: row_type(part.entities[side]) for side in SIDES}
        return PreparedRecord(
            format_version=FORMAT_VERSION,
            name=before.name if before else settings.name or self._out.name,
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
            choices=Choices(
                unique=settings.unique,
                k_core=settings.k_core,
                minimum_value=settings.minimum_value,
                columns=dict(settings.columns),
                weights=dict(settings.weights),
            ),
            entity_files=digests,
        )


def _new_column(path: Path, dtype: np.dtype[Any], rows: int) -> Any:
    """Return a new mapped column; its blocks exist, as a full disk must not end a write to them."""
    column = np.lib.format.open_memmap(path, "w+", dtype.newbyteorder("<"), (rows,))
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return column


def row_type(entities: int) -> str:
    """Return the type of the rows of a side of so many entities."""
    return "int32" if entities <= 1 << 31 else "int64"


def kept_settings(record: PreparedRecord, settings: PrepareSettings, out: Path) -> PrepareSettings:
    """Return the settings of an append: what is left out of a corpus holds for all of its parts.

    Raises: DataError: the settings say otherwise than those of the first part.
    """
    choices = record.choices
    first: dict[str, Any] = {
        "name": record.name,
        "shared_ids": record.shared_ids,
        "unique": choices.unique,
        "k_core": choices.k_core,
        "minimum_value": choices.minimum_value,
        "weights": choices.weights,
    }
    for name, value in first.items():
        given = getattr(settings, name)
        if given not in (getattr(PrepareSettings(), name), value):
            raise DataError(
                f"{out} was prepared with {name} = {value!r}, which holds for what is appended, "
                f"and now {name} is {given!r}; leave it out, or prepare everything again with "
                "--overwrite."
            )
    return replace(settings, columns=settings.columns or choices.columns, **first)


def stored_features(table: pa.Table, source: str) -> pa.Table:
    """Return a table of features in the types of the files of entities, which are those that
    `Corpus.from_tables` gives them: numbers, times, keys, and lists of keys.

    Raises: DataError: an id comes twice, or a column is no feature.
    """
    refuse_repeated_ids(table["id"], source)
    columns = {"id": table["id"]}
    for name in table.column_names:
        if name in COUNTS:
            raise DataError(
                f"{source} have a column {name!r}, a name that counts of interactions have; "
                "rename it."
            )
        if name != "id":
            columns[name] = _stored(typed(table[name], name, source), f"{source} column {name!r}")
    return pa.table(columns)


def _stored(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    kind = column.type
    if is_measure(kind):
        return column
    many = pa.types.is_nested(kind)
    flat = kind.value_type if many else kind
    key = pa.int64() if pa.types.is_integer(flat) else pa.string()
    key = pa.bool_() if pa.types.is_boolean(flat) else key
    try:
        column = column.cast(pa.list_(key) if many else key)
    except pa.ArrowException as error:
        raise DataError(f"{where} cannot be read as {key}: {error}.") from error
    if many and any(chunk.flatten().null_count for chunk in column.chunks):
        raise DataError(f"{where} has a null inside a list; remove it.")
    return column


def _count(side: str, shared: bool) -> str:
    """Return the column of a file of entities that counts the interactions of a side."""
    return f"{side}_count" if shared else "count"


def _counts(database: Database, side: str) -> Any:
    """Return the interactions of each entity of a side in the new part, int64 [N]."""
    counts = np.zeros(database.size(f"ids_{side}"), np.int64)
    query = (
        f"SELECT v.row, n.count FROM (SELECT {side} AS id, count(*) AS count FROM interactions "
        f"GROUP BY {side}) n JOIN ids_{side} v ON n.id = v.id"
    )
    for batch in database.batches(query):
        counts[batch["row"].to_numpy()] = batch["count"].to_numpy()
    return counts


def _entities(
    new_ids: pa.Array,
    counts: Mapping[str, Any],
    features: Mapping[str, pa.Table],
    before: pa.Table | None,
) -> pa.Table:
    """Return the ids of earlier parts as they were, and then the new ones.

    Args:
        counts: by column, what the new part adds to the count of each entity, int64 [N].
        features: by what errors call it, a table of features of new ids.
        before: the entities of the earlier parts, whose features are all there are.
    Raises: DataError: features have none of the ids of a first part, or other types than before.
    """
    table = pa.table({"id": new_ids, **{n: np.zeros(len(new_ids), np.int64) for n in counts}})
    for source, own in features.items():
        rows = rows_by_id(own["id"], new_ids, source, must_match=before is None)
        for name in own.column_names[1:]:
            table = table.append_column(name, own[name].take(rows))
    if before is not None:
        columns = {
            field.name: _as_before(table[field.name], field)
            if field.name in table.column_names
            else pa.nulls(len(table), field.type)
            for field in before.schema
        }
        table = pa.concat_tables([before, pa.table(columns, before.schema)])
    for name, added in counts.items():
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(table[name].to_numpy() + added))
    return table


def _as_before(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return values.cast(field.type)
    except pa.ArrowException:
        raise DataError(
            f"The feature {field.name!r} is a {type_name(field.type)} ({field.type}) in earlier "
            f"parts, and a {type_name(values.type)} ({values.type}) in what is appended; write it "
            "as before, or prepare everything again with --overwrite."
        ) from None


def _read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as mapped:
        return pa.ipc.open_file(mapped).read_all()


def _least_types(record: PreparedRecord) -> dict[str, pa.DataType]:
    """Return the types that the new part's columns have at least."""
    least = {side: pa.string() for side in SIDES if record.sides[side].ids == "string"}
    return least | ({"time": pa.float64()} if record.columns.get("time") == "float64" else {})


def _check_columns(record: PreparedRecord, types: Mapping[str, pa.DataType], out: Path) -> None:
    """Refuse columns or types that differ from those of the earlier parts."""
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
                "as integers, or prepare everything again with --overwrite."
            )


def _check_times(record: PreparedRecord, database: Database, out: Path) -> None:
    """Refuse interactions of before the last part's end."""
    last = record.parts[-1].last_time
    if last is None:
        return
    first = database.rows("SELECT min(time) FROM interactions")[0][0]
    if first < last:
        early = database.number(f"SELECT count(*) FROM interactions WHERE time < {last!r}")
        raise DataError(
            f"What is appended begins at {first}, before the end of {out} at {last} ({early:,} "
            "interactions are earlier); append only later ones, or prepare all sources again with "
            "--overwrite."
        )


def _link_parts(record: PreparedRecord, out: Path, folder: Path) -> None:
    """Give a folder the files of the earlier parts, by hard links where the disk has them."""
    for part in record.parts:
        (folder / part.folder).mkdir(parents=True)
        for file in (out / part.folder).iterdir():
            target = folder / part.folder / file.name
            with suppress(OSError):
                os.link(file, target)
            if not target.exists():
                shutil.copy2(file, target)
