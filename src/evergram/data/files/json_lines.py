"""Read files with one object a line in blocks: JSON or Python dictionaries, gzipped or not."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from evergram.data.files.decompression import DAMAGED, GzipReader
from evergram.errors import DataError

BLOCK = 8 << 20  # bytes of text in memory at once; a row may not be longer


def read_objects(
    path: Path, schema: pa.Schema, convert: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[pa.Table]:
    """Yield a table of the columns of `schema` for each block of lines; other keys are skipped.

    Arrow reads the blocks. A block that it refuses (Python literals, a key of several types, a
    fault) is read again line by line.

    Args:
        path: one object a line; empty lines are skipped.
        schema: keys and their types; a row must have those that are not nullable.
        convert: returns the values of an object by name, or raises a ValueError that says what is
            wrong; it is called only for the objects of blocks that Arrow refuses.
    Raises: DataError: the file or a line of it is damaged; the error names the row, its line.
    """
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    for first, block in blocks(path):
        try:
            table = arrow_json.read_json(pa.BufferReader(block), parse_options=options)
            table = table.select(schema.names).cast(schema)  # Arrow forgets "not null"
            table.validate(full=True)  # its parser lets broken UTF-8 pass
        except pa.ArrowException:
            table = None
        if table is not None and _is_sound(table):
            yield table
            continue
        # Python literals, a type that Arrow does not take, or a fault whose row is to be named.
        rows = []
        for row, line in enumerate(block.split(b"\n"), first):
            if not line.strip():
                continue
            try:
                rows.append(convert(_record(line)))
            except ValueError as error:
                raise DataError(f"{path} row {row}: {error}; correct or remove it.") from error
        yield pa.Table.from_pylist(rows, schema)


def _is_sound(table: pa.Table) -> bool:
    """Return True if no id is empty and no rating is NaN, which Arrow accepts."""
    return all(
        not pc.any(pc.equal(column, "")).as_py()
        if pa.types.is_string(column.type)
        else not pa.types.is_floating(column.type) or pc.all(pc.is_finite(column)).as_py()
        for column, field in zip(table.columns, table.schema, strict=True)
        if not field.nullable
    )


def _record(line: bytes) -> dict[str, Any]:
    """Return the object of a line. Raises: ValueError: the line is not one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings():  # of odd escapes in strings
                warnings.simplefilter("ignore")
                record = ast.literal_eval(line.decode())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            record = None
    if not isinstance(record, dict):
        raise ValueError(f"the line is {short(line)}; it must be one whole JSON object")
    return record


def read_lines(path: Path) -> list[str]:
    """Return all lines of a small file. Raises: DataError: a row, which it names, is damaged."""
    lines: list[str] = []
    for first, block in blocks(path):
        try:
            lines += block.decode().split("\n")
        except UnicodeDecodeError as error:
            row = first + block[: error.start].count(b"\n")
            raise DataError(f"{path} row {row} is not UTF-8; fetch the file again.") from error
    return lines


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines of a file, gzipped or not, and the row of the first of them."""
    row, block = 1, bytearray()
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with GzipReader(path) if zipped else path.open("rb") as stream:
            # read1 returns all bytes before a damaged place, so the row of the damage is known.
            while piece := stream.read1(BLOCK):
                block += piece
                if len(block) < BLOCK:
                    continue
                end = block.rfind(b"\n")
                if end < 0:
                    raise DataError(
                        f"{path} row {row} is longer than {BLOCK >> 20} MiB; write one object a "
                        "line."
                    )
                yield row, bytes(block[:end])
                row += block.count(b"\n")
                del block[: end + 1]
    except DAMAGED as error:
        row += block.count(b"\n")
        raise DataError(
            f"{path} row {row} cannot be read: {str(error).rstrip('.')}; fetch the file again."
        ) from error
    if block:
        yield row, bytes(block.removesuffix(b"\n"))


def short(value: Any) -> str:
    """Return a value for an error, cut after 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
