"""Bring tables of features into the database, by the rules of `Corpus.from_tables`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from evergram.data.columnar.feature_types import TextForm, is_measure, typed
from evergram.data.prepared.engine.database import Database
from evergram.data.reading.keyed_table import KeyedTable, open_keyed
from evergram.data.reading.rules import BadRows, BadRowsChoice
from evergram.data.reading.source_files import Paths
from evergram.data.reading.table_stream import MemoryTable
from evergram.errors import DataError
from evergram.ids import in_other_form

if TYPE_CHECKING:
    from evergram.data.columnar.features import Side

# Columns of the files of entities that are no features.
TAKEN = ("count", "query_count", "candidate_count")


@dataclass(frozen=True)
class FeatureTable:
    """A table (id, f0, f1, …) of the database.

    Args:
        table: its name.
        types: by name of a feature, its type in the files of entities.
    """

    table: str
    types: dict[str, pa.DataType]

    @property
    def columns(self) -> list[str]:
        return [f"f{i}" for i in range(len(self.types))]


@dataclass(frozen=True)
class FeatureSource:
    """The features of one side, opened and not read yet.

    Args:
        side: "query" or "candidate".
        types: by name of a feature, its type in the files of entities.
        forms: of those features that are texts in the source.
        batches: a column `id` and one column a feature; they can be read once.
    """

    side: str
    types: dict[str, pa.DataType]
    forms: dict[str, TextForm]
    batches: Iterator[pa.RecordBatch]

    @property
    def name(self) -> str:
        """What errors call them."""
        return f"{self.side} features"


def open_features(
    paths: Paths | Side,
    side: str,
    bad_rows: BadRowsChoice = "refuse",
    ids: Sequence[str] = ("id",),
) -> FeatureSource:
    """Return the features of one side, whose columns were checked.

    Args:
        paths: files with a column `id` and one column a feature; or the side of a corpus.
        side: "query" or "candidate".
        bad_rows: what is done with rows without an id.
        ids: names that the column of ids may have in files.
    Raises: DataError: a file cannot be read, there are no ids, or a column is of a type that no
        feature has, such as numbers with decimals.
    """
    source = f"{side} features"
    if isinstance(paths, str | Path | list | tuple):
        table = open_keyed(paths, bad_rows=BadRows(bad_rows), ids=ids)
    else:
        table = KeyedTable([MemoryTable(_table_of_side(paths), source)])
    schema = table.schema
    types = {n: _type_of(schema.field(n).type, n, source) for n in schema.names if n != "id"}
    # What texts are follows from all of them.
    forms = {n: TextForm(n, source) for n, kind in types.items() if kind == pa.string()}
    for batch in table.batches() if forms else ():
        for name, form in forms.items():
            form.see(batch[name].cast(pa.string()))
    types |= {name: form.kind for name, form in forms.items()}
    return FeatureSource(side, types, forms, table.batches())


def load_features(
    database: Database, source: FeatureSource, ids: str, *, integers: bool, must_match: bool
) -> FeatureTable:
    """Return the features of one side, loaded into the table `features_{side}`.

    Args:
        ids: the table of the database with the side's new ids.
        integers: True if the ids of the interactions are integers.
        must_match: refuse features that have none of the new ids.
    Raises: DataError: as of `Corpus.from_tables`.
    """
    features = FeatureTable(f"features_{source.side}", source.types)
    id_type = pa.int64() if integers else pa.string()
    columns = [id_type, *source.types.values()]
    stored = pa.schema(list(zip(["id", *features.columns], columns, strict=True)))
    batches = _checked(source, stored)
    database.create(features.table, stored, batches)
    _refuse_repeats(database, features.table, source.name)
    if not integers:
        _refuse_other_form(database, features.table, ids, source.name)
    if must_match and not database.number(
        f"SELECT count(*) FROM {features.table} f SEMI JOIN {ids} n ON f.id = n.id"
    ):
        raise DataError(
            f"{source.name} have none of the ids of the interactions; are they of the other side?"
        )
    return features


def _checked(source: FeatureSource, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the features under the columns' names of the database, checked."""
    id_type = schema.field("id").type
    for batch in source.batches:
        ids = batch["id"]
        if not len(ids):
            continue
        if pa.types.is_integer(id_type) and not pa.types.is_integer(ids.type):
            raise DataError(
                f"{source.name} have none of the ids of the interactions: theirs are text, such as "
                f"{ids[0].as_py()!r}, and those are integers; are they of the other side? If not, "
                "write both in one type."
            )
        columns = [ids.cast(id_type)]
        for name, kind in source.types.items():
            column, where = batch[name], f"{source.name} column {name!r}"
            if name in source.forms:
                column = source.forms[name].read(column.cast(pa.string()))
            elif is_measure(kind):
                column = typed(pa.chunked_array([column]), name, source.name).combine_chunks()
            columns.append(_keys(column, kind, where))
        yield pa.record_batch(columns, schema=schema)


