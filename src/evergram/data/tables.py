"""Interactions and features from any Parquet, Arrow, CSV or TSV file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq

from evergram.data.corpus import Corpus
from evergram.errors import DataError

COLUMNS = ("query", "candidate", "value", "time")
SUFFIXES = ".parquet, .pq, .arrow, .feather, .csv, .tsv, .csv.gz, .tsv.gz"


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
        columns: the file's own names of the four columns, {"query": "user_id"}.
        list_separator: in a CSV, what divides the keys of a bag.
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
    """The columns `query`, `candidate`, `value`, `time` of a file, those that it has.

    Raises: DataError: the file cannot be read, or lacks a column that `columns` names.
    """
    table = read_table(path)
    names = {name: name for name in COLUMNS} | dict(columns or {})
    for name in columns or {}:
        if names[name] not in table.column_names:
            has = ", ".join(table.column_names)
            raise DataError(f"{path} has no column {names[name]!r}; its columns are: {has}.")
    chosen = {k: table[v] for k, v in names.items() if v in table.column_names}
    return pa.table(chosen)


def read_table(path: Path) -> pa.Table:
    """Any of the formats, by the file's name; a folder is one of Parquet files.

    Raises: DataError: it is missing, empty, of another format, or damaged.
    """
    if not path.exists():
        raise DataError(f"There is no file {path}.")
    name = path.name.lower()
    try:
        if path.is_dir() or name.endswith((".parquet", ".pq")):
            return pq.read_table(path)
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty; it needs a header and rows.")
        if name.endswith((".arrow", ".feather")):
            return feather.read_table(path)
        if re.search(r"\.[ct]sv(\.gz)?$", name):
            return _read_csv(path, "\t" if ".tsv" in name else ",")
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {' '.join(str(error).split())}.") from error
    raise DataError(f"{path} is of no known format; the known ones end in: {SUFFIXES}.")


def _read_csv(path: Path, delimiter: str) -> pa.Table:
    # Only an empty cell is missing; a written NaN stays one, to be refused by its row.
    return csv.read_csv(
        path,
        parse_options=csv.ParseOptions(delimiter=delimiter),
        convert_options=csv.ConvertOptions(null_values=[""], strings_can_be_null=True),
    )


def _read_features(path: Path | None, separator: str) -> pa.Table | None:
    if path is None:
        return None
    table = read_table(path)
    for i, name in enumerate(table.column_names):
        column = table[name]
        if name == "id" or not pa.types.is_string(column.type):
            continue
        if pc.any(pc.match_substring(column, separator)).as_py():
            table = table.set_column(i, name, pc.split_pattern(column, separator))
    return table
