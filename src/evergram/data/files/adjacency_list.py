"""Read adjacency lists: a line is a query and its candidates."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.files.decompression import DAMAGED, GzipReader
from evergram.errors import DataError
from evergram.ids import first_missing, ids_of_text, missing_sentence


def read_adjacency_list(path: Path) -> pa.Table:
    """Return the pairs, columns `query` and `candidate`, of lines `query candidate candidate …`.

    The public splits of LightGCN and NGCF (Gowalla, Yelp2018, Amazon-Book) have this form. Ids are
    divided by white space. A line that names a query alone has no pair; a query may have several
    lines.

    Args:
        path: UTF-8, perhaps `.gz`.
    Raises: DataError: the file is damaged, is not in UTF-8, or has no pair; or an id is a word that
        stands for a missing value; the row is named.
    """
    lists = [line.split() for line in _text(path).splitlines()]
    each = pa.array(lists, pa.list_(pa.string()))
    ids, row = each.flatten(), pc.list_parent_indices(each)
    missing = first_missing(ids, text_file=True)
    if missing >= 0:
        where, cell = f"{path} row {row[missing].as_py() + 1}", ids[missing].as_py()
        raise DataError(missing_sentence(where, "", cell, text_file=True))
    heads = pa.array([line[0] if line else None for line in lists], pa.string())
    # The first id of each line is its query.
    tails = pa.array([place > 0 for line in lists for place in range(len(line))], pa.bool_())
    if not pc.any(tails).as_py():
        raise DataError(f"{path} has no pairs; a line must be a query and its candidates.")
    query = ids_of_text(heads.take(row.filter(tails)))
    candidate = ids_of_text(ids.filter(tails))
    return pa.table({"query": query, "candidate": candidate})


def _text(path: Path) -> str:
    try:
        with GzipReader(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            # A byte-order mark, which programs of Windows begin a file with, is no part of an id.
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8; save the file as UTF-8.") from error
    except DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}; fetch it again.") from error
