"""MAP@10 by the clock, measured in a thread while training continues."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from evergram.data.sampling import Batch
from evergram.data.split import RowPairs, Split
from evergram.evaluation.ranking import Relevance, rank_metrics
from evergram.training.callbacks import Callback, Point
from evergram.training.recipe.training import TrainingSettings

METRIC = "map@10"
# Queries judged of each part.
QUERIES = 2000
# Candidates that they are judged against, beside their own.
CANDIDATES = 50_000


class MapWatch(Callback):
    """MAP@10 on training and validation pairs every so many minutes of training.

    Candidates are a random sample of the catalogue and those of the judged pairs. For validation
    the query's training pairs are masked. Embeddings are copied between two steps, as training
    time, and measured in a thread while training continues; a measurement due meanwhile is skipped.


    Args:
        minutes: between two measurements.
        size: of the sample of candidates.
    Source: [G2] §4.3, Fig. 3.
    """

    @classmethod
    def of(cls, settings: TrainingSettings, split: Split, seed: int) -> MapWatch | None:
        """Return the measurements that a recipe asks for, if any."""
        if settings.watch_minutes is None:
            return None
        return cls(split, minutes=settings.watch_minutes, size=CANDIDATES, seed=seed)

    def __init__(self, split: Split, *, minutes: float, size: int, seed: int) -> None:
        self.every: float = 60 * minutes
        self.due: float = self.every
        self.records: list[dict[str, float]] = []
        self._thread: threading.Thread | None = None
        draw = torch.Generator().manual_seed(seed)
        corpus = split.training
        trained = RowPairs(corpus.column("query"), corpus.column("candidate"))
        parts = {"training": trained, "validation": split.selection}
        judged = {name: _sample(pairs, QUERIES, draw) for name, pairs in parts.items()}
        total = len(corpus.candidates)
        fixed = torch.randperm(total, generator=draw)[:size]
        targets = torch.cat([pairs.candidate for pairs in judged.values()])
        self.candidates = torch.unique(torch.cat([fixed, targets[targets >= 0]]))
        self.queries = torch.unique(torch.cat([pairs.query for pairs in judged.values()]))
        place = torch.full((total + 1,), -1)  # the last stands for a candidate that is unknown
        place[self.candidates] = torch.arange(len(self.candidates))
        self.relevance: dict[str, Relevance] = {}
        for name, pairs in judged.items():
            seen = torch.zeros(len(trained), dtype=torch.bool)
            if name == "validation":
                seen = torch.isin(trained.query, pairs.query) & (place[trained.candidate] >= 0)
            self.relevance[name] = Relevance.of(
                torch.searchsorted(self.queries, pairs.query),
                place[pairs.candidate],
                torch.searchsorted(self.queries, trained.query[seen]),
                place[trained.candidate[seen]],
            )

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        busy = self._thread is not None and self._thread.is_alive()
        if at.seconds >= self.due and not busy:
            self.due = (at.seconds // self.every + 1) * self.every
            self._measure(at)

    def on_end(self, at: Point) -> None:
        if self._thread is not None:
            self._thread.join()

    def state_dict(self) -> dict[str, Any]:
        # A measurement that is running belongs to the steps that a checkpoint holds.
        if self._thread is not None:
            self._thread.join()
        return {"records": [dict(record) for record in self.records], "due": self.due}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.records = [dict(record) for record in state["records"]]
        self.due = state["due"]

    def _measure(self, at: Point) -> None:
        run = at.training
        rows = {"query": self.queries, "candidate": self.candidates}
        with run.encoder.evaluating():
            embeddings = run.encoder.published(run.scene)
            copies = {s: embeddings.rows(s, ids.to(at.device)) for s, ids in rows.items()}
        self._thread = threading.Thread(target=self._judge, args=(at.epoch, at.seconds, copies))
        self._thread.start()

    def _judge(self, epoch: int, seconds: float, copies: Mapping[str, Tensor]) -> None:
        values = {
            f"{METRIC} {name}": rank_metrics(
                copies["query"], copies["candidate"], relevance, [METRIC]
            )[METRIC]
            for name, relevance in self.relevance.items()
        }
        self.records.append({"epoch": epoch, "seconds": seconds, **values})


def _sample(pairs: RowPairs, queries: int, draw: torch.Generator) -> RowPairs:
    """Return all pairs of at most so many queries, drawn."""
    distinct = torch.unique(pairs.query)
    kept = distinct[torch.randperm(len(distinct), generator=draw)[:queries]]
    chosen = torch.isin(pairs.query, kept)
    return RowPairs(pairs.query[chosen], pairs.candidate[chosen])
