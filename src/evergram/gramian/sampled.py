"""The Gramian of the last batch, as negative sampling has it implicitly. [G2] §3.3."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.gramian.estimator import EntityBatch, GramianEstimator, Moment, batch_moment, beside


class SampledGramian(GramianEstimator):
    """Ĝ = S_B, unbiased, with all of a batch's variance.

    The penalty with it is that of the pairs of two batches (Eq. 13). A batch of at least D rows is
    folded into a matrix (Eq. 14, O(B D²)); a smaller one is kept as it is, and multiplying by it
    goes through its rows (O(B² D)). The two give the same numbers.

    Args:
        form: "gramian", "pairs", or "auto": the cheaper, by batch size and dim.
    """

    def __init__(self, dim: int, factors: int = 0, form: str = "auto") -> None:
        super().__init__(dim, factors)
        self.form = form
        # The rows of a small batch; their number is the batch's, so they are set on loading.
        self.left: Tensor
        self.right: Tensor
        self.register_buffer("left", torch.zeros(0, dim))
        self.register_buffer("right", torch.zeros(0, dim + factors))

    def update(self, rows: EntityBatch) -> None:
        pairs = self.form == "pairs" or (self.form == "auto" and rows.size < self.dim)
        if not pairs:
            self.matrix: Tensor = batch_moment(rows).to(self.matrix)
            # A smaller batch may have been before this one.
            self.left, self.right = self.left[:0], self.right[:0]
            return
        rows = rows.whole()  # with "auto" these are less than D² floats
        self.left = (rows.embeddings * (rows.weights / len(rows.ids))[:, None]).to(self.matrix)
        self.right = beside(rows.embeddings, rows.factors).to(self.matrix)

    def moment(self) -> Moment:
        if len(self.left):
            return Moment(None, self.left, self.right)
        return Moment(self.matrix)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: object
    ) -> None:
        for name in ("left", "right"):
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name]).to(self.matrix))
        super()._load_from_state_dict(state_dict, prefix, *rest)
