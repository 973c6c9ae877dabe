"""Tasks: the losses on observed pairs that encoders are trained for.

Read in this order:

1. `task`: `Task`, the interface, and `Encoded`, a batch as a loss sees it.
2. The tasks: `pointwise` (its losses by name in `pointwise_losses`), `bpr`, `softmax` (within the
   batch), `second_order`, `spherical`, `clustered_softmax` (over all candidates, by moments), and
   `softmax_all` (over all candidates, exactly; `log_partition` has its denominator,
   `candidate_neighbours` those that are pulled beside a pair's own).
3. `objective`: a task plus λ times the penalty on all pairs (`evergram.gramian`), norms, spread.

Sources: [G1] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
2018; [G2] the same, ICLR 2019. `docs/method.md` derives the second-order softmax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.tasks.bpr import BPR as BPR
    from evergram.tasks.kinds import TASKS as TASKS
    from evergram.tasks.kinds import TaskSettings as TaskSettings
    from evergram.tasks.objective import Loss as Loss
    from evergram.tasks.objective import Objective as Objective
    from evergram.tasks.pointwise import Pointwise as Pointwise
    from evergram.tasks.pointwise_losses import LOSSES as LOSSES
    from evergram.tasks.pointwise_losses import PointwiseLoss as PointwiseLoss
    from evergram.tasks.softmax import Softmax as Softmax
    from evergram.tasks.task import Spread as Spread
    from evergram.tasks.task import Task as Task
    from evergram.tasks.task import score as score

export_lazily(__name__)
