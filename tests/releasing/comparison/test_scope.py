"""A comparison says beforehand what it cannot measure."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch

from evergram.data.corpus import Corpus
from evergram.data.row_pairs import RowPairs
from evergram.data.split import Split
from evergram.evaluation.consumer_tasks import ConsumerTask, Examples
from evergram.lineage.version_warnings import LEAST_QUERIES
from evergram.releasing.comparison.scope import unmeasurable


def split_of(objects: int, tested: int) -> Split:
    """So many queries and candidates, and so many test queries."""
    ids = list(range(objects))
    corpus = Corpus.from_tables(pa.table({"query": ids, "candidate": ids}))
    rows = torch.arange(tested)
    return Split(corpus, RowPairs.none(), RowPairs(rows, rows), 0)


@pytest.fixture
def task() -> ConsumerTask:
    examples = Examples(0, {"candidate": torch.arange(2)}, torch.tensor([True, False]))
    return ConsumerTask("activity", examples, examples, {1: examples})


def test_nothing_is_said_of_what_can_be_measured(task: ConsumerTask) -> None:
    splits = [split_of(LEAST_QUERIES, LEAST_QUERIES)] * 2
    assert unmeasurable(splits, [task], [], seeds=2, reads_features=False) == []


def test_each_lack_is_a_sentence(task: ConsumerTask) -> None:
    first, second = split_of(30, LEAST_QUERIES), split_of(40, 3)
    splits = [first, second]
    few, unknown, seeds = unmeasurable(splits, [task], [], seeds=1, reads_features=False)
    assert few.startswith("Version 1 is tested by 3 queries")
    assert "of the objects of version 1, 25% have no embedding" in unknown
    assert seeds == "With one seed no deviation is measured; set compare.seeds for more."
    # An encoder of features embeds objects that it has never seen.
    assert len(unmeasurable(splits, [task], [], seeds=2, reads_features=True)) == 1


def test_tasks_that_are_left_out_come_first() -> None:
    splits = [split_of(LEAST_QUERIES, LEAST_QUERIES)] * 2
    why, none = unmeasurable(splits, [], ["activity is left out."], seeds=2, reads_features=False)
    assert why == "activity is left out."
    assert none.startswith("No consumer task is left, so (2) and (1)+(2) will not be measured")
