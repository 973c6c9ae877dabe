"""The training loop: epochs of steps, with callbacks for all else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from evergram.data.sampling import Batch, Draw, EntitySampler, ExampleSampler
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.encoders.mapped_tensors import copied_beside
from evergram.process_settings import while_training
from evergram.training.callbacks import Callback, Point
from evergram.training.checkpoints.run_state import gather, restore, scatter, seeded, state_of
from evergram.training.checkpoints.state_file import TrainingState
from evergram.training.distributed.agreement import decided, follow_first
from evergram.training.distributed.shared_state import whole_look_ahead
from evergram.training.sharding.sharded_factorization import ShardedFactorization
from evergram.training.step import Step

# An epoch's objective is summed in float64: in float32 a sum of many steps goes astray.
SUM = torch.float64


class Trainer:
    """Trains an encoder epoch by epoch; its callbacks select, save, report and stop.

    Args:
        step: the encoder with all that a step works on, see `evergram.training.build.prepare`.
        sampler: gives the batches of each epoch.
        draws: for each side, the entities that the estimators learn from; None where they learn
            from the batches.
        callbacks: run in this order at each hook.
        seed: of torch's global generator in every epoch, for modules with dropout.
    Attributes:
        epoch, steps, seconds: how far the run is; evaluations are not counted.
        batches: of the epoch that is running and not yet reported; 0 between two epochs.
        total: the objective's sum over them.
        generators: states of torch's generators in which an interrupted epoch goes on.
        learned: the modules that are trained, by name.
        parts: all modules with state, by name.
        look_ahead: of all processes, while callbacks may save a step of several; else None, as the
            step's own is whole.
        shared: by name, measurements of which every process computes a share when a callback of the
            first process, which alone has callbacks, takes them.
    """

    def __init__(
        self,
        step: Step,
        sampler: ExampleSampler,
        draws: Mapping[str, EntitySampler] | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        seed: int = 0,
    ) -> None:
        self.step = step
        self.sampler = sampler
        self.draws = draws
        self.callbacks: list[Callback] = list(callbacks)
        self.seed = seed
        self.encoder: Encoder = step.encoder
        self.learned: dict[str, nn.Module] = {"encoder": self.encoder}
        if step.joint is not None:
            self.learned["joint"] = step.joint
        if list(step.objective.task.parameters()):
            self.learned["task"] = step.objective.task
        self.device: torch.device = self.encoder.device
        self.epoch: int = 0
        self.steps: int = 0
        self.seconds: float = 0.0
        self.batches: int = 0
        self.total: Tensor = torch.zeros((), dtype=SUM, device=self.device)
        self.generators: dict[str, Tensor] = {}
        self.look_ahead: Mapping[str, Tensor] | None = None
        self.shared: dict[str, Callable[[Trainer], object]] = {}
        self.parts: dict[str, Any] = {**self.learned, "objective": step.objective} | {
            f"{side}{r}": e for side in SIDES for r, e in enumerate(step.estimators[side])
        }

    def fit(self, *, epochs: int | None = None, steps: int | None = None) -> str:
        """Train until `epochs` or `steps` are done, or a callback stops the run.

        Returns: what ended it: "epochs", "steps", or the callback's word.
        Raises: whatever a callback raises, such as TrainingError for a loss that is not finite.
        """
        collectives = self.step.collectives
        if not collectives.is_first:
            self.callbacks = []
        with while_training(self.encoder.parameters()):
            try:
                collectives.from_first(self._start_callbacks)
                follow_first(self)
                # An epoch that was interrupted after its last batch is still to be reported.
                begun = self.batches > 0
                ended = decided(lambda: "" if begun else self._ended(epochs, steps), collectives)
                while not ended:
                    objective = self._next_epoch(steps)
                    after = partial(self._after_epoch, objective, epochs, steps)
                    shared = {n: partial(take, self) for n, take in self.shared.items()}
                    ended = decided(after, collectives, shared)
            finally:
                for callback in self.callbacks:
                    callback.on_end(self.point)
        return ended

    def _start_callbacks(self) -> None:
        for callback in self.callbacks:
            callback.on_start(self)

    def _after_epoch(self, objective: float, epochs: int | None, steps: int | None) -> str:
        """Show an epoch to every callback. Returns: what ended the run, or an empty word."""
        last = bool(self._ended(epochs, steps))
        for callback in self.callbacks:
            callback.on_epoch(self, objective, last)
        ended = self._ended(epochs, steps)
        for callback in self.callbacks:
            callback.on_epoch_end(self, bool(ended))
        return ended

    def evaluated(self, record: Mapping[str, float]) -> None:
        """Show an evaluation's record to every callback."""
        for callback in self.callbacks:
            callback.on_evaluation(self.point, record)

    @property
    def point(self) -> Point:
        """The moment that the run has reached, between two epochs."""
        return Point(self.steps, self.epoch, self.seconds, self.step)

    def parameters(self, earlier: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return a copy, on the CPU, of everything that is trained; of mapped tables, in files.

        Args:
            earlier: a copy that is no longer needed, whose files may be written over.
        """
        old = earlier or {}
        copies = {
            name: copied_beside(value.detach().cpu(), value, old.get(name))
            for name, value in gather(self.learned, []).items()
        }
        if isinstance(self.encoder, ShardedFactorization):
            copies |= self.encoder.keep()
        return copies

    def copied(self, name: str, values: Tensor) -> Tensor:
        """Return a copy of `values` that is where the trained tensor of this name is, in memory or
        in a file."""
        trained = gather(self.learned, []).get(name)
        return values.clone() if trained is None else copied_beside(values, trained)

    def state(self) -> TrainingState:
        """Return all that the next step depends on, and the callbacks' states; tensors are not
        copied."""
        return state_of(self)

    def load_state(self, state: TrainingState) -> None:
        """Continue from `state()`, in an epoch or between two."""
        restore(self, state)

    def finish(self, kept: Mapping[str, Tensor] | None = None) -> Encoder:
        """Return the encoder in evaluation mode on the CPU, with the parameters `kept` if given."""
        if isinstance(self.encoder, ShardedFactorization):
            return self.encoder.gathered(best=bool(kept)).eval()
        if kept:
            scatter(kept, self.learned, [])
        for module in self.learned.values():
            module.cpu().eval()
        return self.encoder

    @property
    def state_bytes(self) -> int:
        """The bytes that the Gramian estimators keep."""
        return sum(e.state_bytes for side in SIDES for e in self.step.estimators[side])

    def _ended(self, epochs: int | None, steps: int | None) -> str:
        if epochs is not None and self.epoch >= epochs:
            return "epochs"
        if steps is not None and self.steps >= steps:
            return "steps"
        return next((why for c in self.callbacks if (why := c.stop(self))), "")

    def _next_epoch(self, limit: int | None) -> float:
        """Train for one epoch, until `limit` steps of the run are done. Returns: the objective's
        mean."""
        if not self.batches:
            self.epoch += 1
            self.total = torch.zeros((), dtype=SUM, device=self.device)
        left = None if limit is None else limit - self.steps
        watching = [c for c in self.callbacks if type(c).on_step is not Callback.on_step]
        saving = [c for c in self.callbacks if type(c).on_step_end is not Callback.on_step_end]
        divided = isinstance(self.encoder, ShardedFactorization)
        with seeded(self.seed + self.epoch, self.device, self.generators):
            self.generators = {}
            batches = run_epoch(
                self.step, self.sampler, self.draws, self.epoch - 1, self.device, self.batches
            )
            started = time.perf_counter()
            for batch, objective in islice(batches, left):
                self.total += objective
                self.batches += 1
                self.steps += 1
                now = time.perf_counter()
                self.seconds, started = self.seconds + now - started, now
                for callback in watching:
                    callback.on_step(self.point, batch, objective)
                paused = time.perf_counter()
                with whole_look_ahead(self, saving) as wanting:
                    self._save_inside(wanting, divided=divided)
                started += time.perf_counter() - paused
        mean = float(self.total) / self.batches
        self.batches = 0
        self.seconds += time.perf_counter() - started
        return mean

    def _save_inside(self, saving: Sequence[Callback], *, divided: bool) -> None:
        """Let callbacks save the run after a step; of divided tables together with the other
        processes."""

        def save() -> None:
            for callback in saving:
                callback.on_step_end(self)

        if divided:
            self.step.collectives.from_first(save)
        else:
            save()


def run_epoch(
    step: Step,
    sampler: ExampleSampler,
    draws: Mapping[str, EntitySampler] | None,
    number: int,
    device: torch.device,
    start: int = 0,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield each batch of an epoch with its objective's value, after the step is done.

    Args:
        number: of the epoch, from 0.
        start: the first batch to train on; of an epoch that was interrupted.
    """
    step.begin_epoch(start, number)
    batches = (batch.to(device) for batch in sampler.epoch(number, start))
    pairs: Iterator[dict[str, Draw]] | None = None
    if draws is not None:
        sides = [draws[side].epoch(number, len(sampler), start) for side in SIDES]
        pairs = (
            {s: d.to(device) for s, d in zip(SIDES, pair, strict=True)}
            for pair in zip(*sides, strict=True)
        )
    if not step.wants_before:
        for batch in batches:
            yield batch, step(batch, None if pairs is None else next(pairs))
        return
    for (batch, drawn), following in _with_next(batches, pairs):
        ids: dict[str, Tensor] | None = None
        if following is not None:
            ahead, ahead_drawn = following
            ids = {"query": ahead.query, "candidate": ahead.candidate}
            if ahead_drawn is not None:
                ids = {s: ahead_drawn[s].ids for s in SIDES}
        yield batch, step(batch, drawn, ids)


Ahead = tuple[Batch, "dict[str, Draw] | None"]


def _with_next(
    batches: Iterator[Batch], pairs: Iterator[dict[str, Draw]] | None
) -> Iterator[tuple[Ahead, Ahead | None]]:
    """Yield each batch and its draws together with the next ones; None after the last."""
    current: Ahead | None = None
    for batch in batches:
        following = (batch, None if pairs is None else next(pairs))
        if current is not None:
            yield current, following
        current = following
    if current is not None:
        yield current, None
