"""Interactions and features from any Parquet, Arrow, CSV or TSV file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq

from evergram.data.corpus import Corpus
from evergram.data.decompression import DAMAGED, GzipReader
from evergram.errors import DataError

COLUMNS = ("query", "candidate", "value", "time", "weight")
SUFFIXES = ".parquet, .pq, .arrow, .feather, .csv, .tsv, .csv.gz, .tsv.gz"
TEXT = re.compile(r"\.([ct])sv(\.gz)?$", re.IGNORECASE)

# What a cell of a column of numbers may say; a time may also be a date, which Arrow reads.
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:nan|inf|infinity)$"
WANTED = {
    "value": (NUMBER, "a number"),
    "weight": (NUMBER, "a number"),
    "time": (NUMBER + r"|^\d{4}-\d\d-\d\d", "a number or a date"),
}


def load_table(
    path: Path,
    *,
    query_features: Path | None = None,
    candidate_features: Path | None = None,
    shared_ids: bool = False,
    columns: Mapping[str, str] | None = None,
    list_separator: str = "|",
) -> Corpus:
    """A corpus from a file of interactions and, for each side, a file of features.

    Args:
        path: columns `query` and `candidate`, optionally `value` and `time`.
        query_features, candidate_features: column `id`, and one column a feature.
        shared_ids: query and candidate ids name the same things.
        columns: the file's own names of these columns, {"query": "user_id"}.
        list_separator: in a CSV, what divides the keys of a bag; "" for no bags.
    Raises: DataError: a file cannot be read or used; the row is named where one is at fault.
    """
    return Corpus.from_tables(
        read_interactions(path, columns),
        _read_features(query_features, list_separator),
        _read_features(candidate_features, list_separator),
        shared_ids=shared_ids,
        source=str(path),
    )


def read_interactions(path: Path, columns: Mapping[str, str] | None = None) -> pa.Table:
    """The columns `query`, `candidate`, `value`, `time`, `weight` of a file, those that it has.

    Raises: DataError: the file cannot be read, lacks a column that `columns` names, or has a value
        or time that is no number; the row is named.
    """
    unknown = sorted(set(columns or {}) - set(COLUMNS))
    if unknown:
        raise DataError(f"There is no column {unknown[0]!r} to name; name {', '.join(COLUMNS)}.")
    table = read_table(path)
    names = {name: name for name in COLUMNS} | dict(columns or {})
    for name in columns or {}:
        if names[name] not in table.column_names:
            has = ", ".join(table.column_names)
            raise DataError(f"{path} has no column {names[name]!r}; its columns are: {has}.")
    chosen = {k: table[v] for k, v in names.items() if v in table.column_names}
    for name, (pattern, wanted) in WANTED.items():
        # One word among the numbers makes strings of them all: say which.
        if name in chosen and pa.types.is_string(chosen[name].type):
            cells = chosen[name]
            row = pc.index(pc.match_substring_regex(cells, pattern), False).as_py()
            if row >= 0:
                given = cells[row].as_py()
                raise DataError(f"{path} row {row + 1}: {name} is {given!r}; it must be {wanted}.")
    return pa.table(chosen)


def read_table(path: Path) -> pa.Table:
    """Any of the formats, by the file's name; a folder is one of Parquet files.

    Raises: DataError: it is missing, empty, of another format, or damaged.
    """
    if not path.exists():
        raise DataError(f"There is no file {path}.")
    name = path.name.lower()
    text = TEXT.search(name)
    try:
        if path.is_dir() or name.endswith((".parquet", ".pq")):
            table = pq.read_table(path)
        elif path.stat().st_size == 0:
            raise DataError(f"{path} is empty; it needs a header and rows.")
        elif name.endswith((".arrow", ".feather")):
            table = feather.read_table(path)
        elif text:
            table = read_csv(path, str(path), delimiter="\t" if text[1] == "t" else ",")
        else:
            raise DataError(f"{path} is of no known format; the known ones end in: {SUFFIXES}.")
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {_sentence(error)}.") from error
    for column in table.column_names:
        if table.column_names.count(column) > 1:
            raise DataError(f"{path} has two columns {column!r}; each needs a name of its own.")
    return table


def read_csv(
    content: Path | bytes,
    source: str,
    *,
    delimiter: str = ",",
    types: Mapping[str, pa.DataType] | None = None,
    header: bool = True,
) -> pa.Table:
    """A table from text in cells.

    Args:
        content: a file, or what is in it.
        source: what to call it in an error.
        types: the columns to keep and their types; all of them, and what Arrow infers, if None.
        header: whether the first line names the columns; else they are those of `types`, and a
            quotation mark is a letter like any other.
    Raises: DataError: a column is missing, or a line cannot be read; the row is named.
    """

    def read(*, use_threads: bool) -> pa.Table:
        names = None if header or types is None else list(types)
        with _opened(content) as file:
            return csv.read_csv(
                file,
                csv.ReadOptions(use_threads=use_threads, column_names=names),
                csv.ParseOptions(delimiter=delimiter, quote_char='"' if header else False),
                # Only an empty cell is missing; a written NaN stays one, to be refused by its row.
                csv.ConvertOptions(
                    null_values=[""],
                    strings_can_be_null=True,
                    column_types=types,
                    include_columns=list(types) if types else None,
                ),
            )

    try:
        try:
            return read(use_threads=True)
        except pa.ArrowInvalid:
            return read(use_threads=False)  # slower, but its error knows the row
    except (*DAMAGED, pa.ArrowException) as error:
        message, where = _sentence(error), ""
        if line := re.search(r"Row #(\d+): ", message):
            where = f" row {int(line[1]) - header}"
            message = message.replace(line[0], "")
        raise DataError(f"{source}{where} cannot be read: {message}.") from error


def _opened(content: Path | bytes) -> Any:
    """What Arrow reads text from; by itself it would unpack a gzip, and without a limit."""
    if isinstance(content, bytes):
        return pa.BufferReader(content)
    return GzipReader(content) if content.suffix.lower() == ".gz" else pa.OSFile(str(content))


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _read_features(path: Path | None, separator: str) -> pa.Table | None:
    if path is None:
        return None
    table = read_table(path)
    if not separator or not TEXT.search(path.name):
        return table  # the other formats have lists of their own
    for i, name in enumerate(table.column_names):
        column = table[name]
        if name == "id" or not pa.types.is_string(column.type):
            continue
        if pc.any(pc.match_substring(column, separator)).as_py():
            table = table.set_column(i, name, pc.split_pattern(column, separator))
    return table
