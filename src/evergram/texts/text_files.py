"""Read ids and texts from a file: Parquet, Arrow, CSV, TSV or JSON lines."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.feather as feather
import pyarrow.parquet as pq

from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.file_content import refuse_open_quotation, refuse_other_content, unreadable
from evergram.ids import first_missing, ids_of_text, is_text, missing_sentence, refuse_repeats

SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".csv", ".tsv", ".jsonl", ".ndjson")


def read_texts(
    path: Path, *, id_column: str = "id", text_column: str = "text"
) -> tuple[pa.Array, list[str]]:
    """Return the ids, int64 or string, and the texts of a file, in its order. Errors name rows."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path} is of no known format; texts are in {', '.join(SUFFIXES)}.")
    if not path.is_file():
        raise DataError(f"There is no file {path}; correct the path.")
    if suffix in (".csv", ".tsv", ".jsonl", ".ndjson"):
        refuse_other_content(path)
    try:
        table = _table(path, suffix, id_column, text_column)
    except (OSError, OverflowError, UnicodeError, pa.ArrowException) as error:
        raise unreadable(path, error) from error
    for name, what in ((id_column, "id"), (text_column, "text")):
        if table.column_names.count(name) != 1:
            has = ", ".join(table.column_names) + did_you_mean(name, table.column_names)
            raise DataError(
                f"{path} has no column {name!r}; it has {has}. Name one column of {what}s by "
                f"--column {what}=NAME where the command has that, and give each name once."
            )
    text_file = suffix in (".csv", ".tsv")
    ids = _ids(path, table[id_column].combine_chunks(), id_column, text_file=text_file)
    column = table[text_column]
    if not is_text(column.type):
        raise DataError(f"{path}: {text_column} is of type {column.type}; it must be text.")
    texts = column.to_pylist()
    for row, text in enumerate(texts, 1):
        if not text or not text.strip():
            what = f"{text_column} has no text; give one or leave the row out."
            raise DataError(f"{path} row {row}: {what}")
    return ids, texts


def _table(path: Path, suffix: str, id_column: str, text_column: str) -> pa.Table:
    if suffix in (".parquet", ".pq"):
        return pq.read_table(path)
    if suffix in (".arrow", ".feather"):
        return feather.read_table(path)
    if suffix in (".csv", ".tsv"):
        kinds, delimiter = {id_column: pa.string(), text_column: pa.string()}, ","
        if suffix == ".tsv":
            delimiter = "	"
        with path.open("rb") as content:
            refuse_open_quotation(path, delimiter, content)
        return arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=kinds, strings_can_be_null=False, null_values=[]
            ),
        )
    ids, texts = list[object](), list[object]()
    with path.open("rb") as file:
        for row, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                ids.append(record[id_column])
                texts.append(record[text_column])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DataError(
                    f"{path} row {row} is not a JSON object with {id_column!r} and {text_column!r} "
                    "(--column names others); correct or remove it."
                ) from error
    kind = int if all(type(id_) is int for id_ in ids) else str
    if not all(type(id_) is kind for id_ in ids):
        raise DataError(f"{path}: {id_column} must be all integers or all texts; write them alike.")
    strings = [text if isinstance(text, str) else None for text in texts]
    of_ids = pa.int64() if kind is int else pa.string()
    return pa.table({id_column: pa.array(ids, of_ids), text_column: pa.array(strings, pa.string())})


def _ids(path: Path, ids: pa.Array, name: str, *, text_file: bool) -> pa.Array:
    kind = ids.type
    if not len(ids):
        raise DataError(f"{path} has no rows; it needs at least one.")
    if not (pa.types.is_integer(kind) or is_text(kind)):
        raise DataError(f"{path}: {name} is of type {kind}; ids are integers or texts.")
    row = first_missing(ids, text_file=text_file)
    if row >= 0:
        where = f"{path} row {row + 1}"
        raise DataError(missing_sentence(where, name, ids[row].as_py(), text_file=text_file))
    if text_file:
        whole = ids_of_text(ids)
        # Numbers with a point stay texts: 1.10 is another id than 1.1.
        ids = whole if pa.types.is_integer(whole.type) else ids
    if pa.types.is_uint64(kind) and pc.max(ids).as_py() >= 2**63:
        raise DataError(
            f"{path}: {name} has the integer {pc.max(ids).as_py()}, which is 2⁶³ or more; give "
            "such ids as text."
        )
    ids = ids.cast(pa.int64() if pa.types.is_integer(ids.type) else pa.string())
    refuse_repeats(ids, str(path))
    return ids
