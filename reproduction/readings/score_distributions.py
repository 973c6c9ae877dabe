"""Scores of observed and random pairs during training. [G1] Fig. 5; [G2] Fig. 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from evergram import Recipe
from evergram.data import Split
from evergram.evaluation import score_histograms
from evergram.training import Trained, Trainer
from reproduction.readings.reading import Reading, Watch


@dataclass(frozen=True)
class ScoreDistributions(Reading):
    """Densities of scores at each evaluation of the recipe (`training.evaluate_every`)."""

    name: ClassVar[str] = "scores"
    samples: int = 50_000  # number of pairs drawn of each kind
    bins: int = 40  # number of bins of a density

    def watch(self, recipe: Recipe, split: Split) -> Watch:
        return _ScoresWatch(self, split, recipe.seed)


class _ScoresWatch(Watch):
    def __init__(self, reading: ScoreDistributions, split: Split, seed: int) -> None:
        self.reading = reading
        self.pairs = split.training.column("query"), split.training.column("candidate")
        self.seed = seed
        self.moments: list[dict[str, Any]] = []

    def on_evaluation(self, run: Trainer, record: Mapping[str, float]) -> None:
        now = run.step.encoder.embed_all(run.step.scene)
        histograms = score_histograms(
            now["query"],
            now["candidate"],
            self.pairs,
            samples=self.reading.samples,
            bins=self.reading.bins,
            seed=self.seed,
        )
        self.moments.append(
            {
                "step": run.steps,
                "epoch": run.epoch,
                "edges": histograms.edges.tolist(),
                "observed": histograms.observed.tolist(),
                "random": histograms.random.tolist(),
                "means": list(histograms.means),
                "separation": histograms.separation,
            }
        )

    def read(self, trained: Trained) -> dict[str, Any]:
        return {"moments": self.moments}
