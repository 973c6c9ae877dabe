"""Pairs of entities as rows of a corpus, and their membership in other pairs."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from evergram.data.corpus import Corpus
from evergram.ids import refuse_other_form


@dataclass(frozen=True)
class RowPairs:
    """Pairs (query, candidate) as rows of the training corpus.

    Args:
        query: int64 [m].
        candidate: int64 [m]; -1 for a candidate that training never saw. No list can hold it, so
            it counts as a miss.
    """

    query: Tensor
    candidate: Tensor

    def __len__(self) -> int:
        return len(self.query)

    @classmethod
    def none(cls) -> RowPairs:
        empty = torch.zeros(0, dtype=torch.int64)
        return cls(empty, empty)

    def where(self, kept: Tensor) -> RowPairs:
        """Return the pairs that `kept`, bool [m], marks."""
        return RowPairs(self.query[kept], self.candidate[kept])


def among(pairs: RowPairs, others: RowPairs) -> Tensor:
    """Return bool [m], True for pairs that are among the others."""
    width = 2 + max(int(p.candidate.max()) if len(p) else 0 for p in (pairs, others))
    first, second = (p.query * width + p.candidate + 1 for p in (pairs, others))
    return torch.isin(first, second)


def pairs_outside(
    corpus: Corpus, query_ids: pa.Array, candidate_ids: pa.Array
) -> tuple[pa.Array, pa.Array]:
    """Return the pairs of external ids that the corpus does not have.

    Its own pairs are trained on or select the epoch, so they cannot be tested.
    """
    for ids, entities in ((query_ids, corpus.queries), (candidate_ids, corpus.candidates)):
        refuse_other_form(ids, entities.vocabulary.keys, "the test pairs", "the training pairs")
    query = corpus.queries.vocabulary.rows(query_ids)
    candidate = corpus.candidates.vocabulary.rows(candidate_ids)
    kept = pa.array((~corpus.has_pairs(query, candidate)).numpy())
    return query_ids.filter(kept), candidate_ids.filter(kept)
