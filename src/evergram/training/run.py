"""One training as it goes: its epochs, and the file that an interrupted one goes on from."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch, Draw, EntitySampler, ExampleSampler
from evergram.encoders.encoder import Encoder
from evergram.encoders.features import SIDES
from evergram.errors import TrainingError
from evergram.training.build import prepare
from evergram.training.callbacks import Callback, Point
from evergram.training.progress import Handle
from evergram.training.recipe import Recipe
from evergram.training.resume import Resume, gather, named, run_key, scatter
from evergram.training.step import Joint, Step


@dataclass(frozen=True)
class Beside:
    """What a training takes along.

    Args:
        joint: what is trained together with the encoder, in place.
        past: the embeddings of the version before, [N, D′] of each side, for `prior.kind`
            "version".
        start: an encoder of the same architecture to go on from.
    """

    joint: Joint | None = None
    past: Mapping[str, Tensor] | None = None
    start: Encoder | None = None


class TrainingRun:
    """An encoder's training on a corpus, epoch by epoch.

    Args:
        beside: what it takes along; it has the rows of this corpus.
        title: one run's name, in the folder and where progress is shown.
        folder: where an interrupted run of the same is gone on with; None keeps nothing.
        purpose: what this training is, where the recipe, the version and the data do not say it.
    Attributes:
        epoch, steps, seconds: how far it is; evaluations are not counted.
        learned: the modules that are trained, by name.
    """

    def __init__(
        self,
        recipe: Recipe,
        corpus: Corpus,
        version: int,
        device: torch.device,
        beside: Beside,
        title: str,
        folder: Path | None = None,
        purpose: str = "",
    ) -> None:
        joint = beside.joint
        if joint is not None:
            joint.to(device)
        self.recipe = recipe
        self.device = device
        self.title = title
        self.step, self.sampler, self.draws = prepare(
            recipe, corpus, version, device, joint=joint, past=beside.past, folder=folder
        )
        self.encoder = self.step.encoder
        if beside.start is not None:
            self.encoder.start_from(beside.start)
        self.learned: dict[str, nn.Module] = {"encoder": self.encoder}
        if joint is not None:
            self.learned["joint"] = joint
        self._state = {**self.learned, "objective": self.step.objective} | {
            f"{side}{r}": e for side in SIDES for r, e in enumerate(self.step.estimators[side])
        }
        key = run_key(recipe, version, corpus, joint, beside.start) if folder else ""
        self._resume = Resume(folder, title, key + purpose)
        self.epoch = 0
        self.seconds = 0.0
        self.steps = 0

    def restore(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Go on from the last save. Returns: the tensors that were kept beside the state, and the
        facts; None where nothing was saved."""
        saved = self._resume.load()
        if saved is None:
            return None
        tensors, facts = saved
        scatter(tensors, self._state, self.step.optimizers)
        self.epoch, self.seconds = facts["epoch"], facts["seconds"]
        self.steps = self.epoch * len(self.sampler)
        return named(tensors, "kept"), facts

    def save(
        self, facts: Mapping[str, Any], kept: Mapping[str, Tensor], *, now: bool = False
    ) -> None:
        """Replace what an interrupted run goes on from, when it is due or `now`."""
        if not now and not self._resume.due():
            return
        state = gather(self._state, self.step.optimizers)
        state |= {f"kept|{k}": v for k, v in kept.items()}
        self._resume.save(state, {"epoch": self.epoch, "seconds": self.seconds, **facts})

    def next_epoch(
        self, bar: Handle, lookers: Sequence[Callback] = (), limit: int | None = None
    ) -> float:
        """Train for one epoch, of at most `limit` steps. Returns: the objective's mean.

        Raises: TrainingError: the loss is no longer finite.
        """
        self.epoch += 1
        started = time.perf_counter()
        total = torch.zeros((), device=self.device)
        done = 0
        for batch, objective in run_epoch(
            self.step, self.sampler, self.draws, self.epoch - 1, self.device
        ):
            total += objective
            done += 1
            self.steps += 1
            bar.advance(1, self.sampler.batch_size)
            if lookers:
                elapsed = self.seconds + time.perf_counter() - started
                point = Point(self.steps, self.epoch, elapsed, self.step)
                for looker in lookers:
                    looker.on_step(point, batch, objective)
            if done == limit:
                break
        mean = float(total) / done
        self.seconds += time.perf_counter() - started
        if not math.isfinite(mean):
            raise TrainingError(
                f"The loss is {mean} in epoch {self.epoch}; lower training.table_rate "
                f"({self.recipe.training.table_rate}) or task.penalty "
                f"({list(self.step.objective.penalty)})."
            )
        return mean

    @property
    def point(self) -> Point:
        return Point(self.steps, self.epoch, self.seconds, self.step)

    def parameters(self) -> dict[str, Tensor]:
        """A copy of all that is trained, on the CPU."""
        return {k: v.detach().cpu().clone() for k, v in gather(self.learned, []).items()}

    def finish(self, kept: Mapping[str, Tensor] | None = None) -> Encoder:
        """The encoder with the parameters `kept`, or as it is, on the CPU in evaluation mode."""
        if kept:
            scatter(kept, self.learned, [])
        for module in self.learned.values():
            module.cpu().eval()
        return self.encoder

    @property
    def state_bytes(self) -> int:
        """Of the Gramian estimators."""
        return sum(e.state_bytes for found in self.step.estimators.values() for e in found)


@contextmanager
def no_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero: Adagrad's tiny ones made a CPU step 20 times slower. The
    process is left as it was."""
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
    """The steps of one epoch: each batch, and its objective's value."""
    step.encoder.train()
    step.before = {}
    looks_ahead = step.wants_before
    batches = (batch.to(device) for batch in sampler.epoch(number))
    pairs = (
        (
            {s: d.to(device) for s, d in zip(SIDES, pair, strict=True)}
            for pair in zip(*(draws[s].epoch(number, len(sampler)) for s in SIDES), strict=True)
        )
        if draws is not None
        else None
    )
    if not looks_ahead:
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
    """Each batch with its draws, and the next one, None after the last."""
    current: Ahead | None = None
    for batch in batches:
        following = (batch, None if pairs is None else next(pairs))
        if current is not None:
            yield current, following
        current = following
    if current is not None:
        yield current, None
