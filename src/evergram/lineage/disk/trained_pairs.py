"""Hashes of the pairs that a version was trained on, in a Parquet file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evergram.data.pair_hash import TrainedPairs
from evergram.errors import IntegrityError

FILE = "trained_pairs.parquet"


def write_trained_pairs(pairs: TrainedPairs, path: Path) -> None:
    """Write the hashes of pairs, at about 14 bits a pair for a million pairs and 7 for a hundred
    million: ascending numbers are stored by their differences."""
    table = pa.table({"pair": pa.array(pairs.marks)})
    pq.write_table(
        table,
        path,
        use_dictionary=False,
        column_encoding={"pair": "DELTA_BINARY_PACKED"},
        compression="zstd",
    )


def read_trained_pairs(path: Path) -> TrainedPairs:
    """Return the hashes that `write_trained_pairs` wrote. Raises: IntegrityError: damaged."""
    try:
        marks = pq.read_table(path)["pair"].to_numpy()
    except (pa.ArrowException, KeyError, OSError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}.") from error
    if marks.dtype != np.uint32 or (len(marks) > 1 and not (marks[1:] > marks[:-1]).all()):
        raise IntegrityError(f"{path} does not hold ascending 32-bit numbers; restore it.")
    return TrainedPairs(marks)
