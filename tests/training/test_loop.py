"""The loop: the order of a step, determinism, what it learns and what it keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.training.callbacks import Callback, Point
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe

CPU = torch.device("cpu")
QUIET = Progress(quiet=True)


def half_of_the_tiniest() -> float:
    return float(torch.tensor([1e-310], dtype=torch.float64) * 0.5)


class Denormals(Callback):
    def __init__(self) -> None:
        self.seen: set[float] = set()

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        self.seen.add(half_of_the_tiniest())


def test_denormals_are_flushed_in_training_and_nowhere_else(small: Recipe) -> None:
    assert half_of_the_tiniest() > 0
    look = Denormals()
    fit_encoder(
        small, split_for(small, load_corpus(small), 0), 0, RunContext(CPU, callbacks=[look])
    )
    assert look.seen == {0.0}
    assert half_of_the_tiniest() > 0
