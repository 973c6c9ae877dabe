"""Canaries are compared with the vectors of their version, as these are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.errors import DataError
from evergram.lineage.publishing.block_check import Block, checked_blocks

# ‖canary − vector‖ over ‖vector‖, at most: encoding a few objects alone rounds otherwise.
ROUNDING = 1e-3


class CanaryCheck:
    """The canaries of one side; `through` passes its blocks on, and refuses canaries that differ.

    Args:
        ids, vectors: of the canaries, as `Artefact` takes them.
        side: its name, for errors.
        dim: D.
    Raises: DataError, ShapeError: they are no vectors by id, each id once.
    """

    def __init__(self, ids: Any, vectors: Any, side: str, dim: int) -> None:
        self.side = side
        [(keys, rows)] = checked_blocks([(ids, vectors)], f"canary {side}", dim)
        self.ids: Any = keys
        self.vectors: Tensor = rows.detach().float().cpu()

    def through(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the same blocks.

        Raises: DataError: at the end, if a canary's id was in none of them; before it, if its
            vector is another.
        """
        missing = set(self.ids.to_pylist())
        for ids, vectors in blocks:
            mine = self._as_type(ids.type)
            at = pc.fill_null(pc.index_in(ids, value_set=mine), -1).to_numpy(zero_copy_only=False)
            rows = torch.from_numpy((at >= 0).nonzero()[0])
            for row, place in zip(rows.tolist(), at[at >= 0].tolist(), strict=True):
                own, kept = vectors[row].detach().float().cpu(), self.vectors[place]
                # A NaN is at no distance.
                if not float((own - kept).norm()) <= ROUNDING * float(own.norm()):
                    raise DataError(
                        f"The canary {self.ids[place].as_py()!r} of the side {self.side} is not "
                        "the vector that the version has for it; give that vector."
                    )
                missing.discard(self.ids[place].as_py())
            yield ids, vectors
        if missing:
            raise DataError(
                f"The canary {min(missing, key=str)!r} of the side {self.side} is not among the "
                "ids of the version; keep objects that it has."
            )

    def _as_type(self, kind: pa.DataType) -> pa.Array:
        """Return the ids as the version has them; those that cannot be so stay apart."""
        if kind == self.ids.type:
            return self.ids
        if pa.types.is_string(kind):
            return self.ids.cast(pa.string())
        numeric = pc.match_substring_regex(self.ids, r"^-?[0-9]{1,18}$")
        return pc.if_else(numeric, self.ids, None).cast(pa.int64())
