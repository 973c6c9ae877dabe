"""Load what `evergram prepare` wrote as a mapped corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import torch
from torch import Tensor

from evergram.data.columnar.features import Side, features_of_sides
from evergram.data.columnar.vocabulary import Vocabulary, to_tensor
from evergram.data.prepared.cache_folder import remove_others
from evergram.data.prepared.column_file import ColumnFile, check_sha256
from evergram.data.prepared.mapped_corpus import MappedCorpus
from evergram.data.prepared.prepared_record import NAME, PreparedRecord, SideName
from evergram.errors import DataError

# The folder, in a prepared one, of what is derived from it.
CACHE = ".splits"
# In the order of a corpus in memory.
COLUMNS = ("query", "candidate", "value", "time", "weight")
SIDES: tuple[SideName, ...] = ("query", "candidate")


def load_prepared(path: Path) -> MappedCorpus:
    """Return the corpus of a prepared folder; only entities are read into memory.

    The training part of a split, and an index of its pairs, are written into the folder `.splits`
    of this one, and read from there the next time. It may be removed.

    Raises: DataError: the folder is not prepared, or its files do not fit together, or those of
            entities are not as they were written; columns are checked when they are read through.
        FormatError: a later Evergram prepared it.
    """
    record = PreparedRecord.load(path)
    tables = _entity_tables(path, record)
    vocabularies = {side: Vocabulary(_ids(tables[side])) for side in SIDES}
    if record.shared_ids:
        vocabularies["candidate"] = vocabularies["query"]
    named = {side: ["id", *record.sides[side].features] for side in SIDES}
    features = features_of_sides(
        [
            (tables[side].select(named[side]) if len(named[side]) > 1 else None, vocabularies[side])
            for side in SIDES
        ]
    )
    sides = [Side(vocabularies[s], f) for s, f in zip(SIDES, features, strict=True)]
    columns = []
    for part in record.parts:
        folder = path / part.folder
        names = [name for name in COLUMNS if name in record.columns]
        columns.append(
            {
                n: ColumnFile.open(
                    folder / f"{n}.npy", part.interactions, sha256=part.sha256.get(n)
                )
                for n in names
            }
        )
    _check_types(path, record, columns)
    cache = path / CACHE / record.fingerprint[:32]
    if not cache.is_dir():
        remove_others(cache)
    return MappedCorpus.of_files(
        (sides[0], sides[1]),
        columns,
        _counts(tables, record),
        shared_ids=record.shared_ids,
        fingerprint=record.fingerprint,
        cache=cache,
    )


def _entity_tables(path: Path, record: PreparedRecord) -> dict[str, pa.Table]:
    """Return the table of each side's entities, as many as the record has."""
    tables: dict[str, pa.Table] = {}
    for side in SIDES:
        file = path / ("entities.arrow" if record.shared_ids else f"{side}.arrow")
        try:
            with pa.memory_map(str(file)) as source:
                table = ipc.open_file(source).read_all()
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file} cannot be read: {error}; prepare the data again.") from error
        check_sha256(file, record.entity_files.get(file.name), "Prepare the data again.")
        expected = record.sides[side]
        missing = [n for n in ("id", *expected.features) if n not in table.column_names]
        if missing or len(table) < expected.entities:
            raise DataError(
                f"{file} has {len(table):,} entities and the columns "
                f"{', '.join(table.column_names)}; {path / NAME} expects {expected.entities:,} "
                f"and {', '.join(missing) or 'these columns'}. Prepare the data again."
            )
        # Appending writes the longer table first; new entities follow the old ones.
        tables[side] = table.slice(0, expected.entities)
    return tables


def _ids(table: pa.Table) -> pa.Array:
    ids = table["id"].combine_chunks()
    if pa.types.is_large_string(ids.type):
        ids = ids.cast(pa.string())
    if not (pa.types.is_int64(ids.type) or pa.types.is_string(ids.type)) or ids.null_count:
        raise DataError(
            f"The ids of a prepared side are {ids.type} with {ids.null_count} missing; they must "
            "be int64 or string, each one there. Prepare the data again."
        )
    return ids


def _counts(tables: Mapping[str, pa.Table], record: PreparedRecord) -> dict[str, Tensor] | None:
    """Return the interactions of each entity of each side; None if they are of other parts."""
    counts: dict[str, Tensor] = {}
    for side in SIDES:
        name = f"{side}_count" if record.shared_ids else "count"
        if name not in tables[side].column_names:
            return None
        counts[side] = to_tensor(tables[side][name].cast(pa.int64())).to(torch.int64)
        if int(counts[side].sum()) != record.interactions:
            return None
    return counts


def _check_types(path: Path, record: PreparedRecord, columns: list[dict[str, ColumnFile]]) -> None:
    """Raises: DataError: a file's numbers are of another type than the record says."""
    for part in columns:
        for name, file in part.items():
            if file.dtype.name != record.columns[name]:
                raise DataError(
                    f"{file.path} holds {file.dtype.name}, and {path / NAME} says "
                    f"{record.columns[name]}; prepare the data again."
                )
