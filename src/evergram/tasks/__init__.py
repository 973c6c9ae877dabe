"""Tasks: the losses on observed pairs that encoders are trained for.

Read in this order:

1. `task`: `Task`, the interface, and `Encoded`, a batch as a loss sees it; `Objective`, a task plus
   λ times the penalty on all pairs (`evergram.gramian`), norms, spread; then the tasks of a batch's
   pairs: pointwise (its losses by name are in `kinds`), BPR, the softmax within the batch, second
   order, spherical.
2. `softmax_all`, over all candidates, and the neighbours that are pulled beside a pair's own.
3. `kinds`: the losses by name, and the settings of each task. It does not import torch.

Sources: [G1] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
2018; [G2] the same, ICLR 2019. `docs/method.md` derives the second-order softmax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.tasks.kinds import LOSSES as LOSSES
    from evergram.tasks.kinds import TASKS as TASKS
    from evergram.tasks.kinds import PointwiseLoss as PointwiseLoss
    from evergram.tasks.kinds import TaskSettings as TaskSettings
    from evergram.tasks.task import BPR as BPR
    from evergram.tasks.task import Loss as Loss
    from evergram.tasks.task import Objective as Objective
    from evergram.tasks.task import Pointwise as Pointwise
    from evergram.tasks.task import Softmax as Softmax
    from evergram.tasks.task import Spread as Spread
    from evergram.tasks.task import Task as Task
    from evergram.tasks.task import score as score

export_lazily(__name__)
