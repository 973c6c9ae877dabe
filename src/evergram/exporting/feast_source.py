"""A side's vectors at one version as a feature view of Feast, over a Parquet file of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from evergram.atomic_files import replacing_path
from evergram.errors import DataError, reason_and_remedy
from evergram.lineage.view import View
from evergram.vector_files.open_embeddings import provenance_of
from evergram.vector_files.writers import check_writable, vectors_to_arrow

try:
    from feast import Entity, FeatureView, Field, FileSource, ValueType
    from feast.data_format import ParquetFormat
    from feast.types import Array, Float32
except ModuleNotFoundError as error:
    raise DataError(f"{error.name} is missing: pip install 'evergram[feast]'.") from error

_TIME = "event_timestamp"


def feature_view(
    view: View, side: str, path: str | Path, *, name: str, since: datetime, overwrite: bool = False
) -> tuple[Entity, FeatureView]:
    """Write a side's vectors at a view's version to Parquet, and return Feast's entity and feature
    view of the file; `FeatureStore.apply` takes both.

    The feature is `vector`, a list of D_j float32, and the entity's key the column `id`. The tags
    hold the version and its fingerprint. After an upgrade, write the file again from the view of
    the same version: models keep their space, and the fingerprint of the version stays.

    Args:
        path: a .parquet with the columns `id`, `vector` and `event_timestamp`.
        name: of the feature view.
        since: the time from which the vectors hold, with its zone: Feast's joins give rows before
            it no vector.
        overwrite: whether to write over a file that is there.
    Raises: LineageError: there is no such side, or its vectors are not stored. DataError: `since`
        has no zone, or as `View.export`.
    """
    path = Path(path)
    if since.tzinfo is None:
        raise DataError(f"since={since} has no zone; give one, such as tzinfo=UTC.")
    if path.suffix != ".parquet":
        raise DataError(f"{path} must end in .parquet: that is what Feast reads.")
    check_writable(path, overwrite=overwrite)
    ids, vectors = view.embeddings(side)
    times = pa.repeat(pa.scalar(since, pa.timestamp("us", "UTC")), len(ids))
    table = pa.table(
        {"id": ids, "vector": vectors_to_arrow(vectors), _TIME: times},
        metadata=provenance_of(view.fingerprint, view.computed_from),
    )
    try:
        with replacing_path(path) as part:
            pq.write_table(table, part)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error
    kind = ValueType.INT64 if pa.types.is_integer(ids.type) else ValueType.STRING
    entity = Entity(name=f"{name}_{side}", join_keys=["id"], value_type=kind)
    features = FeatureView(
        name=name,
        entities=[entity],
        schema=[Field(name="vector", dtype=Array(Float32))],
        source=FileSource(
            name=f"{name}_file",
            path=str(path.resolve()),
            timestamp_field=_TIME,
            file_format=ParquetFormat(),
        ),
        ttl=timedelta(0),  # they hold until the file is written again
        tags={
            "evergram_version": str(view.version),
            "evergram_fingerprint": view.fingerprint,
            "evergram_computed_from": view.computed_from,
        },
    )
    return entity, features
