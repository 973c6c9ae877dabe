"""MAP@10 on training and validation pairs during training. [G2] §4.3, Fig. 3; [G1] Fig. 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from evergram import Recipe
from evergram.data import Split
from evergram.evaluation import Relevance, rank_metrics
from evergram.training import Trained, Trainer
from reproduction.readings.reading import CpuClock, Reading, Watch

METRIC = "map@10"
Pairs = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class MapOverTime(Reading):
    """MAP@10 at each evaluation of the recipe (`training.evaluate_every`), and between them.

    Training and validation queries are ranked against fixed candidates: a random sample of the
    catalogue plus the candidates of the judged pairs. For validation queries, training pairs are
    masked; for training queries, nothing is masked."""

    name: ClassVar[str] = "map"
    queries: int = 2000  # maximum number of queries per part
    candidates: int = 50_000  # size of the sample
    every: int = 0  # also measure every so many steps; 0 for evaluations only

    def settings(self) -> dict[str, Any]:
        """Return the settings, without `every` if it is 0."""
        settings = super().settings()
        return settings if self.every else {k: v for k, v in settings.items() if k != "every"}

    def watch(self, recipe: Recipe, split: Split) -> Watch:
        return _MapWatch(self, split, recipe.seed)


class _MapWatch(Watch):
    def __init__(self, reading: MapOverTime, split: Split, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        corpus = split.training
        known = corpus.column("query"), corpus.column("candidate")
        held = split.selection.query, split.selection.candidate
        parts = {"training": known, "validation": held}
        judged = {name: _sample(pairs, reading.queries, draw) for name, pairs in parts.items()}
        total = len(corpus.candidates)
        fixed = torch.randperm(total, generator=draw)[: reading.candidates]
        targets = torch.cat([candidate for _, candidate in judged.values()])
        self.candidates = torch.unique(torch.cat([fixed, targets[targets >= 0]]))
        self.queries = torch.unique(torch.cat([query for query, _ in judged.values()]))
        place = torch.full((total + 1,), -1)  # the last entry is for unknown candidates
        place[self.candidates] = torch.arange(len(self.candidates))
        self.relevance: dict[str, Relevance] = {}
        for name, (query, candidate) in judged.items():
            seen = torch.zeros(len(corpus), dtype=torch.bool)
            if name == "validation":
                seen = torch.isin(known[0], query) & (place[known[1]] >= 0)
            self.relevance[name] = Relevance.of(
                torch.searchsorted(self.queries, query),
                place[candidate],
                torch.searchsorted(self.queries, known[0][seen]),
                place[known[1][seen]],
            )
        self.every = reading.every
        self.clock = CpuClock()
        self.series: dict[str, list[float]] = {
            name: [] for name in ("step", "epoch", "seconds", "cpu_seconds", *parts)
        }

    def on_step(self, run: Trainer, batch: Any, objective: Tensor) -> None:
        self.clock.tick()
        if self.every and run.steps % self.every == 0:
            self._measure(run)

    def on_evaluation(self, run: Trainer, record: Mapping[str, float]) -> None:
        if self.series["step"][-1:] != [run.steps]:
            self._measure(run)
        self.clock.resume()

    def _measure(self, run: Trainer) -> None:
        """Add a point; its time does not count as training time."""
        with run.step.look() as now:
            query = now.rows("query", self.queries.to(run.device)).cpu()
            candidate = now.rows("candidate", self.candidates.to(run.device)).cpu()
        point = {
            "step": run.steps,
            "epoch": run.epoch,
            "seconds": run.seconds,
            "cpu_seconds": self.clock.seconds,
            **{
                name: rank_metrics(query, candidate, relevance, [METRIC])[METRIC]
                for name, relevance in self.relevance.items()
            },
        }
        for name, value in point.items():
            self.series[name].append(value)
        self.clock.resume()

    def read(self, trained: Trained) -> dict[str, Any]:
        """Return the series, and the test MAP@10 of the best epoch and of popularity."""
        metrics = trained.metrics
        test = {name: metrics[name].get(METRIC) for name in ("model", "popularity")}
        return {**self.series, "test": test, "best_epoch": trained.best_epoch}


def _sample(pairs: Pairs, queries: int, draw: torch.Generator) -> Pairs:
    """Return all pairs of at most `queries` random queries."""
    distinct = torch.unique(pairs[0])
    kept = distinct[torch.randperm(len(distinct), generator=draw)[:queries]]
    chosen = torch.isin(pairs[0], kept)
    return pairs[0][chosen], pairs[1][chosen]
