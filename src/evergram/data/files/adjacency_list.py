"""Read adjacency lists: a line is a query and its candidates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.files.decompression import DAMAGED, GzipReader
from evergram.errors import DataError
from evergram.ids import first_missing, ids_of_text, missing_sentence

# Bytes of text that are read at once; a line may be longer.
BLOCK = 8 << 20


def read_adjacency_list(path: Path) -> pa.Table:
    """Return the pairs, columns `query` and `candidate`, of lines `query candidate candidate …`.

    The public splits of LightGCN and NGCF (Gowalla, Yelp2018, Amazon-Book) have this form. Ids are
    divided by white space. A line that names a query alone has no pair; a query may have several
    lines.

    Args:
        path: UTF-8, perhaps `.gz`.
    Raises: DataError: as of `pairs_of_lines`.
    """
    texts = pa.concat_tables(pairs_of_lines(path)).combine_chunks()
    return pa.table({name: ids_of_text(texts[name]) for name in texts.column_names})


def pairs_of_lines(path: Path) -> Iterator[pa.Table]:
    """Yield the pairs of some lines at a time, columns `query` and `candidate`, as texts.

    Args:
        path: as of `read_adjacency_list`.
    Raises: DataError: the file is damaged, is not in UTF-8, or has no pair; or an id is a word that
        stands for a missing value; the row is named.
    """
    row, size = 0, 0
    for text in _blocks(path):
        lists = [line.split() for line in text.splitlines()]
        table = _pairs(lists, path, row)
        row, size = row + len(lists), size + len(table)
        if len(table):
            yield table
    if not size:
        raise DataError(f"{path} has no pairs; a line must be a query and its candidates.")


def _pairs(lists: list[list[str]], path: Path, first: int) -> pa.Table:
    """Return the pairs of lines, each a list of ids.

    Args:
        first: lines of the file before them.
    """
    each = pa.array(lists, pa.list_(pa.string()))
    ids, row = each.flatten(), pc.list_parent_indices(each)
    missing = first_missing(ids, text_file=True)
    if missing >= 0:
        where, cell = f"{path} row {first + row[missing].as_py() + 1}", ids[missing].as_py()
        raise DataError(missing_sentence(where, "", cell, text_file=True))
    heads = pa.array([line[0] if line else None for line in lists], pa.string())
    # The first id of each line is its query.
    tails = pa.array([place > 0 for line in lists for place in range(len(line))], pa.bool_())
    return pa.table({"query": heads.take(row.filter(tails)), "candidate": ids.filter(tails)})


def _blocks(path: Path) -> Iterator[str]:
    """Yield whole lines of a file, about BLOCK bytes at a time."""
    waiting = bytearray()
    # A byte-order mark, which programs of Windows begin a file with, is no part of an id.
    encoding = "utf-8-sig"
    try:
        with GzipReader(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            while piece := file.read(BLOCK):
                waiting += piece
                end = waiting.rfind(b"\n") + 1
                if end:
                    yield waiting[:end].decode(encoding)
                    encoding = "utf-8"
                    del waiting[:end]
        yield waiting.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8; save the file as UTF-8.") from error
    except DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}; fetch it again.") from error
