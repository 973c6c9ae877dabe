"""The training loop on a corpus that is drawn at random, one step a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import torch

from evergram.data.corpus import Corpus
from evergram.training.build import prepare
from evergram.training.loop import run_epoch
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings


@dataclass(frozen=True)
class Model:
    kind: str
    dim: int
    batch: int


@dataclass(frozen=True)
class Shape:
    """Of the corpus, which is drawn at random: what it holds does not change a step's time."""

    queries: int = 200_000
    candidates: int = 100_000
    pairs: int = 2_000_000


@cache
def corpus_of(shape: Shape) -> Corpus:
    """Return a corpus of pairs drawn uniformly, its queries and candidates each at least once."""
    draw = torch.Generator().manual_seed(0)
    columns = {}
    for side, size in (("query", shape.queries), ("candidate", shape.candidates)):
        ids = torch.randint(size, (shape.pairs,), generator=draw)
        ids[:size] = torch.arange(size)
        columns[side] = ids.numpy()
    return Corpus.from_tables(pa.table(columns))


class LoopStep:
    """One step of the loop a call, through as many epochs as are needed."""

    def __init__(self, model: Model, corpus: Corpus, settings: list[str]) -> None:
        recipe = Recipe.of(
            {
                "data": {"kind": "synthetic"},
                "model": {"kind": model.kind, "dim": model.dim},
                "task": {"l2": 0.0},
                "training": {"batch_size": model.batch},
            },
            settings,
        )
        self.settings = FitSettings.of(recipe, corpus, 0)
        self.device = torch.device("cpu")
        self.step, self.sampler, self.draws = prepare(self.settings, corpus, self.device)
        self.running = self._steps()

    def __call__(self) -> None:
        next(self.running)

    def _steps(self) -> Iterator[Any]:
        epoch = 0
        while True:
            yield from run_epoch(self.step, self.sampler, self.draws, epoch, self.device)
            epoch += 1
