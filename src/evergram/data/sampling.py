"""Batches of observed pairs, with the weights that make them stand for a measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.errors import DataError


@dataclass(frozen=True)
class Batch:
    """B observed pairs.

    Args:
        query, candidate: int64 [B], rows of the corpus.
        target: float32 [B], what the score should be.
        query_weight, candidate_weight: float32 [B], μ = p/r and ν = q/r: with them
            mean(μ u⊗u) has the measure's Gramian as its expectation.
    """

    query: Tensor
    candidate: Tensor
    target: Tensor
    query_weight: Tensor
    candidate_weight: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(
            self.query.to(device),
            self.candidate.to(device),
            self.target.to(device),
            self.query_weight.to(device),
            self.candidate_weight.to(device),
        )


def measure(counts: Tensor, power: float) -> Tensor:
    """The measure p_a ∝ count_a^power over entities that have been seen, float64 [N], sum 1.

    Args:
        counts: int64 [N], interactions of each entity.
        power: 0 is `uniform` ([G2], implicit ALS), 1 is `example` ([G1]).
    Source: ../shared/method.md §1, "measures".
    """
    weight = torch.where(counts > 0, counts.double().clamp(min=1) ** power, 0.0)
    return weight / weight.sum()


def weights(counts: Tensor, power: float) -> Tensor:
    """μ_a = p_a / r_a of a batch of examples, where r_a = count_a / n; float32 [N]."""
    rate = counts.double() / counts.sum()
    return torch.where(counts > 0, measure(counts, power) / rate.clamp(min=1e-300), 0.0).float()


class ExampleSampler:
    """Shuffled epochs over the observed pairs; the order is a function of (seed, epoch).

    Args:
        target: "one" (every observed pair should score 1) or "value" (the corpus's own).
        query_power, candidate_power: the measures of the two sides, see `measure`.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_size: int,
        seed: int,
        target: str = "one",
        query_power: float = 0.0,
        candidate_power: float = 0.0,
    ) -> None:
        if target == "value" and not corpus.has_values:
            raise DataError("task.target = 'value' needs a column 'value'; use 'one' without it.")
        self.query = corpus.column("query")
        self.candidate = corpus.column("candidate")
        self.target = corpus.column("value") if target == "value" else torch.ones(len(corpus))
        self.query_weights = weights(corpus.counts("query"), query_power)
        self.candidate_weights = weights(corpus.counts("candidate"), candidate_power)
        self.query_measure = measure(corpus.counts("query"), query_power)
        self.candidate_measure = measure(corpus.counts("candidate"), candidate_power)
        self.batch_size = min(batch_size, len(corpus))
        self.seed = seed

    def __len__(self) -> int:
        """Batches in an epoch; the last, smaller one is dropped so that all weigh the same."""
        return len(self.query) // self.batch_size

    def epoch(self, number: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order = torch.randperm(len(self.query), generator=generator)
        for start in range(len(self)):
            index = order[start * self.batch_size : (start + 1) * self.batch_size]
            query, candidate = self.query[index], self.candidate[index]
            yield Batch(
                query,
                candidate,
                self.target[index],
                self.query_weights[query],
                self.candidate_weights[candidate],
            )