def _keys(column: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    try:
        column = column.cast(kind)
    except pa.ArrowException as error:
        raise DataError(f"{where} cannot be read as {kind}: {error}.") from error
    if pa.types.is_list(kind) and column.flatten().null_count:
        raise DataError(f"{where} has a null inside a list; remove it.")
    return column


def _type_of(kind: pa.DataType, name: str, source: str) -> pa.DataType:
    """Return the type in which a feature is kept, of text as long as its form is not known.

    Raises: DataError: it is of no feature, see `typed`.
    """
    if name in TAKEN:
        raise DataError(
            f"{source} have a column {name!r}, a name that counts of interactions have; rename it."
        )
    kind = typed(pa.chunked_array([], kind), name, source).type
    if is_measure(kind):
        return kind
    many = pa.types.is_nested(kind)
    flat = kind.value_type if many else kind
    key = pa.string()
    if pa.types.is_integer(flat):
        key = pa.int64()
    elif pa.types.is_boolean(flat):
        key = pa.bool_()
    return pa.list_(key) if many else key


def _refuse_repeats(database: Database, table: str, source: str) -> None:
    repeated = database.rows(f"SELECT id FROM {table} GROUP BY id HAVING count(*) > 1 LIMIT 1")
    if repeated:
        raise DataError(f"{source} name the id {repeated[0][0]} twice; each id may have one row.")


def _refuse_other_form(database: Database, table: str, ids: str, source: str) -> None:
    """As `evergram.ids.refuse_other_form`, of ids that need not fit into memory."""
    ((count, example),) = database.rows(
        f"SELECT count(*), min(f.id) FROM (FROM {table} WHERE {_NOT_ASCII}) f "
        f"ANTI JOIN {ids} n ON f.id = n.id WHERE nfc_normalize(f.id) IN "
        f"(SELECT nfc_normalize(id) FROM {ids} WHERE {_NOT_ASCII})"
    )
    if count:
        raise in_other_form(count, example, source, "the interactions")


_NOT_ASCII = "strlen(id) > length(id)"  # more bytes than characters


def _table_of_side(side: Side) -> pa.Table:
    """Return ids and features of a side of a corpus: lists of keys, or numbers or times."""
    columns = {"id": side.vocabulary.keys}
    for name, feature in side.features.items():
        keys = feature.vocabulary.keys.take(pa.array(feature.indices.numpy()))
        offsets = pa.array(feature.offsets.numpy().astype("int32"))
        if is_measure(keys.type):  # one of each object that has it
            empty = (feature.offsets[1:] == feature.offsets[:-1]).numpy()
            rows = np.where(empty, 0, feature.offsets[:-1].numpy())
            columns[name] = keys.take(pa.array(rows, mask=empty))
        else:
            columns[name] = pa.ListArray.from_arrays(offsets, keys)
    return pa.table(columns)
