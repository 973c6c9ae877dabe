"""`Preparation`: the steps of one run of `prepare`, from sources to the files of a new part."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evergram.atomic_files import remove_tree, write_text
from evergram.data.prepared.column_file import sha256_of
from evergram.data.prepared.engine import filters
from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.feature_tables import (
    FeatureSource,
    FeatureTable,
    load_features,
    open_features,
)
from evergram.data.prepared.engine.staging import Staged, stage
from evergram.data.prepared.engine.vocabularies import SIDES, Side, Vocabularies
from evergram.data.prepared.prepared_record import (
    FORMAT_VERSION,
    NAME,
    Choices,
    ColumnType,
    PartRecord,
    PreparedRecord,
    SideRecord,
)
from evergram.data.prepared.writing import earlier_parts
from evergram.data.prepared.writing.entity_files import write_entities
from evergram.data.prepared.writing.part_files import PartFacts, row_type, write_part
from evergram.data.prepared.writing.settings import PrepareSettings
from evergram.data.reading.interaction_source import Interactions, InteractionSource, names_of_ids
from evergram.data.reading.rules import BadRows, Clock
from evergram.data.reading.source_files import Paths
from evergram.errors import DataError

if TYPE_CHECKING:
    from evergram.data.columnar.features import Side as CorpusSide

    Features: TypeAlias = dict[str, Paths | CorpusSide]

# Columns in the order of `prepared.json`.
_ORDER = ("query", "candidate", "value", "weight", "time")


class Preparation:
    """One run of `prepare`.

    Args:
        out: the prepared folder, with the earlier parts if there is a record.
        folder: an empty folder to fill with the new content of `out`.
        settings: of the run.
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
        known: dict[str, int] = {}
        for side in SIDES:
            known[side] = 0 if record is None else record.sides[side].entities
        if settings.shared_ids:
            known["entities"] = known["query"]
        self._vocabularies = Vocabularies(settings.shared_ids, known)
        self._dropped = {"repeats_dropped": 0, "outside_core": 0}

    def run(self, sources: Sequence[InteractionSource], features: Features) -> dict[str, Any]:
        """Fill the folder. Returns: the facts of `PrepareSummary` that are known by then.

        Raises: DataError: see `prepare`.
        """
        settings, engine = self._settings, self._folder / ".engine"
        opened = self._open_features(features)
        engine.mkdir()
        with Database(engine, settings.memory_bytes, settings.thread_count) as database:
            staged = self._stage(database, sources)
            self._leave_out(database, staged)
            self._report("numbering ids")
            self._vocabularies.number_ids(database)
            facts, columns = self._write_columns(database, staged)
            self._report("writing entities")
            loaded = self._load_features(database, opened, staged)
            entity_files, names = self._write_entities(database, loaded)
            sizes: dict[str, int] = {}
            for side in SIDES:
                sizes[side] = self._vocabularies.size(database, side)
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
        record = self._new_record(part, columns, staged, names, entity_files)
        if self._record is not None:
            earlier_parts.link_parts(self._record, self._out, self._folder)
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

    def _stage(self, database: Database, sources: Sequence[InteractionSource]) -> Staged:
        self._report(f"reading {len(sources)} source{'s' if len(sources) > 1 else ''}")
        record, settings = self._record, self._settings
        self._interactions = Interactions(
            sources,
            shared_ids=settings.shared_ids,
            bad_rows=BadRows(settings.bad_rows),
            weights=settings.weights,
            clock=Clock() if record is None else Clock(record.times, str(self._out)),
            types={} if record is None else earlier_parts.least_types(record),
        )
        staged = stage(database, self._interactions, settings.minimum_value, self._report)
        if self._record is not None:
            earlier_parts.check_columns(self._record, staged, self._out)
            earlier_parts.check_times(self._record, database, self._out)
        return staged

    def _leave_out(self, database: Database, staged: Staged) -> None:
        """Order the interactions and leave out what the settings say."""
        earlier_parts.load_known(
            database, self._record, self._out, staged.columns, self._vocabularies
        )
        if "time" in staged.columns and not staged.in_order:
            self._report(f"sorting {staged.rows - staged.small:,} interactions by time")
            filters.sort_by_time(database)
        if self._settings.unique:
            self._report("looking for repeated pairs")
            self._dropped["repeats_dropped"] = filters.drop_repeats(database)
            if self._record is not None:
                self._dropped["repeats_dropped"] += earlier_parts.drop_known_pairs(
                    database, self._record, self._vocabularies, self._out
                )
                if not database.number("SELECT count(*) FROM interactions"):
                    raise DataError(
                        f"All pairs are in {self._out} already, which keeps each once; there is "
                        "nothing to append."
                    )
        if self._settings.k_core > 1:
            self._report(f"looking for the {self._settings.k_core}-core")
            self._dropped["outside_core"] = filters.keep_core(database, self._settings.k_core)

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

    def _open_features(self, features: Features) -> dict[Side, FeatureSource]:
        """Return the features of each side, whose columns were checked: what cannot be used is
        refused before hours of interactions are read. A table of both sides is there once."""
        opened: dict[Side, FeatureSource] = {}
        for side in SIDES:
            if side not in features:
                continue
            if side == "candidate" and self._shared_table(features):
                opened[side] = opened["query"]
            else:
                opened[side] = open_features(
                    features[side],
                    side,
                    self._settings.bad_rows,
                    names_of_ids(self._settings.columns, side),
                )
        self._check_names(opened)
        return opened

    def _load_features(
        self, database: Database, opened: dict[Side, FeatureSource], staged: Staged
    ) -> dict[Side, FeatureTable]:
        loaded: dict[Side, FeatureTable] = {}
        for side, source in opened.items():
            if side != source.side:
                loaded[side] = loaded["query"]
                continue
            loaded[side] = load_features(
                database,
                source,
                f"new_{self._vocabularies.table(side)}",
                integers=pa.types.is_integer(staged.columns[side]),
                must_match=self._record is None,
            )
        return loaded

    def _shared_table(self, features: Features) -> bool:
        same = features.get("query") is features["candidate"]
        same |= isinstance(features["candidate"], str | Path | list | tuple) and (
            features.get("query") == features["candidate"]
        )
        return self._settings.shared_ids and same

    def _check_names(self, opened: dict[Side, FeatureSource]) -> None:
        """Refuse features of a name that another has. Raises: DataError."""
        if self._settings.shared_ids and len({one.side for one in opened.values()}) == 2:
            both = opened["query"].types.keys() & opened["candidate"].types.keys()
            if both:
                raise DataError(
                    f"Both tables of features have {sorted(both)[0]!r}, and ids are shared; give "
                    "one table for both sides, or other names."
                )
        if self._record is None:
            return
        for side, source in opened.items():
            names = self._record.sides[side].features
            other = [name for name in source.types if name not in names]
            if other:
                raise DataError(
                    f"{self._out} has no {side} feature {other[0]!r} (it has "
                    f"{', '.join(names) or 'none'}); leave it out, or prepare everything again "
                    "with --overwrite."
                )

    def _write_entities(
        self, database: Database, loaded: dict[Side, FeatureTable]
    ) -> tuple[dict[str, str], dict[Side, list[str]]]:
        """Write the files of entities. Returns: the SHA-256 of each, and features by side."""
        digests: dict[str, str] = {}
        for table in self._vocabularies.tables:
            sides: Sequence[Side] = [s for s in SIDES if self._vocabularies.table(s) == table]
            counts: dict[str, NDArray[np.int64]] = {
                f"{side}_count" if self._settings.shared_ids else "count": (
                    self._vocabularies.counts(database, side)
                )
                for side in sides
            }
            tables = list({loaded[s].table: loaded[s] for s in sides if s in loaded}.values())
            path, name = self._folder / f"{table}.arrow", f"{table}.arrow"
            before = None if self._record is None else self._out / name
            write_entities(path, database, table, counts, tables, before)
            digests[name] = sha256_of(path)
        if self._record is not None:
            return digests, {side: self._record.sides[side].features for side in SIDES}
        return digests, {s: list(loaded[s].types) if s in loaded else [] for s in SIDES}

    def _new_record(
        self,
        part: PartRecord,
        columns: dict[str, str],
        staged: Staged,
        features: dict[Side, list[str]],
        entity_files: dict[str, str],
    ) -> PreparedRecord:
        settings, before = self._settings, self._record
        parts = [part] if before is None else [*before.parts, part]
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
                    features=features[side],
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
