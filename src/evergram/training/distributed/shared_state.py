"""State of which each process has a part, put together so that a step can be saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from evergram.training.callbacks import Callback

if TYPE_CHECKING:
    from evergram.training.loop import Trainer


@contextmanager
def whole_look_ahead(run: Trainer, saving: Sequence[Callback]) -> Iterator[Sequence[Callback]]:
    """Yield the callbacks that may save this step; the run's state is whole inside the block.

    Of several processes each has a share of the embeddings that `storm` has looked ahead at, and
    the first one alone has callbacks, which know when a checkpoint is due. So all exchange four
    bytes a step, and their shares only where a callback wants the state.

    Args:
        saving: callbacks with an `on_step_end`.
    """
    step, together = run.step, run.step.collectives
    if together.size == 1 or not step.wants_before:
        yield saving
        return
    wanting = [callback for callback in saving if callback.wants_state(run)]
    asked = together.sum(torch.tensor(len(wanting), dtype=torch.int32), "counts")
    if not int(asked):
        yield []
        return
    run.look_ahead = {
        side: together.rows(rows, step.look_ahead_rows[side], "look ahead")
        for side, rows in step.look_ahead.items()
    }
    try:
        yield wanting
    finally:
        run.look_ahead = None
