"""Keep old embeddings usable: the way back from a new version to the ones before.

The paper is [BC]: Hu et al., *Learning backward compatible embeddings*, KDD 2022. Version k has
embeddings z_k of D_k dims and a light transform B_k, B_k(z_k) ≈ z_{k-1}; transforms compose, so
that whoever stays at version j reads B_{j+1} ∘ … ∘ B_k (z_k).

Two doors, which need nothing else of Evergram (docs/aligner.md):

- `Aligner`: two arrays are there already; the map from one to the other, in closed form.
- `BackwardAlignment`: a model is being trained; the loss that holds it to its past.

To read the room, begin with what a way back is, `transforms` (chosen among by `kinds`), and how
several are one, `chain`.
Then what is trained, `alignment_loss` (Eq. 7 and 10, all of history in one matrix) and
`backward_alignment`; or what is solved for, `second_moments`, `closed_form_solvers`,
`closed_form_fit` (which of them, and the ridge) and `aligner`. Last, what is known of the error:
`chance`, `degenerate` and `certificate` (Eq. 9).

>>> from evergram import compatibility
>>> sorted(set(compatibility.__all__) & {"Aligner", "BackwardAlignment", "Chain"})
['Aligner', 'BackwardAlignment', 'Chain']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.compatibility.aligner.aligner import Aligner
    from evergram.compatibility.aligner.report import AlignerReport
    from evergram.compatibility.alignment_loss import AlignmentLoss
    from evergram.compatibility.backward_alignment import BackwardAlignment
    from evergram.compatibility.certificate import Guarantee, StepError, certify
    from evergram.compatibility.chain import Chain
    from evergram.compatibility.closed_form_fit import ClosedForm, fit_closed_form
    from evergram.compatibility.gradient_fit import fit_by_gradient
    from evergram.compatibility.kinds import build_transform
    from evergram.compatibility.second_moments import SecondMoments
    from evergram.compatibility.transforms import Transform

__all__ = [
    "Aligner",
    "AlignerReport",
    "AlignmentLoss",
    "BackwardAlignment",
    "Chain",
    "ClosedForm",
    "Guarantee",
    "SecondMoments",
    "StepError",
    "Transform",
    "build_transform",
    "certify",
    "fit_by_gradient",
    "fit_closed_form",
]

export_lazily(
    __name__,
    {
        "aligner.aligner": "Aligner",
        "aligner.report": "AlignerReport",
        "alignment_loss": "AlignmentLoss",
        "backward_alignment": "BackwardAlignment",
        "certificate": "Guarantee StepError certify",
        "chain": "Chain",
        "closed_form_fit": "ClosedForm fit_closed_form",
        "gradient_fit": "fit_by_gradient",
        "kinds": "build_transform",
        "second_moments": "SecondMoments",
        "transforms": "Transform",
    },
)
