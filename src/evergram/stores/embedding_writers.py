"""Ids and vectors into any of the formats that are read, block by block."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from evergram.errors import DataError
from evergram.stores.embedding_files import (
    ARROW,
    PARQUET,
    SUFFIXES,
    Block,
    companion,
)
from evergram.stores.marks import marks_beside, read_beside
from evergram.stores.parquet import vectors_to_arrow, write_embeddings

NPY_HEADER = 128
SAFETENSORS_HEADER = 1024


def write_vectors(
    path: Path, blocks: Iterable[Block], marks: Mapping[str, str] | None = None
) -> int:
    """Write ids and float32 vectors in the format that the name's suffix says, in their order.

    The file appears whole or not at all. Parquet and Arrow get columns `id` and `vector`. The other
    two get `NAME.ids.txt` beside them where ids are text (.npy: or are not the numbers of the
    rows), which is put in place first; a safetensors file holds integers itself, as tensor `id`.

    Args:
        blocks: ids [b] and vectors [b, D].
        marks: what the file says of itself, see `stores.marks`: in its metadata, of .npy in
            `NAME.npy.json`, which is removed where there is nothing to say.
    Returns: rows written.
    Raises: DataError: a format that there is not, a folder that cannot be written, nothing to
        write, or an id with a line break in it where ids are lines.
    """
    check_writable(path)
    suffix = path.suffix.lower()
    if suffix in PARQUET:
        return write_embeddings(path, blocks, marks)
    if suffix in ARROW:
        return _write_arrow(path, blocks, marks)
    if suffix == ".npy":
        return _write_plain(path, blocks, _npy_header, marks)
    return _write_plain(path, blocks, partial(_safetensors_header, marks=marks))


def check_writable(path: Path) -> None:
    """Before the work begins. Raises: DataError: no such format, or no such folder."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the path of a file to write.")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path} is of no known format; the known ones end in {', '.join(SUFFIXES)}."
        )
    if not path.parent.is_dir():
        raise DataError(f"{path.parent} is not there; make the folder first.")


def _write_arrow(path: Path, blocks: Iterable[Block], marks: Mapping[str, str] | None) -> int:
    opener = pa.ipc.new_stream if path.suffix.lower() == ".arrows" else pa.ipc.new_file
    writer = None
    rows = 0
    with _beside(path) as part:
        try:
            for ids, vectors in blocks:
                columns = {"id": ids, "vector": vectors_to_arrow(vectors)}
                batch = pa.record_batch(columns, metadata=marks or None)
                if writer is None:
                    writer = opener(str(part), batch.schema)
                writer.write_batch(batch)
                rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
        _refuse_none(path, rows)
    return rows


def _write_plain(
    path: Path,
    blocks: Iterable[Block],
    finish: Callable[[IO[bytes], _Ids, int], None],
    beside: Mapping[str, str] | None = None,
) -> int:
    """Room for a header, the vectors, and then the header, once it is known what it says."""
    names, said = companion(path), marks_beside(path)
    with _beside(said) as said_part, _beside(path) as part, _beside(names) as names_part:
        with part.open("wb") as file, names_part.open("w", encoding="utf-8", newline="\n") as text:
            ids, dim = _Ids(path, text), 0
            file.write(bytes(NPY_HEADER if finish is _npy_header else SAFETENSORS_HEADER))
            for some, vectors in blocks:
                ids.add(some)
                dim = vectors.shape[1]
                file.write(_bytes_of(vectors))
            _refuse_none(path, ids.rows)
            finish(file, ids, dim)
        if ids.inside or ids.numbered:
            names_part.unlink()
            names.unlink(missing_ok=True)
        if finish is _npy_header and read_beside(path):
            said.unlink()  # What it says is of the vectors that are about to go.
        if beside:
            said_part.write_text(json.dumps(dict(beside), indent=2) + "\n", encoding="utf-8")
    return ids.rows


class _Ids:
    """What has been seen of the ids, and the lines of them."""

    def __init__(self, path: Path, text: IO[str]) -> None:
        self.rows = 0
        self.numbered = True  # by their rows
        self.inside = False
        self.integers: list[np.ndarray] | None = []
        self._path, self._text = path, text

    def add(self, ids: pa.Array) -> None:
        if pa.types.is_integer(ids.type):
            values = ids.to_numpy(zero_copy_only=False)
            expected = np.arange(self.rows, self.rows + len(ids))
            self.numbered = self.numbered and bool((values == expected).all())
            if self.integers is not None:
                self.integers.append(values)
        else:
            self.numbered, self.integers = False, None
        lines = [str(i) for i in ids.to_pylist()]
        bad = next((line for line in lines if "\n" in line or "\r" in line), None)
        if bad is not None:
            raise DataError(
                f"{self._path}: id {bad!r} has a line break, and ids would be lines of a text "
                "file; write Parquet or Arrow."
            )
        self._text.writelines(line + "\n" for line in lines)
        self.rows += len(ids)


def _npy_header(file: IO[bytes], ids: _Ids, dim: int) -> None:
    """NumPy's format 1.0, with spaces up to 128 bytes."""
    fields = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({ids.rows}, {dim}), }}"
    start = b"\x93NUMPY\x01\x00" + (NPY_HEADER - 10).to_bytes(2, "little")
    file.seek(0)
    file.write(start + fields.ljust(NPY_HEADER - 11).encode() + b"\n")


def _safetensors_header(
    file: IO[bytes], ids: _Ids, dim: int, marks: Mapping[str, str] | None
) -> None:
    end = 4 * ids.rows * dim
    tensors: dict[str, Any] = {"__metadata__": dict(marks)} if marks else {}
    tensors["vector"] = {"dtype": "F32", "shape": [ids.rows, dim], "data_offsets": [0, end]}
    if ids.integers is not None and not ids.numbered:
        ids.inside = True
        for values in ids.integers:
            file.write(values.astype("<i8").tobytes())
        place = [end, end + 8 * ids.rows]
        tensors["id"] = {"dtype": "I64", "shape": [ids.rows], "data_offsets": place}
    length = SAFETENSORS_HEADER - 8
    file.seek(0)
    file.write(length.to_bytes(8, "little") + json.dumps(tensors).encode().ljust(length))


def _bytes_of(vectors: Tensor) -> memoryview:
    return np.ascontiguousarray(vectors.float().cpu().numpy(), dtype="<f4").data.cast("B")


def _refuse_none(path: Path, rows: int) -> None:
    if not rows:
        raise DataError(f"There are no embeddings to write to {path}.")


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A file to fill; renamed into its place when all went well, if it is still there."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        if part.exists():
            part.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)
