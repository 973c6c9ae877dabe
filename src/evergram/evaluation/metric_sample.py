"""Ranking metrics on a sample of queries, with the standard errors of their means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergram.data.corpus import take_ragged
from evergram.evaluation.ranking import Relevance

# Of a two-sided interval of 95 %: so many standard errors on either side.
NORMAL = 1.959964


@dataclass(frozen=True)
class MetricSample:
    """A metric of some queries, drawn without replacement from all; its mean estimates that of all.

    Args:
        values: float64 [n], one for each drawn query.
        population: all queries; n of them is no sample, and has no error.
    """

    values: Tensor
    population: int

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def standard_error(self) -> float:
        """Of the mean, √((1 − n/N) s²/n); infinity for fewer than two of more queries.

        Source: Cochran 1977, Sampling Techniques, Eq. (2.20).
        """
        n = len(self.values)
        if n >= self.population:
            return 0.0
        if n < 2:
            return math.inf
        return math.sqrt((1 - n / self.population) * float(self.values.var()) / n)

    def above(self, other: Tensor) -> bool:
        """Return whether the mean is above that of `other` [n], of the same queries, by more than
        half the paired difference's 95 % interval."""
        difference = MetricSample(self.values - other, self.population)
        return difference.mean > NORMAL * difference.standard_error

    def loss(self, reference: Tensor) -> tuple[float, float]:
        """Return what the mean lost to that of `reference` [n], of the same queries, in percent of
        the latter, and the standard error of this; NaN and infinity if the latter is not above 0.

        The error is that of a ratio of means, by its linearisation around them.

        Source: Cochran 1977, Eq. (6.13).
        """
        was = float(reference.mean())
        if not was > 0:
            return math.nan, math.inf
        ratio = self.mean / was
        residual = MetricSample(self.values - ratio * reference, self.population)
        return 100 * (1 - ratio), 100 * residual.standard_error / was


def sample_queries(relevance: Relevance, queries: int | None, seed: int) -> Relevance:
    """Return the relevance of so many queries, drawn without replacement; all of it, as it is, if
    there are no more, or for None. One seed draws nested samples."""
    if queries is None or queries >= len(relevance):
        return relevance
    draw = torch.Generator().manual_seed(seed)
    places = torch.randperm(len(relevance), generator=draw)[:queries].sort().values
    targets, targets_at = take_ragged(relevance.targets, relevance.target_offsets, places)
    seen, seen_at = take_ragged(relevance.seen, relevance.seen_offsets, places)
    return Relevance(relevance.queries[places], targets, targets_at, seen, seen_at)


@dataclass(frozen=True)
class SampledRanking:
    """Metrics of several models, float64 [n] of each, on one sample of queries of a population."""

    values: Mapping[str, Mapping[str, Tensor]]
    population: int

    def means(self) -> dict[str, dict[str, float]]:
        return {
            model: {name: float(values.mean()) for name, values in metrics.items()}
            for model, metrics in self.values.items()
        }

    def as_json(self, references: Mapping[str, tuple[str, str]] | None = None) -> dict[str, Any]:
        """Return `queries`, `of` how many, and `errors`, the standard error of each metric of each
        model; and `loss`, the error in percent of the loss of a model to another, by the name of
        each reference (model, other)."""
        errors = {
            model: {name: self._sample(model, name).standard_error for name in metrics}
            for model, metrics in self.values.items()
        }
        size = next((len(v) for m in self.values.values() for v in m.values()), 0)
        record: dict[str, Any] = {"queries": size, "of": self.population, "errors": errors}
        if references:
            record["loss"] = {
                reference: {
                    name: self._sample(model, name).loss(self.values[other][name])[1]
                    for name in self.values[model]
                }
                for reference, (model, other) in references.items()
            }
        return record

    def _sample(self, model: str, name: str) -> MetricSample:
        return MetricSample(self.values[model][name], self.population)
