"""The embeddings of all candidates in each step, for tasks whose loss is over all of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from evergram.encoders.encoder import Embeddings
from evergram.encoders.tables.embedding_tables import ROWS


class CandidatesAtHand(Embeddings):
    """Embeddings of which all candidates are computed once, with gradient, and shared by all that a
    step asks.

    Where they are more than `rows`, they are embedded in blocks that the backward pass embeds
    again: of a tower's layers only one block is in memory.

    Args:
        embeddings: of a scene at the current parameters.
        size: N, of the candidates.
        device: of the ids that are looked up.
        rows: of a block.
    """

    def __init__(
        self, embeddings: Embeddings, size: int, device: torch.device, rows: int = ROWS
    ) -> None:
        self.embeddings = embeddings
        whole = embeddings.whole("candidate")
        if whole is None and size <= rows:
            whole = embeddings.rows("candidate", torch.arange(size, device=device))
        elif whole is None:
            places = torch.split(torch.arange(size, device=device), rows)
            whole = torch.cat([self._again(ids) for ids in places])
        self.candidates: Tensor = whole

    def _again(self, ids: Tensor) -> Tensor:
        """Return the rows of a block, of which the backward pass computes the layers again."""
        rows: Tensor = checkpoint(self.embeddings.rows, "candidate", ids, use_reentrant=False)
        return rows

    def rows(self, side: str, ids: Tensor) -> Tensor:
        if side == "candidate":
            return self.candidates.index_select(0, ids)
        return self.embeddings.rows(side, ids)

    def of_pairs(self, query: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.embeddings.of_pairs(query, candidate)

    def blocks(self, side: str, batch_size: int = ROWS) -> Iterator[Tensor]:
        return self.embeddings.blocks(side, batch_size)

    def whole(self, side: str) -> Tensor | None:
        return self.candidates if side == "candidate" else self.embeddings.whole(side)
