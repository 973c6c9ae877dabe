"""Tasks: losses on observed pairs.

Read in this order:

1. `task`: the interface `Task`, and `Encoded`, a batch's embeddings; `Objective`, which adds the
   penalty on all pairs (`evergram.gramian`) and squared norms to a task; then the tasks: pointwise,
   BPR, and the softmax within a batch.
2. `softmax_all`: the softmax over all candidates, and pulling a candidate's neighbours.
3. `kinds`: the pointwise losses by name, and the settings of each task. It does not import torch.

Sources: [G1] Krichene et al., *Efficient training on very large corpora via Gramian estimation*,
2018; [G2] the same, ICLR 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.tasks.kinds import LOSSES as LOSSES
    from evergram.tasks.kinds import TASKS as TASKS
    from evergram.tasks.kinds import TaskSettings as TaskSettings
    from evergram.tasks.task import BPR as BPR
    from evergram.tasks.task import Loss as Loss
    from evergram.tasks.task import Objective as Objective
    from evergram.tasks.task import Pointwise as Pointwise
    from evergram.tasks.task import Softmax as Softmax
    from evergram.tasks.task import Task as Task
    from evergram.tasks.task import WeightedRows as WeightedRows
    from evergram.tasks.task import score as score

export_lazily(__name__)
