"""Ranking metrics on a sample of queries, with the standard errors of their means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from evergram.data.split import RowPairs, Split
from evergram.evaluation.ranking import Relevance, test_relevance

NORMAL = 1.959964  # half the width of a two-sided 95 % interval, in standard errors


@dataclass(frozen=True)
class MetricSample:
    """A metric on queries drawn without replacement, to estimate its mean over all queries."""

    values: Tensor  # float64 [n], one per drawn query
    population: int  # N, the number of all queries; if n = N, the mean is exact

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def standard_error(self) -> float:
        """The standard error of the mean, √((1 − n/N) s²/n); infinity if n < 2 and n < N. Source:
        Cochran 1977, Sampling Techniques, Eq. (2.20)."""
        n = len(self.values)
        if n >= self.population:
            return 0.0
        if n < 2:
            return math.inf
        return math.sqrt((1 - n / self.population) * float(self.values.var()) / n)

    def above(self, other: Tensor) -> bool:
        """Return True if the mean is significantly above the mean of `other` [n], for the same
        queries: by more than half the 95 % interval of the paired difference."""
        difference = MetricSample(self.values - other, self.population)
        return difference.mean > NORMAL * difference.standard_error

    def loss(self, reference: Tensor) -> tuple[float, float]:
        """Return the loss of the mean against the mean of `reference` [n], for the same queries, in
        percent of the latter, and its standard error (a linearised ratio of means). If the
        reference's mean is not above 0, they are NaN and infinity. Source: Cochran
        1977, Eq. (6.13)."""
        base = float(reference.mean())
        if not base > 0:
            return math.nan, math.inf
        ratio = self.mean / base
        residual = MetricSample(self.values - ratio * reference, self.population)
        return 100 * (1 - ratio), 100 * residual.standard_error / base


def sample_pairs(pairs: RowPairs, queries: int | None, seed: int) -> tuple[RowPairs, int]:
    """Return the pairs of `queries` queries drawn without replacement, and the number of all
    queries; for None, or if there are no more, all pairs. The samples of one seed are nested."""
    every = torch.unique(pairs.query)
    if queries is None or queries >= len(every):
        return pairs, len(every)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
    return pairs.where(torch.isin(pairs.query, every[order[:queries]])), len(every)


def sample_test(split: Split, queries: int | None, seed: int) -> tuple[Relevance, int]:
    """Return the test pairs of a sample of queries as targets, and the number of all queries."""
    test, population = sample_pairs(split.test, queries, seed)
    return test_relevance(replace(split, test=test)), population


@dataclass(frozen=True)
class SampledRanking:
    """Metrics of several models, float64 [n] each, on one sample of `population` queries."""

    values: Mapping[str, Mapping[str, Tensor]]
    population: int

    def means(self) -> dict[str, dict[str, float]]:
        return {
            model: {name: float(values.mean()) for name, values in metrics.items()}
            for model, metrics in self.values.items()
        }

    def as_json(self, references: Mapping[str, tuple[str, str]] | None = None) -> dict[str, Any]:
        """Return `queries` (sample size), `of` (population), and `errors`, the standard error of
        each metric by model. With references, {name: (model, other)}, also return `loss`, the
        standard error of the model's loss against the other, in percent."""
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
