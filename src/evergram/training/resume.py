"""Resume an interrupted run at the step where it was saved, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.training.callbacks import Callback
from evergram.training.checkpoints.checkpoint_folder import CheckpointFolder
from evergram.training.progress import Progress

if TYPE_CHECKING:
    from evergram.training.loop import Trainer


class Resumption(Callback):
    """Restores a run from its newest checkpoint at the start, and saves it after steps and epochs.

    It comes first among a run's callbacks, so that the others start from their restored state.

    Args:
        progress: says where a run resumes.
    """

    def __init__(self, checkpoints: CheckpointFolder, progress: Progress) -> None:
        self.checkpoints = checkpoints
        self.progress = progress

    def on_start(self, run: Trainer) -> None:
        state = self.checkpoints.load()
        if state is None:
            return
        run.load_state(state)
        inside = f", after {run.batches:,} of its {len(run.sampler):,} batches"
        self.progress.say(
            f"{self.checkpoints.title}: resumes in epoch {run.epoch}{inside}"
            if run.batches
            else f"{self.checkpoints.title}: resumes after epoch {run.epoch}"
        )

    def wants_state(self, run: Trainer) -> bool:
        return self.checkpoints.due(run.steps)

    def on_step_end(self, run: Trainer) -> None:
        if self.checkpoints.due(run.steps):
            self.checkpoints.save(run.state(), run.steps)

    def on_epoch_end(self, run: Trainer, last: bool) -> None:
        # The last state is always saved: a later command may come back to it.
        if last or self.checkpoints.due(run.steps):
            self.checkpoints.save(run.state(), run.steps)
