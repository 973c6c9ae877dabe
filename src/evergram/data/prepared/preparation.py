"""`Preparation`: the steps of one run of `prepare`, from sources to the files of a new part."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from evergram.atomic_files import remove_tree, write_text
from evergram.data.prepared.column_file import sha256_of
from evergram.data.prepared.engine import (
    Database,
    Staged,
    Vocabularies,
    drop_pairs,
    drop_repeats,
    keep_core,
    sort_by_time,
    stage,
)
from evergram.data.prepared.parts import (
    PartFacts,
    new_ids_of,
    row_type,
    write_entities,
    write_part,
)
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
from evergram.data.reading.rules import BadRows, Clock
from evergram.errors import DataError

# By side, `stored_features`; the same table for both if they are the same.
Features = Mapping[SideName, pa.Table]
# Columns in the order of `prepared.json`.
_ORDER = ("query", "candidate", "value", "weight", "time")
_ROWS = 1 << 17


class Preparation:
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
        report: Callable[[str], None],
    ) -> None:
        self._out, self._folder, self._settings = out, folder, settings
        self._record, self._report = record, report
        self._number = 0 if record is None else len(record.parts)
        known: dict[str, int] = dict.fromkeys(SIDES, 0)
        if record is not None:
            known = {side: record.sides[side].entities for side in SIDES}
        known["entities"] = known["query"]
        self._vocabularies = Vocabularies(settings.shared_ids, known)
        self._dropped = {"repeats_dropped": 0, "outside_core": 0}

    def run(self, sources: Sequence[InteractionSource], features: Features) -> dict[str, Any]:
        """Fill the folder, and return the facts of `PrepareSummary` that are known by then.

        Raises: DataError: see `prepare`.
        """
        settings, engine = self._settings, self._folder / ".engine"
        self._check_names(features)
        engine.mkdir()
        with Database(engine, settings.memory_bytes, settings.thread_count) as database:
            staged = self._stage(database, sources)
            self._leave_out(database, staged)
            self._report("numbering ids")
            self._vocabularies.number_ids(database)
            facts, columns = self._write_columns(database, staged)
            self._report("writing entities")
            entity_files = self._write_entities(database, staged, features)
            sizes: dict[str, int] = {s: self._vocabularies.size(database, s) for s in SIDES}
        remove_tree(engine)
        part = PartRecord(
            folder=f"parts/{self._number:05}",
            interactions=facts.rows,
            entities=sizes,
            first_time=facts.first_time,
            last_time=facts.last_time,
            sources=[source.name for source in sources],
            sha256=facts.sha256,
        )
        record = self._new_record(part, columns, staged, features, entity_files)
        if self._record is not None:
            _link_parts(self._record, self._out, self._folder)
        write_text(self._folder / NAME, record.to_json())
        known = self._vocabularies.known
        return {
            "out": str(self._out),
            "fingerprint": record.fingerprint,
            "rows_read": staged.rows,
            "bad_rows": self._interactions.bad_rows.as_json(),
            "below_minimum": staged.small,
            **self._dropped,
            "added": facts.rows,
            "interactions": record.interactions,
            "parts": len(record.parts),
            "entities": sizes,
            "new_entities": {side: sizes[side] - known[side] for side in SIDES},
            "columns": columns,
            "unread": list(dict.fromkeys(name for source in sources for name in source.unread)),
            "first_time": facts.first_time,
            "last_time": facts.last_time,
        }

    def _check_names(self, features: Features) -> None:
        """Refuse features of a name that another has, or that earlier parts do not have."""
        if self._settings.shared_ids and len({id(table) for table in features.values()}) == 2:
            query, candidate = (set(features[side].column_names[1:]) for side in SIDES)
            if both := query & candidate:
                raise DataError(
                    f"Both tables of features have {min(both)!r}, and ids are shared; give one "
                    "table for both sides, or other names."
                )
        if self._record is None:
            return
        for side, table in features.items():
            names = self._record.sides[side].features
            other = [name for name in table.column_names[1:] if name not in names]
            if other:
                raise DataError(
                    f"{self._out} has no {side} feature {other[0]!r} (it has "
                    f"{', '.join(names) or 'none'}); leave it out, or prepare everything again "
                    "with --overwrite."
                )

    def _stage(self, database: Database, sources: Sequence[InteractionSource]) -> Staged:
        self._report(f"reading {len(sources)} source{'s' if len(sources) > 1 else ''}")
        record, settings = self._record, self._settings
        self._interactions = Interactions(
            sources,
            shared_ids=settings.shared_ids,
            bad_rows=BadRows(settings.bad_rows),
            weights=settings.weights,
            clock=Clock() if record is None else Clock(record.times, str(self._out)),
            types={} if record is None else _least_types(record),
        )
        staged = stage(database, self._interactions, settings.minimum_value, self._report)
        if record is not None:
            _check_columns(record, staged, self._out)
            _check_times(record, database, self._out)
        return staged

    def _leave_out(self, database: Database, staged: Staged) -> None:
        """Order the interactions and leave out what the settings say."""
        self._load_known(database, staged.columns)
        if "time" in staged.columns and not staged.in_order:
            self._report(f"sorting {staged.rows - staged.small:,} interactions by time")
            sort_by_time(database)
        if self._settings.unique:
            self._report("looking for repeated pairs")
            self._dropped["repeats_dropped"] = drop_repeats(database)
            if self._record is not None:
                self._dropped["repeats_dropped"] += self._drop_known_pairs(database, self._record)
                if not database.size("interactions"):
                    raise DataError(
                        f"All pairs are in {self._out} already, which keeps each once; there is "
                        "nothing to append."
                    )
        if self._settings.k_core > 1:
            self._report(f"looking for the {self._settings.k_core}-core")
            self._dropped["outside_core"] = keep_core(database, self._settings.k_core)

    def _load_known(self, database: Database, types: Mapping[str, pa.DataType]) -> None:
        """Make the tables of earlier ids with their rows and counts (`known_…`), which a first part
        has empty; with shared ids that is `known_entities`, and a view of it for each side."""
        shared = self._vocabularies.shared
        counts = [f"{side}_count" for side in SIDES] if shared else ["count"]
        for table in self._vocabularies.tables:
            kinds = [types["query" if shared else table], *[pa.int64()] * (1 + len(counts))]
            schema = pa.schema(list(zip(["id", *counts, "row"], kinds, strict=True)))
            known = schema.empty_table()
            if self._record is not None:
                with pa.memory_map(str(self._out / f"{table}.arrow")) as mapped:
                    known = pa.ipc.open_file(mapped).read_all().select(["id", *counts])
                known = known.append_column("row", pa.array(np.arange(len(known)))).cast(schema)
            database.create(f"known_{table}", schema, known.to_batches())
        if shared:
            for side in SIDES:
                database.run(
                    f"CREATE VIEW known_{side} AS SELECT id, row, {side}_count AS count "
                    "FROM known_entities"
                )

    def _drop_known_pairs(self, database: Database, record: PreparedRecord) -> int:
        """Leave out pairs that an earlier part has, and return how many rows that are."""
        schema = pa.schema([("query", pa.int64()), ("candidate", pa.int64())])
        query, candidate = (f"known_{self._vocabularies.table(side)}" for side in SIDES)
        database.create("old_rows", schema, _pairs(record, self._out, schema))
        database.run(
            "CREATE TABLE old_pairs AS SELECT q.id AS query, c.id AS candidate FROM old_rows o "
            f"JOIN {query} q ON o.query = q.row JOIN {candidate} c ON o.candidate = c.row "
            "SEMI JOIN interactions i ON i.query = q.id AND i.candidate = c.id"
        )
        database.run("DROP TABLE old_rows")
        dropped = drop_pairs(database, "old_pairs")
        database.run("DROP TABLE old_pairs")
        return dropped

    def _write_columns(
        self, database: Database, staged: Staged
    ) -> tuple[PartFacts, dict[str, str]]:
        columns = {r: str(staged.columns[r]) for r in _ORDER if r in staged.columns}
        columns = {
            r: {"float": "float32", "double": "float64"}.get(t, t) for r, t in columns.items()
        }
        for side in SIDES:
            columns[side] = row_type(self._vocabularies.size(database, side))
            if self._record is not None and self._record.columns[side] != columns[side]:
                raise DataError(
                    f"{self._out} would have more than 2³¹ entities of a side, and its rows are "
                    "int32; prepare everything again with --overwrite."
                )
        folder = self._folder / "parts" / f"{self._number:05}"
        folder.mkdir(parents=True)
        self._report("writing interactions")
        return write_part(folder, database, self._vocabularies, columns), columns

    def _write_entities(
        self, database: Database, staged: Staged, features: Features
    ) -> dict[str, str]:
        """Write the files of entities, and return the SHA-256 of each."""
        digests: dict[str, str] = {}
        for table in self._vocabularies.tables:
            sides = [side for side in SIDES if self._vocabularies.table(side) == table]
            counts = {
                f"{side}_count" if self._settings.shared_ids else "count": (
                    self._vocabularies.counts(database, side)
                )
                for side in sides
            }
            own: dict[str, pa.Table] = {}  # one table of both sides is there once
            for side in sides:
                if side in features and not any(features[side] is one for one in own.values()):
                    own[f"{side} features"] = features[side]
            path, before = self._folder / f"{table}.arrow", self._out / f"{table}.arrow"
            write_entities(
                path,
                new_ids_of(database, table, staged.columns[sides[0]]),
                counts,
                own,
                None if self._record is None else before,
            )
            digests[path.name] = sha256_of(path)
        return digests

    def _new_record(
        self,
        part: PartRecord,
        columns: dict[str, str],
        staged: Staged,
        features: Features,
        entity_files: dict[str, str],
    ) -> PreparedRecord:
        settings, before = self._settings, self._record
        parts = [part] if before is None else [*before.parts, part]
        names = {s: features[s].column_names[1:] if s in features else [] for s in SIDES}
        if before is not None:
            names = {side: before.sides[side].features for side in SIDES}
        digests = ["" if before is None else before.fingerprint, *entity_files.values()]
        digests += [f"{role} {digest}" for role, digest in part.sha256.items()]
        return PreparedRecord(
            format_version=FORMAT_VERSION,
            name=before.name if before else settings.name or self._out.name,
            shared_ids=settings.shared_ids,
            interactions=sum(one.interactions for one in parts),
            sides={
                side: SideRecord(
                    entities=part.entities[side],
                    ids="int64" if pa.types.is_integer(staged.columns[side]) else "string",
                    features=names[side],
                )
                for side in SIDES
            },
            columns=cast(dict[str, ColumnType], columns),
            times=self._interactions.clock.form,
            parts=parts,
            fingerprint=hashlib.sha256(" ".join(digests).encode()).hexdigest(),
            choices=Choices(
                unique=settings.unique,
                k_core=settings.k_core,
                minimum_value=settings.minimum_value,
                columns=dict(settings.columns),
                weights=dict(settings.weights),
            ),
            entity_files=entity_files,
        )


def kept_settings(record: PreparedRecord, settings: PrepareSettings, out: Path) -> PrepareSettings:
    """Return the settings of an append: what is left out of a corpus holds for all of its parts.

    Raises: DataError: the settings say otherwise than those of the first part.
    """
    choices = record.choices
    if settings.name not in (None, record.name):
        raise DataError(
            f"{out} has the name {record.name!r}, which an append keeps, and now name (--name) is "
            f"{settings.name!r}; leave it out, or prepare everything again with --overwrite."
        )
    first: dict[str, Any] = {
        "shared_ids": record.shared_ids,
        "unique": choices.unique,
        "k_core": choices.k_core,
        "minimum_value": choices.minimum_value,
        "weights": choices.weights,
    }
    for name, value in first.items():
        asked = getattr(settings, name)
        if asked != getattr(PrepareSettings(), name) and asked != value:
            raise DataError(
                f"{out} was prepared with {name} = {value}, which holds for what is appended, and "
                f"now {name} is {asked}; leave it out, or prepare everything again with "
                "--overwrite."
            )
    columns = settings.columns or choices.columns
    return replace(settings, columns=columns, name=None, **first)


def _least_types(record: PreparedRecord) -> dict[str, pa.DataType]:
    """Return the types that the new part's columns have at least."""
    least: dict[str, pa.DataType] = {
        side: pa.string() for side in SIDES if record.sides[side].ids == "string"
    }
    if record.columns.get("time") == "float64":
        least["time"] = pa.float64()
    return least


def _check_columns(record: PreparedRecord, staged: Staged, out: Path) -> None:
    """Refuse columns or types that differ from those of the earlier parts."""
    if set(record.columns) != set(staged.columns):
        raise DataError(
            f"{out} has the columns {', '.join(record.columns)}, and what is appended has "
            f"{', '.join(staged.columns)}; give it the same."
        )
    for side in SIDES:
        if record.sides[side].ids == "int64" and pa.types.is_string(staged.columns[side]):
            raise DataError(
                f"The {side} ids of {out} are integers, and what is appended has ids that are text;"
                " write them as integers, or prepare everything again with --overwrite."
            )
    if record.columns.get("time") == "int64" and staged.columns["time"] != pa.int64():
        raise DataError(
            f"The times of {out} are integers, and what is appended has decimals; write them as "
            "integers, or prepare everything again with --overwrite."
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


def _pairs(record: PreparedRecord, out: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in record.parts:
        rows = [np.load(out / part.folder / f"{side}.npy", mmap_mode="r") for side in SIDES]
        for start in range(0, part.interactions, _ROWS):
            columns = [pa.array(one[start : start + _ROWS].astype(np.int64)) for one in rows]
            yield pa.record_batch(columns, schema=schema)


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
