"""Each side of a `GramianPenalty` refuses wrong settings, shapes and ids in plain words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.penalty_loops import CANDIDATES, DIM, QUERIES, tables

from evergram.errors import DataError, ShapeError, TrainingError
from evergram.gramian import GramianPenalty


@pytest.mark.parametrize(
    ("query", "candidate", "ids", "message"),
    [
        (torch.ones(3, 5), torch.ones(3, 4), (None, None), r"takes \[batch, 4\]"),
        (torch.ones(3, 4), torch.ones(2, 3, 4), (None, None), "Flatten other dims"),
        (torch.ones(4), torch.ones(3, 4), (None, None), r"query embeddings have shape \[4\]"),
        ([[1.0] * 4], torch.ones(3, 4), (None, None), "are list; give a floating-point tensor"),
        (torch.ones(3, 4).long(), torch.ones(3, 4), (None, None), "torch.int64"),
        (torch.ones(3, 4), torch.ones(3, 4), (torch.arange(2), None), r"must be \[3\]"),
        (torch.ones(3, 4), torch.ones(3, 4), (None, torch.ones(3)), "candidate_ids are .*float32"),
        (torch.ones(3, 4), torch.ones(3, 4), (torch.ones(3, 1).long(), None), r"\[3, 1\]"),
    ],
)
def test_wrong_shapes_are_refused(
    query: Any, candidate: Any, ids: tuple[Any, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        GramianPenalty(DIM)(query, candidate, *ids)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"estimator": "storm"}, "embed each batch again"),
        ({"estimator": "exact"}, "embed every entity"),
        ({"estimator": "best"}, "sogram, sagram, sampled"),
        ({"estimator": "sagram", "query_measure": 0.5}, "give query_counts"),
        ({"estimator": "sampled", "rate": 0.1}, "only 'sogram' has one, not 'sampled'"),
        ({"rate": 0.0}, r"must lie in \(0, 1\]"),
        ({"rate": "fast"}, "'auto'"),
        ({"dim": 0}, "whole number"),
        ({"dim": 2.5}, "whole number"),
        ({"candidate_measure": "popular"}, "candidate_measure is 'popular'"),
        ({"prior": float("nan")}, "finite score"),
        ({"prior": (torch.ones(3, 2), torch.ones(3, 1))}, "with one K"),
        ({"prior": (torch.ones(3, 2),)}, "with one K"),
        (
            {"prior": (torch.ones(3, 2), torch.ones(3, 2)), "query_counts": torch.ones(4)},
            "one row an entity",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GramianPenalty(**{"dim": DIM, **settings})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"estimator": "sagram"}, "last embedding"),
        ({"query_measure": 0.5}, "counts entities"),
        ({"query_measure": torch.ones(QUERIES)}, "a table by id"),
        ({"query_counts": torch.ones(QUERIES)}, "a table by id"),
        ({"prior": (torch.ones(QUERIES, 1), torch.ones(CANDIDATES, 1))}, "prior is a table"),
    ],
)
def test_ids_are_needed_where_something_is_by_id(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(TrainingError, match=why):
        GramianPenalty(DIM, **settings)(*tables())


def test_ids_in_some_calls_and_none_in_others_are_refused() -> None:
    users, items = tables()
    penalty = GramianPenalty(DIM)
    penalty(users, items, torch.arange(QUERIES))  # of one side alone is well
    with pytest.raises(TrainingError, match="without query_ids, earlier ones were with"):
        penalty(users, items)
    with pytest.raises(TrainingError, match="with candidate_ids, earlier ones were without"):
        penalty(users, items, torch.arange(QUERIES), torch.arange(CANDIDATES))


def test_ids_beyond_the_tables_are_refused() -> None:
    users, items = tables()
    ids = torch.arange(QUERIES) + 3
    with pytest.raises(DataError, match="must lie in 0 … 29"):
        GramianPenalty(DIM, query_counts=torch.ones(QUERIES))(users, items, ids)
    prior = torch.ones(QUERIES, 1), torch.ones(CANDIDATES, 1)
    with pytest.raises(DataError, match="the prior has 30 rows"):
        GramianPenalty(DIM, prior=prior)(users, items, ids, torch.arange(CANDIDATES))
    penalty = GramianPenalty(DIM)
    penalty(users, items, ids, list(range(CANDIDATES)))
    with pytest.raises(ShapeError, match="30 query rows, and ids up to 32"):
        penalty.gramian_error(users, items)
