"""Rows of a table of ids by a hash of the id, so that any number of ids has so many rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.pair_hash import PairHash


@dataclass(frozen=True)
class HashedRows:
    """The row of an id is h(id) mod N; ids with the same row share a vector.

    h is the first eight bytes, little endian, of BLAKE2b of the id's text, keyed by BLAKE2b of the
    table's name and the seed (`PairHash.of_ids`): the same in every process and version, whatever
    the other ids are. 5 and "5" are one id.

    Args:
        count: N.
        seed: another one gives independent rows.
    """

    count: int
    seed: int = 0

    def rows(self, ids: pa.Array, table: str) -> Tensor:
        """Return the row of each id, int64 [n]; -1 for an id that is missing.

        Args:
            table: the name of the ids' vocabulary; tables of two names have independent rows.
        """
        hashes = PairHash(f"hash_rows {self.seed}").of_ids(ids, table)
        rows = torch.from_numpy((hashes % np.uint64(self.count)).astype(np.int64))
        if ids.null_count:
            rows[torch.from_numpy(ids.is_null().to_numpy(zero_copy_only=False).copy())] = -1
        return rows

    def shared(self, ids: pa.Array, table: str) -> float:
        """Return the share of distinct ids [n] that have their row together with another of them.

        The expectation is 1 − (1 − 1/N)^(n − 1).
        """
        counts = torch.bincount(self.rows(ids, table), minlength=self.count)
        alone = int((counts == 1).sum())
        return 1 - alone / len(ids) if len(ids) else 0.0
