"""Transforms that map a new version's embeddings to the earlier versions.

The paper is [BC]: Hu et al., *Learning backward compatible embeddings*, KDD 2022. Version k has
embeddings z_k of D_k dims and a light transform B_k with B_k(z_k) ≈ z_{k-1}. Transforms compose:
a consumer pinned to version j reads B_{j+1} ∘ … ∘ B_k (z_k).

Two classes can be used without the rest of Evergram (docs/aligner.md):

- `Aligner` fits the map between two arrays of embeddings in closed form.
- `BackwardAlignment` is the loss that keeps a model compatible with its past versions in training.

Read in this order:

1. `transforms` (the maps), `kinds` (their table of settings) and `chain` (their composition).
2. Trained transforms: `alignment_loss` (Eq. 7 and 10, with one matrix for all past versions) and
   `backward_alignment`.
3. Closed-form transforms: `closed_forms` (second moments, solvers, ridge selection) and `aligner/`.
4. Their error: `chance` and `certificate` (Eq. 9). `sidecar/` stores a few bytes of the error next
   to each new vector.

>>> from evergram import compatibility
>>> sorted(set(compatibility.__all__) & {"Aligner", "BackwardAlignment", "Chain"})
['Aligner', 'BackwardAlignment', 'Chain']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.compatibility.aligner.aligner import Aligner as Aligner
    from evergram.compatibility.alignment_loss import AlignmentLoss as AlignmentLoss
    from evergram.compatibility.alignment_loss import fit_by_gradient as fit_by_gradient
    from evergram.compatibility.backward_alignment import BackwardAlignment as BackwardAlignment
    from evergram.compatibility.certificate import certify as certify
    from evergram.compatibility.chain import Chain as Chain
    from evergram.compatibility.closed_forms import SecondMoments as SecondMoments
    from evergram.compatibility.closed_forms import fit_closed_form as fit_closed_form
    from evergram.compatibility.transforms import Transform as Transform

export_lazily(__name__)
