"""The pairs that the versions of a lineage were trained on, so that no version is tested on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """The pairs that a version of the lineage may not be tested on.

    Args:
        salt: of the pairs' hashes, recorded with version 0; None before that, and in lineages of
            before format 4.
        trained: the pairs that any version was trained on, hashed with this salt.
        untested: a sentence on why no pair is known to be held out from all versions; None if that
            is known.
    """

    salt: str | None = None
    trained: TrainedPairs = field(default_factory=TrainedPairs)
    untested: str | None = None

    def new(self, trained: tuple[str, TrainedPairs] | None) -> TrainedPairs | None:
        """Return the pairs that no version was trained on before; None if that is not known.

        Args:
            trained: a version's training pairs, and the salt of their hashes.
        """
        if trained is None or self.untested is not None or self.salt not in (None, trained[0]):
            return None
        return trained[1].without(self.trained)


def join_histories(
    salt: str | None,
    versions: Sequence[int],
    pairs: Mapping[int, TrainedPairs | None],
    lineage: str,
) -> PairHistory:
    """Return the history of a lineage from those of its versions.

    Args:
        versions: all of the lineage.
        pairs: by version, of those with a model; None where the pairs were not recorded.
        lineage: to call it in `untested`.
    """
    unrecorded = [n for n, recorded in pairs.items() if recorded is None]
    if unrecorded or (salt is None and versions):
        return PairHistory(salt, untested=_unrecorded(unrecorded or versions, lineage))
    known = [recorded for recorded in pairs.values() if recorded is not None]
    return PairHistory(salt, TrainedPairs().union(known))


def _unrecorded(versions: Sequence[int], where: str) -> str:
    """Return why nothing can be tested in a lineage whose `versions` did not record their pairs."""
    names = ", ".join(map(str, versions))
    return (
        f"No test figure: the training pairs of version{'s' * (len(versions) > 1)} {names} of "
        f"{where} were not recorded (before format 4 none were), so no pair is known to be held "
        "out from every version; train a new lineage to have test figures."
    )


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
