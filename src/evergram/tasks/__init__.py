"""Tasks: the losses on observed pairs that encoders are trained for.

Read in this order:

1. `task`: `Task`, the interface, and `Encoded`, a batch as a loss sees it.
2. The tasks: `pointwise` (its losses by name in `pointwise_losses`), `bpr`, `softmax` (within the
   batch), `second_order`, `spherical`, `clustered_softmax` (over all candidates, by moments), and
   `softmax_all` (over all candidates, exactly; `partition/` has its denominator,
   `candidate_neighbours` those that are pulled beside a pair's own).
3. `objective`: a task plus λ times the penalty on all pairs (`evergram.gramian`), norms, spread.

Sources: [G1] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
2018; [G2] the same, ICLR 2019. `docs/method.md` derives the second-order softmax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.tasks.bpr import BPR
    from evergram.tasks.clustered_softmax import ClusteredSoftmax
    from evergram.tasks.kinds import TASKS, TaskSettings
    from evergram.tasks.objective import Loss, Objective
    from evergram.tasks.pointwise import Pointwise
    from evergram.tasks.pointwise_losses import LOSSES, PointwiseLoss
    from evergram.tasks.second_order import SecondOrderSoftmax
    from evergram.tasks.softmax import Softmax, StreamedFrequency
    from evergram.tasks.softmax_all import SoftmaxAll
    from evergram.tasks.spherical import Spherical
    from evergram.tasks.task import Encoded, Spread, Task, score

__all__ = [
    "BPR",
    "LOSSES",
    "TASKS",
    "ClusteredSoftmax",
    "Encoded",
    "Loss",
    "Objective",
    "Pointwise",
    "PointwiseLoss",
    "SecondOrderSoftmax",
    "Softmax",
    "SoftmaxAll",
    "Spherical",
    "Spread",
    "StreamedFrequency",
    "Task",
    "TaskSettings",
    "score",
]

export_lazily(
    __name__,
    {
        "bpr": "BPR",
        "clustered_softmax": "ClusteredSoftmax",
        "kinds": "TASKS TaskSettings",
        "objective": "Loss Objective",
        "pointwise": "Pointwise",
        "pointwise_losses": "LOSSES PointwiseLoss",
        "second_order": "SecondOrderSoftmax",
        "softmax": "Softmax StreamedFrequency",
        "softmax_all": "SoftmaxAll",
        "spherical": "Spherical",
        "task": "Encoded Spread Task score",
    },
)
