"""Bayesian personalised ranking: each observed pair scores above one that was not observed."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from evergram.data.sampling import Batch
from evergram.tasks.task import Encoded, Moments, Task, score


class BPR(Task):
    """mean log(1 + exp(−(⟨u, v⁺⟩ − ⟨u, v⁻⟩))), one uniform rejected negative a pair.

    Source: Rendle et al. 2009; positives and negatives as [BC] App. A draws them.
    """

    wants_negatives = True
    is_mean_of_pairs = True

    def forward(self, encoded: Encoded, batch: Batch, moments: Moments) -> Tensor:
        assert encoded.negative is not None
        other = (encoded.query * encoded.negative).sum(-1)
        return functional.softplus(other - score(encoded)).mean()
