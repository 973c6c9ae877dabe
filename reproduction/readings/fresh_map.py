"""Expected MAP@10 on future interactions, under the true probabilities of a synthetic corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from evergram import Recipe
from evergram.data import Split
from evergram.training import Trained, Trainer
from reproduction.planted import Planted
from reproduction.readings.reading import CpuClock, Reading, Watch

K = 10
# Queries whose scores are in memory at once.
BLOCK = 16


@dataclass(frozen=True)
class FreshMap(Reading):
    """Σ_r p(candidate at rank r) / r over the top ten: the expected MAP@10 for one new interaction
    per query. It draws no held-out pairs, which would add noise."""

    name: ClassVar[str] = "map"
    # Sizes of the synthetic corpus; its seed is the recipe's.
    queries: int
    candidates: int
    every: int = 2500  # steps between two measurements
    judged: int = 500  # number of queries, drawn at random

    def watch(self, recipe: Recipe, split: Split) -> Watch:
        return _FreshMapWatch(self, split, recipe.seed)


class _FreshMapWatch(Watch):
    def __init__(self, reading: FreshMap, split: Split, seed: int) -> None:
        self.world = Planted(reading.queries, reading.candidates, seed)
        self.every = reading.every
        corpus = split.training
        keys = {
            side: torch.tensor(entities.vocabulary.keys.to_pylist())
            for side, entities in (("query", corpus.queries), ("candidate", corpus.candidates))
        }
        self.ids = keys["candidate"]
        draw = torch.Generator().manual_seed(seed)
        self.rows = torch.randperm(len(keys["query"]), generator=draw)[: reading.judged]
        self.segments = keys["query"][self.rows] % self.world.segments
        popular = corpus.counts("candidate").topk(min(K, len(self.ids))).indices
        everyone = self.ids[popular].expand(len(self.rows), -1)
        self.fixed = {
            "popularity": self._expected(everyone),
            "best": self._expected(self.world.best(self.segments, K)),
        }
        self.clock = CpuClock()
        self.series: dict[str, list[float]] = {
            name: [] for name in ("step", "seconds", "cpu_seconds", "fresh")
        }

    def on_step(self, run: Trainer, batch: Any, objective: Tensor) -> None:
        self.clock.tick()
        if run.steps % self.every:
            return
        with run.step.look() as now:
            query = now.rows("query", self.rows.to(run.device)).cpu()
            candidate = now.rows("candidate", torch.arange(len(self.ids), device=run.device)).cpu()
        lists = [(block @ candidate.T).topk(K).indices for block in torch.split(query, BLOCK)]
        point = {
            "step": run.steps,
            "seconds": run.seconds,
            "cpu_seconds": self.clock.seconds,
            "fresh": self._expected(self.ids[torch.cat(lists)]),
        }
        for name, value in point.items():
            self.series[name].append(value)
        self.clock.resume()

    def read(self, trained: Trained) -> dict[str, Any]:
        """Return the series, and the values of popularity and of the ideal lists."""
        return {**self.series, **self.fixed}

    def _expected(self, lists: Tensor) -> float:
        places = torch.arange(1, lists.shape[1] + 1)
        return float((self.world.chances(self.segments, lists) / places).sum(1).mean())
