"""What a lineage knows of the pairs that its versions were trained on, so that none is tested."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evergram.data.pair_hash import TrainedPairs
from evergram.errors import IntegrityError

FILE = "trained_pairs.parquet"


@dataclass(frozen=True)
class PairHistory:
    """What decides which pairs a version of the lineage may be tested on.

    Args:
        salt: the lineage's, recorded with version 0; None before that, and in lineages of before
            format 4.
        trained: the pairs that a version was trained on, under this salt.
        untested: why no pair is known to be held out from all versions, in one sentence; None
            where that is known.
    """

    salt: str | None = None
    trained: TrainedPairs = field(default_factory=TrainedPairs)
    untested: str | None = None

    def new(self, trained: tuple[str, TrainedPairs] | None) -> TrainedPairs | None:
        """The pairs, with the salt of their hashes, that no version was trained on before; None
        where that is not known."""
        if trained is None or self.untested is not None or self.salt not in (None, trained[0]):
            return None
        return trained[1].without(self.trained)


def unrecorded(versions: list[int], where: str) -> str:
    """Why nothing can be tested in a lineage whose `versions` did not record their pairs."""
    names = ", ".join(map(str, versions))
    return (
        f"No test figure: the training pairs of version{'s' * (len(versions) > 1)} {names} of "
        f"{where} were not recorded (before format 4 none were), so no pair is known to be held "
        "out from every version; train a new lineage to have test figures."
    )


def write_trained_pairs(pairs: TrainedPairs, path: Path) -> None:
    """About 14 bits a pair at a million pairs, and 7 at a hundred million: ascending numbers are
    stored by their differences."""
    table = pa.table({"pair": pa.array(pairs.marks)})
    pq.write_table(
        table,
        path,
        use_dictionary=False,
        column_encoding={"pair": "DELTA_BINARY_PACKED"},
        compression="zstd",
    )


def read_trained_pairs(path: Path) -> TrainedPairs:
    """Raises: IntegrityError: it is not such a file."""
    try:
        marks = pq.read_table(path)["pair"].to_numpy()
    except (pa.ArrowException, KeyError, OSError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}.") from error
    if marks.dtype != np.uint32 or (len(marks) > 1 and not (marks[1:] > marks[:-1]).all()):
        raise IntegrityError(f"{path} does not hold ascending 32-bit numbers; restore it.")
    return TrainedPairs(marks)
