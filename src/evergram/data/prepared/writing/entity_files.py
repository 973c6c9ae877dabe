"""Write the entities of a side: an Arrow file of ids, counts and features in the order of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from evergram.data.columnar.feature_types import type_name
from evergram.data.prepared.engine.database import Database
from evergram.data.prepared.engine.feature_tables import FeatureTable
from evergram.errors import DataError

Counts = Mapping[str, NDArray[np.int64]]


def write_entities(
    path: Path,
    database: Database,
    table: str,
    counts: Counts,
    features: list[FeatureTable],
    before: Path | None = None,
) -> pa.Schema:
    """Write the ids of earlier parts as they were, and then the new ones.

    Args:
        table: "query", "candidate" or "entities", whose new ids are in `new_…` of the database.
        counts: by column, what the new part adds to the count of each entity, int64 [N].
        features: of new ids, from tables of the database.
        before: the file of the earlier parts; its features are kept, and are all there are.
    Returns: the schema of the file.
    """
    if before is not None:
        with pa.memory_map(str(before)) as mapped:
            schema = pa.ipc.open_file(mapped).schema
    else:
        kind = pa.int64() if _is_integer(database, table) else pa.string()
        fields = [("id", kind), *((name, pa.int64()) for name in counts)]
        for feature in features:
            fields += list(feature.types.items())
        schema = pa.schema(fields)
    with pa.OSFile(str(path), "wb") as sink, closing(pa.ipc.new_file(sink, schema)) as writer:
        row = 0
        for batch in _batches(database, table, schema, features, before):
            rows = slice(row, row + batch.num_rows)
            columns = {name: batch[name] for name in batch.schema.names}
            for name, added in counts.items():
                old = columns[name].to_numpy() if name in columns else 0
                columns[name] = pa.array(old + added[rows])
            writer.write_batch(pa.record_batch([columns[n] for n in schema.names], schema=schema))
            row += batch.num_rows
    return schema


def _batches(
    database: Database,
    table: str,
    schema: pa.Schema,
    features: list[FeatureTable],
    before: Path | None,
) -> Iterator[pa.RecordBatch]:
    """Yield earlier entities with their counts, and new ones without; both with features."""
    if before is not None:
        with pa.memory_map(str(before)) as mapped:
            reader = pa.ipc.open_file(mapped)
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
    selected, joined = ["n.id"], ""
    places: dict[str, str] = {}
    for feature in features:
        joined += f" LEFT JOIN {feature.table} {feature.table}_f ON n.id = {feature.table}_f.id"
        for column, name in zip(feature.columns, feature.types, strict=True):
            places[name] = f"{feature.table}_{column}"
            selected.append(f"{feature.table}_f.{column} AS {places[name]}")
    query = f"SELECT {', '.join(selected)} FROM new_{table} n{joined} ORDER BY n.rowid"
    for batch in database.batches(query):
        columns = {"id": batch["id"].cast(schema.field("id").type)}
        for field in schema:
            if field.name in places:
                columns[field.name] = _cast(batch[places[field.name]], field)
            elif field.name not in ("id", "count", "query_count", "candidate_count"):
                columns[field.name] = pa.nulls(batch.num_rows, field.type)
        yield pa.record_batch(columns)


def _cast(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return the values of a feature in its type. Raises: DataError: it is of another."""
    try:
        return values.cast(field.type)
    except pa.ArrowException:
        raise DataError(
            f"The feature {field.name!r} is a {type_name(field.type)} ({field.type}) in earlier "
            f"parts, and a {type_name(values.type)} ({values.type}) in what is appended; write it "
            "as before, or prepare everything again with --overwrite."
        ) from None


def _is_integer(database: Database, table: str) -> bool:
    kind = database.rows(
        f"SELECT data_type FROM duckdb_columns() WHERE table_name = 'new_{table}' "
        "AND column_name = 'id'"
    )
    return str(kind[0][0]) == "BIGINT"
