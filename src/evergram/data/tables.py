"""The loader of tables: interactions and features from Parquet, Arrow, CSV or TSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from evergram.data.corpus import Corpus
from evergram.data.reading.interaction_source import (
    Interactions,
    names_of_ids,
    source_of_adjacency_list,
    sources_of_files,
)
from evergram.data.reading.keyed_table import read_keyed_files, refuse_repeated_ids
from evergram.data.reading.rules import BadRows, BadRowsChoice, numbers_of_column
from evergram.data.reading.source_files import Paths, source_files
from evergram.data.reading.table_stream import TableStream
from evergram.data.vocabulary import plain


def load_table(
    path: Paths,
    *,
    query_features: Paths | None = None,
    candidate_features: Paths | None = None,
    shared_ids: bool = False,
    columns: Mapping[str, str] | None = None,
    weights: Mapping[str, float] | None = None,
    list_separator: str = "|",
    bad_rows: BadRowsChoice = "refuse",
) -> Corpus:
    """Return the corpus of files of interactions and, for each side, of files of features.

    Args:
        path: a file, a folder of files or a glob; columns `query` and `candidate`, optionally
            `value`, `time` and `weight`.
        query_features, candidate_features: column `id`, and one column a feature.
        shared_ids: query and candidate ids name the same things.
        columns: the file's own names of these columns, {"query": "user_id"}; and of the columns of
            ids in files of features, {"candidate_id": "sku"}.
        weights: see `Corpus.of`.
        list_separator: separates the keys of a bag in a CSV; "" for no bags.
        bad_rows: as of `Corpus.of`, of features, too.
    Raises: DataError: a file cannot be read or used; the error names the row if one is wrong.
    """
    return Corpus.from_interactions(
        _interactions(path, columns, weights, bad_rows, shared_ids=shared_ids),
        *(
            None
            if features is None
            else read_features(
                features, list_separator, bad_rows, names_of_ids(columns or {}, side)
            )
            for side, features in (("query", query_features), ("candidate", candidate_features))
        ),
    )


def load_adjacency_list(path: Path, bad_rows: BadRowsChoice = "refuse") -> Corpus:
    """Return the corpus of a text file whose lines are a query and its candidates.

    Raises: DataError: see `pairs_of_lines`; or an id is neither an integer nor a text.
    """
    source = source_of_adjacency_list(path)
    return Corpus.from_interactions(Interactions([source], bad_rows=BadRows(bad_rows)))


def read_interactions(
    path: Paths,
    columns: Mapping[str, str] | None = None,
    bad_rows: BadRowsChoice = "refuse",
    weights: Mapping[str, float] | None = None,
) -> pa.Table:
    """Return those of the columns `query`, `candidate`, `value`, `time`, `weight` that files have.

    Raises: DataError: a file cannot be read, lacks `query` or `candidate` or a column that
        `columns` names, or a cell is not an id, value or time; the error names the row.
    """
    return _interactions(path, columns, weights, bad_rows).table()


def _interactions(
    path: Paths,
    columns: Mapping[str, str] | None,
    weights: Mapping[str, float] | None,
    bad_rows: BadRowsChoice,
    *,
    shared_ids: bool = False,
) -> Interactions:
    sources = sources_of_files(source_files(path), columns or {})
    bad = BadRows(bad_rows)
    return Interactions(sources, shared_ids=shared_ids, bad_rows=bad, weights=weights or {})


def read_features(
    path: Paths,
    separator: str = "|",
    bad_rows: BadRowsChoice = "refuse",
    ids: Sequence[str] = ("id",),
) -> pa.Table:
    """Return a table of features; in a file of text, cells with the separator are lists of keys.

    Raises: DataError: see `keyed_table`.
    """
    return read_keyed_files(path, separator, bad_rows=BadRows(bad_rows), ids=ids)


def read_keyed(path: Path, name: str, *, numbers: bool = False) -> tuple[pa.Array, Any]:
    """Return the ids (distinct, int64 or string) and the column `name` of a file. Of two columns
    the other one is that of the ids, whatever it is called; of more it is `id`.

    Args:
        numbers: the column is of numbers of at least 0, which are returned as float64.
    Raises: DataError: see `keyed_table`; or an id occurs twice, or a number is none.
    """
    others = [n for n in TableStream(source_files(path)[0]).names if n != name]
    ids_of = others if len(others) == 1 else ("id",)
    table = read_keyed_files(path, "", [name], BadRows(advice=False), ids_of)
    refuse_repeated_ids(table["id"], str(path))
    cells = numbers_of_column(table[name], str(path), name) if numbers else table[name]
    return plain(table["id"]), cells
