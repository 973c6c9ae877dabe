"""Targets of held-out pairs, and the pairs that no list may hold."""

from __future__ import annotations

import pyarrow as pa
import torch

from evergram.data.corpus import Corpus
from evergram.data.row_pairs import RowPairs
from evergram.data.split import Split
from evergram.evaluation import relevance
from evergram.evaluation.ranking import Relevance

TRAINING = Corpus.from_tables(pa.table({"query": [0, 0, 1], "candidate": [0, 1, 2]}))


def row_pairs(*pairs: tuple[int, int]) -> RowPairs:
    query, candidate = zip(*pairs, strict=True)
    return RowPairs(torch.tensor(query), torch.tensor(candidate))


def masked(targets: Relevance) -> dict[int, list[int]]:
    ends = targets.seen_offsets.tolist()
    return {
        int(query): sorted(targets.seen[ends[i] : ends[i + 1]].tolist())
        for i, query in enumerate(targets.queries)
    }


def test_training_pairs_are_masked_for_queries_with_targets() -> None:
    targets = relevance.relevance_of(TRAINING, row_pairs((0, 2), (0, -1)))
    assert targets.queries.tolist() == [0]
    assert sorted(targets.targets.tolist()) == [-1, 2]
    assert masked(targets) == {0: [0, 1]}


def test_pairs_that_chose_the_epoch_are_masked_in_a_test_too() -> None:
    selection, test = row_pairs((0, 2), (1, -1)), row_pairs((0, 3), (1, 0))
    targets = relevance.test_relevance(Split(TRAINING, selection, test, 0))
    assert masked(targets) == {0: [0, 1, 2], 1: [2]}
    # Where the same pairs select and are reported, they are targets.
    both = relevance.test_relevance(Split(TRAINING, test, test, 0))
    assert masked(both) == {0: [0, 1], 1: [2]}
