"""The loader of tables: interactions and features from Parquet, Arrow, CSV or TSV."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather
import pyarrow.parquet as pq

from evergram.data.columnar.interactions import check_ids, refuse_missing
from evergram.data.columnar.vocabulary import plain
from evergram.data.corpus import Corpus
from evergram.data.files.adjacency_list import read_adjacency_list
from evergram.data.files.column_names import guess, has_no_header, lacking, refuse_unknown
from evergram.data.files.csv_file import read_csv
from evergram.data.files.decompression import GzipReader
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.file_content import refuse_other_content, unreadable
from evergram.ids import ids_of_text
from evergram.quotation import refuse_open_quotation

COLUMNS = ("query", "candidate", "value", "time", "weight")
SUFFIXES = ".parquet, .pq, .arrow, .feather, .csv, .tsv, .csv.gz, .tsv.gz"
# Separators of cells to try if the first line lacks the one that the suffix implies.
DELIMITERS = (",", ";", "\t", "|")
# The first line must end within these bytes of the file.
HEADER = 1 << 16
TEXT = re.compile(r"\.([ct])sv(\.gz)?$", re.IGNORECASE)

# Patterns of cells in a column of numbers; a time may also be a date, which Arrow reads.
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
    """Return the corpus of a file of interactions and, for each side, a file of features.

    Args:
        path: columns `query` and `candidate`, optionally `value` and `time`.
        query_features, candidate_features: column `id`, and one column a feature.
        shared_ids: query and candidate ids name the same things.
        columns: the file's own names of these columns, {"query": "user_id"}.
        list_separator: separates the keys of a bag in a CSV; "" for no bags.
    Raises: DataError: a file cannot be read or used; the error names the row if one is wrong.
    """
    return Corpus.from_tables(
        read_interactions(path, columns),
        *(
            None if features is None else read_features(features, list_separator)
            for features in (query_features, candidate_features)
        ),
        shared_ids=shared_ids,
        source=str(path),
    )


def load_adjacency_list(path: Path) -> Corpus:
    """Return the corpus of a text file whose lines are a query and its candidates.

    Raises: DataError: as of `read_adjacency_list`; or an id is neither an integer nor a text.
    """
    return Corpus.from_tables(read_adjacency_list(path), source=str(path))


def read_interactions(path: Path, columns: Mapping[str, str] | None = None) -> pa.Table:
    """Return those of the columns `query`, `candidate`, `value`, `time`, `weight` that a file has.

    Raises: DataError: the file cannot be read, lacks `query` or `candidate` or a column that
        `columns` names, or a cell is not an id, value or time; the error names the row.
    """
    unknown = sorted(set(columns or {}) - set(COLUMNS))
    if unknown:
        raise DataError(
            f"There is no column {unknown[0]!r} to name; name {', '.join(COLUMNS)}"
            f"{did_you_mean(unknown[0], COLUMNS)}."
        )
    names = {name: name for name in COLUMNS} | dict(columns or {})
    table = read_table(path, ids=(names["query"], names["candidate"]))
    refuse_unknown(str(path), (columns or {}).values(), table.column_names)
    chosen = {k: table[v] for k, v in names.items() if v in table.column_names}
    if names["query"] == names["candidate"] in table.column_names:
        raise DataError(
            f"{path}: query and candidate are both the column {names['query']!r}; say in "
            "data.columns which is the other."
        )
    absent = {"query", "candidate"} - set(chosen)
    if absent:
        has_line = TEXT.search(path.name) is not None
        raise DataError(
            lacking(str(path), absent, table.column_names, columns or {}, header_line=has_line)
        )
    _warn_of_others(path, table.column_names, names)
    for name in ("query", "candidate"):
        check_ids(chosen[name], names[name], str(path))
    for name, (pattern, wanted) in WANTED.items():
        # One word among the numbers makes them all strings: name it.
        if name in chosen and pa.types.is_string(chosen[name].type):
            cells = chosen[name]
            row = pc.index(pc.match_substring_regex(cells, pattern), False).as_py()
            if row >= 0:
                cell = cells[row].as_py()
                raise DataError(
                    f"{path} row {row + 1}: {names[name]} is {cell!r}; it must be {wanted}."
                )
    return pa.table(chosen)


def read_keyed(path: Path, name: str) -> tuple[pa.Array, pa.ChunkedArray]:
    """Return the columns `id` (distinct, int64 or string) and `name` of a file.

    Raises: DataError: as of `read_table`; or a column is missing; an id is missing or occurs twice.
    """
    table = read_table(path, ids=("id",))
    refuse_unknown(str(path), ("id", name), table.column_names)
    check_ids(table["id"], "id", str(path))
    ids = plain(table["id"])
    if len(pc.unique(ids)) < len(ids):
        counts = pc.value_counts(ids).flatten()
        repeated = counts[0][pc.index(pc.greater(counts[1], 1), True).as_py()]
        raise DataError(f"{path} names the id {repeated} twice; leave one row of it.")
    return ids, table[name]


def read_table(path: Path, *, ids: Collection[str] = (), exact: Collection[str] = ()) -> pa.Table:
    """Return the table in a file, whose suffix tells its format; a folder holds Parquet files.

    Args:
        ids: columns of ids. In a file of text they become integers only if every cell is written as
            the integer is printed.
        exact: columns that stay strings in a file of text.
    Raises: DataError: the file is missing, empty, of another format, or damaged; or in a file of
        text a cell of `ids` is empty or a word such as NULL.
    """
    if not path.exists():
        raise DataError(f"There is no file {path}; correct the path.")
    name = path.name.lower()
    text = TEXT.search(name)
    own: tuple[bytes, ...] = ()
    try:
        if path.is_dir() or name.endswith((".parquet", ".pq")):
            if path.is_dir() and not any(path.rglob("*.*")):
                raise DataError(f"{path} is an empty folder; put Parquet files there.")
            own = (b"PAR1",)
            table = pq.read_table(path)
        elif path.stat().st_size == 0:
            raise DataError(f"{path} is empty; it needs a header and rows.")
        elif name.endswith((".arrow", ".feather")):
            own = (b"ARROW1", b"FEA1")
            table = feather.read_table(path)
        elif text:
            table = _read_text(path, "\t" if text[1].lower() == "t" else ",", ids, exact)
        else:
            raise DataError(f"{path} is of no known format; the known ones end in: {SUFFIXES}.")
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error, *own) from error
    for column in table.column_names:
        if table.column_names.count(column) > 1:
            if text and has_no_header(table.column_names):
                raise DataError(lacking(str(path), {"query"}, table.column_names, {}))
            raise DataError(f"{path} has two columns {column!r}; each needs a name of its own.")
    return table


def _read_text(
    path: Path, delimiter: str, ids: Collection[str], exact: Collection[str]
) -> pa.Table:
    """Return the table of a CSV or TSV.

    Cells are separated as the suffix says or, if the first line lacks that separator, by the first
    other one that it has.
    """
    refuse_other_content(path, *([b"\x1f\x8b"] if path.suffix.lower() == ".gz" else []))
    first = _first_line(path)
    if delimiter not in first:
        delimiter = next((other for other in DELIMITERS if other in first), delimiter)
    texts = dict.fromkeys([*ids, *exact], pa.string())
    table = read_csv(path, str(path), delimiter=delimiter, kinds=texts)
    for i, name in enumerate(table.column_names):
        if name in ids and table.column_names.count(name) == 1:
            refuse_missing(table[name], name, str(path), text_file=True)
            table = table.set_column(i, name, ids_of_text(table[name]))
    # A cell of several lines may be the rows after a quotation mark that nobody closed.
    if any(_has_lines(column) for column in table.columns):
        unpacked = GzipReader(path) if path.suffix.lower() == ".gz" else None
        refuse_open_quotation(path, delimiter, unpacked)
    return table


def _has_lines(column: pa.ChunkedArray) -> bool:
    return pa.types.is_string(column.type) and bool(
        pc.any(pc.match_substring(column, "\n")).as_py()
    )


def _first_line(path: Path) -> str:
    with pa.input_stream(str(path), compression="detect") as stream:
        text: bytes = stream.read(HEADER)
    return text.splitlines()[0].decode(errors="replace") if text.strip() else ""


def _warn_of_others(path: Path, has: Sequence[str], names: Mapping[str, str]) -> None:
    """Warn of a column that seems to be a value or a time and is not read as such."""
    for role, column in guess(has).items():
        if role in ("value", "time") and names[role] not in has and column not in names.values():
            logging.getLogger(__name__).warning(
                '%s: its column %s is not read; if it is the %s, add %s = "%s" to data.columns.',
                path,
                column,
                role,
                role,
                column,
            )


def read_features(path: Path, separator: str = "|") -> pa.Table:
    """Return a table of features; in a file of text, cells with the separator are lists of keys.

    Raises: DataError: as of `read_table`.
    """
    table = read_table(path, ids=("id",))
    text = TEXT.search(path.name)
    if text is None:
        return table  # the other formats have lists of their own
    numbers = [n for n in table.column_names if n != "id" and pa.types.is_integer(table[n].type)]
    # 00017 is a key like any other: numbers are read once more, as they are written.
    exact = read_table(path, exact=numbers) if numbers else table
    for i, name in enumerate(table.column_names):
        column = exact[name]
        if name in numbers:
            table = table.set_column(i, name, ids_of_text(column))
            continue
        bags = name != "id" and separator and pa.types.is_string(column.type)
        if bags and pc.any(pc.match_substring(column, separator)).as_py():
            table = table.set_column(i, name, pc.split_pattern(column, separator))
    return table
