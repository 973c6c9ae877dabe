"""The training loop: epochs of steps, with callbacks for all else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from evergram.data.sampling import Batch, Draw, EntitySampler, ExampleSampler
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.training.callbacks import Callback, Point
from evergram.training.resume import gather, scatter
from evergram.training.step import Step


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
        learned: the modules that are trained, by name.
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
        self.callbacks = list(callbacks)
        self.seed = seed
        self.encoder: Encoder = step.encoder
        self.learned: dict[str, nn.Module] = {"encoder": self.encoder}
        if step.joint is not None:
            self.learned["joint"] = step.joint
        self.device = self.encoder.device
        self.epoch = 0
        self.steps = 0
        self.seconds = 0.0
        self._state = {**self.learned, "objective": step.objective} | {
            f"{side}{r}": e for side in SIDES for r, e in enumerate(step.estimators[side])
        }

    def fit(self, *, epochs: int | None = None, steps: int | None = None) -> str:
        """Train until `epochs` or `steps` are done, or a callback stops the run.

        Returns: what ended it: "epochs", "steps", or the callback's word.
        Raises: whatever a callback raises, such as TrainingError for a loss that is not finite.
        """
        with no_denormals():
            try:
                for callback in self.callbacks:
                    callback.on_start(self)
                ended = self._ended(epochs, steps)
                while not ended:
                    objective = self._next_epoch(steps)
                    last = bool(self._ended(epochs, steps))
                    for callback in self.callbacks:
                        callback.on_epoch(self, objective, last)
                    ended = self._ended(epochs, steps)
                    for callback in self.callbacks:
                        callback.on_epoch_end(self, bool(ended))
            finally:
                for callback in self.callbacks:
                    callback.on_end(self.point)
        return ended

    def evaluated(self, record: Mapping[str, float]) -> None:
        """Show an evaluation's record to every callback."""
        for callback in self.callbacks:
            callback.on_evaluation(self.point, record)

    @property
    def point(self) -> Point:
        """The moment that the run has reached, between two epochs."""
        return Point(self.steps, self.epoch, self.seconds, self.step)

    def parameters(self) -> dict[str, Tensor]:
        """Return a copy, on the CPU, of everything that is trained."""
        return {k: v.detach().cpu().clone() for k, v in gather(self.learned, []).items()}

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that the next epoch depends on, by name; not copied."""
        return gather(self._state, self.step.optimizers)

    def load_state(self, tensors: Mapping[str, Tensor], epoch: int, seconds: float) -> None:
        """Continue from `state()` as it was after `epoch` epochs and `seconds` of training."""
        scatter(tensors, self._state, self.step.optimizers)
        self.epoch, self.seconds = epoch, seconds
        self.steps = epoch * len(self.sampler)

    def finish(self, kept: Mapping[str, Tensor] | None = None) -> Encoder:
        """Return the encoder in evaluation mode on the CPU, with the parameters `kept` if given."""
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
        self.epoch += 1
        started = time.perf_counter()
        total = torch.zeros((), device=self.device)
        done = 0
        watching = [c for c in self.callbacks if type(c).on_step is not Callback.on_step]
        with _seeded(self.seed + self.epoch, self.device):
            for batch, objective in run_epoch(
                self.step, self.sampler, self.draws, self.epoch - 1, self.device
            ):
                total += objective
                done += 1
                self.steps += 1
                elapsed = self.seconds + time.perf_counter() - started
                point = Point(self.steps, self.epoch, elapsed, self.step)
                for callback in watching:
                    callback.on_step(point, batch, objective)
                if self.steps == limit:
                    break
        mean = float(total) / done
        self.seconds += time.perf_counter() - started
        return mean


@contextmanager
def no_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero inside the block.

    Adagrad's tiny ones made a CPU step 20 times slower. The setting is restored at the end.
    """
    was = float(torch.tensor([1e-310], dtype=torch.float64) * 0.5) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was)


def run_epoch(
    step: Step,
    sampler: ExampleSampler,
    draws: Mapping[str, EntitySampler] | None,
    number: int,
    device: torch.device,
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield each batch of an epoch with its objective's value, after the step is done."""
    step.begin_epoch()
    batches = (batch.to(device) for batch in sampler.epoch(number))
    pairs = (
        (
            {s: d.to(device) for s, d in zip(SIDES, pair, strict=True)}
            for pair in zip(*(draws[s].epoch(number, len(sampler)) for s in SIDES), strict=True)
        )
        if draws is not None
        else None
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


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators inside the block, and restore them after it.

    An interrupted run resumes at an epoch's start, so that dropout continues as it would have.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
