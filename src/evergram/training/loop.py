"""The training loop: epochs of steps, with callbacks for everything else."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from evergram.data.sampling import Batch, Draw, EntitySampler, ExampleSampler
from evergram.encoders.encoder import SIDES, Encoder
from evergram.mapped_tensors import copied_beside, mapping_folder
from evergram.process_settings import while_training
from evergram.training.callbacks import Callback
from evergram.training.distributed import seed_of_process
from evergram.training.resuming import TrainingState
from evergram.training.step import Step

# Sum an epoch's objective in float64: float32 loses precision over many steps.
SUM = torch.float64
# Attributes of a run to save and restore.
COUNTERS = ("epoch", "steps", "batches", "seconds")


class Trainer:
    """Trains an encoder epoch by epoch; its callbacks select, save, report and stop.

    Args:
        step: one training step with its encoder, see `evergram.training.build.prepare`.
        draws: for each side, samplers of entities for the Gramian estimators; None if these learn
            from the batches.
        callbacks: called in this order at each hook.
        seed: of torch's global generator in every epoch, for modules with dropout.
    Raises: TrainingError: a user's modules cannot be trained by several processes.
    Attributes:
        epoch, steps, seconds: so far; seconds without evaluations.
        clock: `time.monotonic()` at the end of the last epoch.
        batches: number of batches done in the current epoch; 0 between epochs.
        total: sum of the objective over these batches.
        generators: states of torch's generators from which an interrupted epoch continues.
        learned: the trained modules, by name.
        parts: all modules with state, by name.
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
        self.seed: int = seed_of_process(step.encoder, seed, step.collectives)
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
        self.clock: float = -math.inf
        self.batches: int = 0
        self.total: Tensor = torch.zeros((), dtype=SUM, device=self.device)
        self.generators: dict[str, Tensor] = {}
        self.parts: dict[str, Any] = {**self.learned, "objective": step.objective} | {
            f"{side}{r}": e for side in SIDES for r, e in enumerate(step.estimators[side])
        }

    def fit(self, *, epochs: int | None = None, steps: int | None = None) -> str:
        """Train until `epochs` or `steps` are done, or a callback stops the run.

        Returns: why it ended: "epochs", "steps", or a callback's word.
        Raises: any error of a callback, such as TrainingError for a loss that is not finite.
        """
        if not self.step.collectives.is_first:
            self.callbacks = [callback for callback in self.callbacks if callback.everywhere]
        with while_training(self.encoder.parameters()):
            try:
                self._tell("on_start", self)
                # A run interrupted after an epoch's last batch still has to report that epoch.
                ended = "" if self.batches else self._ended(epochs, steps)
                while not ended:
                    objective = self._next_epoch(steps)
                    self._tell("on_epoch", self, objective, bool(self._ended(epochs, steps)))
                    ended = self._ended(epochs, steps)
                    self._tell("on_epoch_end", self, bool(ended))
            finally:
                self._tell("on_end", self)
        return ended

    def _tell(self, hook: str, *arguments: Any) -> None:
        """Call a hook on every callback that overrides it."""
        for callback in self.callbacks:
            if getattr(type(callback), hook) is not getattr(Callback, hook):
                getattr(callback, hook)(*arguments)

    def evaluated(self, record: Mapping[str, float]) -> None:
        """Pass an evaluation's record to every callback."""
        self._tell("on_evaluation", self, record)

    def parameters(self, earlier: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return copies, on the CPU, of all trained tensors. Copies of mapped tables are files; the
        files of `earlier`, if given, are reused."""
        old = earlier or {}
        return {
            name: copied_beside(value.detach().cpu(), value, old.get(name))
            for name, value in gather(self.learned, []).items()
        }

    def copied(self, name: str, values: Tensor) -> Tensor:
        """Return a copy of `values`, in memory or a file, like the trained tensor of this name."""
        trained = gather(self.learned, []).get(name)
        return values.clone() if trained is None else copied_beside(values, trained)

    def state(self) -> TrainingState:
        """Return everything that the next step depends on and the callbacks' states, not copied."""
        tensors = gather(self.parts, self.step.optimizers)
        if self.batches:
            tensors["epoch|objective"] = self.total
            tensors["generator|cpu"] = torch.get_rng_state()
            if self.device.type == "cuda":
                tensors["generator|cuda"] = torch.cuda.get_rng_state(self.device)
        facts: dict[str, Any] = {name: getattr(self, name) for name in COUNTERS}
        facts["callbacks"] = {}
        for name, callback in _by_name(self.callbacks).items():
            state = callback.state_dict()
            facts["callbacks"][name] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
            tensors |= {f"{name}|{k}": v for k, v in state.items() if isinstance(v, Tensor)}
        return TrainingState(tensors, facts)

    def load_state(self, state: TrainingState) -> None:
        """Restore `state()`, within an epoch or between two; tensors are copied."""
        tensors, facts = state.tensors, state.facts
        scatter(tensors, self.parts, self.step.optimizers)
        for name in COUNTERS:
            setattr(self, name, facts[name])
        # With a user's modules each process has its own seed.
        if self.step.collectives.is_first or self.encoder.kind != "module":
            self.generators = {name: t.clone() for name, t in named(tensors, "generator").items()}
        if self.batches:
            self.total = tensors["epoch|objective"].to(self.device, copy=True)
        for name, callback in _by_name(self.callbacks).items():
            if name in facts["callbacks"]:
                callback.load_state_dict(facts["callbacks"][name] | named(tensors, name))

    def finish(self, kept: Mapping[str, Tensor] | None = None) -> Encoder:
        """Return the encoder in evaluation mode on the CPU, with the parameters `kept` if any."""
        if kept:
            scatter(kept, self.learned, [])
        for module in self.learned.values():
            module.cpu().eval()
        return self.encoder

    @property
    def state_bytes(self) -> int:
        """Bytes of the Gramian estimators' state."""
        return sum(e.state_bytes for side in SIDES for e in self.step.estimators[side])

    def _ended(self, epochs: int | None, steps: int | None) -> str:
        """Return why the run ends here, decided by the first process; "" if it continues."""
        if epochs is not None and self.epoch >= epochs:
            return "epochs"
        if steps is not None and self.steps >= steps:
            return "steps"
        ended: str = self.step.collectives.from_first(
            lambda: next((why for c in self.callbacks if (why := c.stop(self))), "")
        )
        return ended

    def _next_epoch(self, limit: int | None) -> float:
        """Train for one epoch, or until the run has `limit` steps. Return the mean objective."""
        if not self.batches:
            self.epoch += 1
            self.total = torch.zeros((), dtype=SUM, device=self.device)
        left = None if limit is None else limit - self.steps
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
                self._tell("on_step", self, batch, objective)
                paused = time.perf_counter()
                self._tell("on_step_end", self)
                started += time.perf_counter() - paused
        mean = float(self.total) / self.batches
        self.batches = 0
        self.seconds += time.perf_counter() - started
        self.clock = time.monotonic()
        return mean


def run_epoch(
    step: Step,
    sampler: ExampleSampler,
    draws: Mapping[str, EntitySampler] | None,
    number: int,
    device: torch.device,
    start: int = 0,
) -> Iterator[tuple[Batch, Tensor]]:
    """Train on the batches of an epoch; yield each batch with its objective after the step.

    `number` counts from 0; the first batch, `start`, is above 0 in an interrupted epoch.
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
    for batch in batches:
        yield batch, step(batch, None if pairs is None else next(pairs))


def _by_name(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Return callbacks by class name and number, such as "Limits0"."""
    by_name: dict[str, Callback] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        number = sum(type(other).__name__ == kind for other in by_name.values())
        by_name[f"{kind}{number}"] = callback
    return by_name


def gather(
    modules: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Return all tensors of modules and optimizers, by name, not copied."""
    tensors = {
        f"{name}|{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }
    for i, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                tensors[f"optimizer{i}|{parameter}|{key}"] = value
    return tensors


def scatter(
    tensors: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
) -> None:
    """Copy tensors from `gather` back into modules and optimizers."""
    for name, module in modules.items():
        module.load_state_dict(named(tensors, name))
    for i, optimizer in enumerate(optimizers):
        present = optimizer.state_dict()["state"]
        state: dict[int, Any] = {}
        for name, value in named(tensors, f"optimizer{i}").items():
            parameter, key = name.split("|")
            # `load_state_dict` does not copy: the optimizer would modify the given tensor in place.
            old = present.get(int(parameter), {}).get(key)
            mapped = isinstance(old, Tensor) and mapping_folder(old) and old.shape == value.shape
            state.setdefault(int(parameter), {})[key] = (
                old.copy_(value) if mapped else value.clone()
            )
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def named(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors whose key starts with `name` and "|", without that prefix."""
    prefix = f"{name}|"
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


@contextmanager
def seeded(seed: int, device: torch.device, states: Mapping[str, Tensor]) -> Iterator[None]:
    """Seed torch's global generators inside the block and restore them afterwards, so that dropout
    only depends on the run's seed and epoch. An interrupted epoch continues from `states`."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        if "cpu" in states:
            torch.set_rng_state(states["cpu"])
        if "cuda" in states and devices:
            torch.cuda.set_rng_state(states["cuda"], device)
        yield
