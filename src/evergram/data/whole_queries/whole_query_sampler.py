"""`WholeQuerySampler`: epochs of whole queries, each with all of its pairs in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.data.sampling import Batch, ExampleSampler, PairDraws


class WholeQuerySampler(ExampleSampler):
    """Draws epochs of the queries in a new order; a batch has all pairs of some queries.

    A batch has as many queries as have `batch_size` pairs on average, so that its size varies:
    `Batch.pair_share` says by how much. An epoch's last batch has the queries that are left, and
    counts for as much less. Each epoch is a function of (seed, epoch), and every batch of it can be
    the first.

    Args:
        corpus, draws, batch_size, seed, measures, pair_weight: as of `ExampleSampler`.
    Attributes:
        queries: of a batch.
        expected: pairs of a batch, on average.
    Raises: DataError: targets are values and the corpus has none.
    """

    def __init__(
        self,
        corpus: Corpus,
        draws: PairDraws | None = None,
        *,
        batch_size: int,
        seed: int,
        measures: Mapping[str, Tensor] | None = None,
        pair_weight: Tensor | None = None,
    ) -> None:
        super().__init__(
            *(corpus, draws),
            batch_size=batch_size,
            seed=seed,
            measures=measures,
            pair_weight=pair_weight,
        )
        self.size: int = len(corpus)
        self.degrees: Tensor = corpus.counts("query")
        self.met: Tensor = torch.nonzero(self.degrees).flatten()
        mean = len(corpus) / len(self.met)
        self.queries: int = min(max(1, round(batch_size / mean)), len(self.met))
        self.expected: float = self.queries * mean
        self.batch_size: int = max(1, round(self.expected))
        self.by_query: Tensor = torch.argsort(self.query, stable=True)
        self.starts: Tensor = self.degrees.cumsum(0) - self.degrees

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self.met) // self.queries)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from batch `start` on, as the whole epoch has them."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order = self.met[torch.randperm(len(self.met), generator=generator)]
        for place, queries in enumerate(torch.split(order, self.queries)):
            if place >= start:
                yield self._batch(queries, generator)
            elif len(self.known):  # one generator draws the negatives of all batches in turn
                self._negative(self.query[self._pairs(queries)], generator)

    def _batch(self, queries: Tensor, generator: torch.Generator) -> Batch:
        """Return all pairs of some queries."""
        index = self._pairs(queries)
        query, candidate = self.query[index], self.candidate[index]
        # A mean over the batch gives the pairs of a large one less; with this they count alike.
        share = len(index) / self.expected
        return Batch(
            query,
            candidate,
            torch.ones(len(index)) if self.target is None else self.target[index],
            share * self.query_weights[query],
            share * self.candidate_weights[candidate],
            self._negative(query, generator) if len(self.known) else None,
            None if self.pair_weight is None else share * self.pair_weight[index],
            torch.full((len(index),), share),
        )

    def _pairs(self, queries: Tensor) -> Tensor:
        """Return the places of all pairs of queries [Q], int64 [B], query by query."""
        lengths = self.degrees[queries]
        before = lengths.cumsum(0) - lengths
        shift = torch.repeat_interleave(self.starts[queries] - before, lengths)
        return self.by_query[shift + torch.arange(len(shift))]
