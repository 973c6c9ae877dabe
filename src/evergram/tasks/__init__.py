"""Tasks: what a model is trained for.

A task is the loss on observed pairs. Read `task` (the interface, and a batch as a loss sees it),
then the tasks: `pointwise`, `bpr`, `softmax` (among the batch) and `second_order` (among all). Last
`objective`: a task, the penalty on all pairs ([G2] §2) and the other terms in one sum. `kinds` is
the table of tasks that recipes name; `docs/extend/task.md` adds one.

[G2]: Krichene et al., "Efficient Training on Very Large Corpora via Gramian Estimation", 2019.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.tasks.bpr import BPR
    from evergram.tasks.kinds import TASKS, TaskSettings
    from evergram.tasks.objective import Loss, Objective
    from evergram.tasks.pointwise import Pointwise
    from evergram.tasks.second_order import SecondOrderSoftmax
    from evergram.tasks.softmax import Softmax, StreamedFrequency
    from evergram.tasks.task import Encoded, Spread, Task, score

__all__ = [
    "BPR",
    "TASKS",
    "Encoded",
    "Loss",
    "Objective",
    "Pointwise",
    "SecondOrderSoftmax",
    "Softmax",
    "Spread",
    "StreamedFrequency",
    "Task",
    "TaskSettings",
    "score",
]

# Imported when first used: `kinds` is read without torch.
_HOME = {
    "BPR": "bpr",
    "Encoded": "task",
    "Loss": "objective",
    "Objective": "objective",
    "Pointwise": "pointwise",
    "SecondOrderSoftmax": "second_order",
    "Softmax": "softmax",
    "Spread": "task",
    "StreamedFrequency": "softmax",
    "TASKS": "kinds",
    "Task": "task",
    "TaskSettings": "kinds",
    "score": "task",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"evergram.tasks.{_HOME[name]}"), name)
    raise AttributeError(f"module 'evergram.tasks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
