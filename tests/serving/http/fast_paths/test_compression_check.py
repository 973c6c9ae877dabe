"""The check of a record batch's flatbuffer, against batches that Arrow wrote."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from evergram.serving.http.fast_paths.compression_check import is_compressed


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array(np.zeros(2000, np.int64)),
        pa.array(["a", "bb", "ccc"]),
        pa.array([[0.5, 1.5], [2.5]], pa.list_(pa.float32())),
        pa.array([], pa.int64()),
    ],
)
def test_compressed_batches_are_told_from_plain_ones(
    column: pa.Array, compression: str | None
) -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([column], names=["id"])
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    assert messages.read_next_message().type == "schema"
    metadata = messages.read_next_message().metadata.to_pybytes()
    assert is_compressed(metadata) is (compression is not None)
