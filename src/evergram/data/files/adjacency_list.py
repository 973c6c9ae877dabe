"""Read adjacency lists: a line is a query and its candidates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.files.decompression import DAMAGED, GzipReader
from evergram.errors import DataError

# Bytes of text that are read at once; a line may be longer.
BLOCK = 8 << 20


def pairs_of_lines(path: Path) -> Iterator[pa.Table]:
    """Yield the pairs of lines `query candidate candidate …`, columns `query` and `candidate`, as
    texts, of some lines at a time.

    The public splits of LightGCN and NGCF (Gowalla, Yelp2018, Amazon-Book) have this form. Ids are
    divided by white space. A line that names a query alone has no pair; a query may have several
    lines.

    Args:
        path: UTF-8, perhaps `.gz`.
    Returns: also the column `row`, the number of the line.
    Raises: DataError: the file is damaged, is not in UTF-8, or has no pair.
    """
    row, size = 0, 0
    for text in _blocks(path):
        lists = [line.split() for line in text.splitlines()]
        table = _pairs(lists, row)
        row, size = row + len(lists), size + len(table)
        if len(table):
            yield table
    if not size:
        raise DataError(f"{path} has no pairs; a line must be a query and its candidates.")


def _pairs(lists: list[list[str]], first: int) -> pa.Table:
    """Return the pairs of lines, each a list of ids.

    Args:
        first: lines of the file before them.
    """
    each = pa.array(lists, pa.list_(pa.string()))
    ids, line = each.flatten(), pc.list_parent_indices(each)
    heads = pa.array([ids[0] if ids else None for ids in lists], pa.string())
    # The first id of each line is its query.
    tails = pa.array([place > 0 for line in lists for place in range(len(line))], pa.bool_())
    line = line.filter(tails)
    rows = pc.add(line.cast(pa.int64()), first + 1)
    return pa.table({"query": heads.take(line), "candidate": ids.filter(tails), "row": rows})


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
