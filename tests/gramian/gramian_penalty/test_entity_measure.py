"""Weights make drawn rows stand for a measure; each side refuses wrong settings and ids."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.penalty_loops import CANDIDATES, DIM, QUERIES, tables
from torch import Tensor

from evergram.errors import DataError, ShapeError, TrainingError
from evergram.gramian import GramianPenalty
from evergram.gramian.gramian_penalty.entity_measure import EntityMeasure

Measure = str | float | Tensor


def exact(measure: Measure, counts: Tensor) -> Tensor:
    """p by its definition, entity by entity."""
    power = {"uniform": 0.0, "example": 1.0}.get(measure) if isinstance(measure, str) else measure
    weights = []
    for entity, count in enumerate(counts.tolist()):
        if not count:
            weights.append(0.0)
        elif isinstance(power, Tensor):
            weights.append(float(power[entity]))
        else:
            assert power is not None
            weights.append(count**power)
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30),
    st.sampled_from(["uniform", "example", 0.5, 2.0, "shares"]),
    st.integers(1, 7),
)
def test_an_epoch_of_weighted_rows_is_the_measure(ids: list[int], kind: Measure, size: int) -> None:
    """Σ over all rows of μ / n, once counts are complete, is p; streamed or given."""
    rows = torch.tensor(ids)
    counts = torch.bincount(rows, minlength=7)
    measure: Measure = torch.arange(1.0, 8.0) if kind == "shares" else kind
    streamed = EntityMeasure(measure)
    for part in torch.split(rows, size):
        streamed.count(part)
    # Counts are of any scale: shares of rows do as well.
    fixed = EntityMeasure(measure, counts / 10)
    expected = exact(measure, counts)
    for made in (streamed, fixed):
        weights = made.weights(rows) / len(rows)
        sums = torch.zeros(7, dtype=torch.float64).index_add(0, rows, weights)
        torch.testing.assert_close(sums, expected, rtol=1e-6, atol=1e-12)
        known = made.probabilities()[:7]
        torch.testing.assert_close(known, expected[: len(known)], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("measure", ["uniform", "example", 0.5])
def test_streamed_counts_have_no_wrong_start(measure: Measure) -> None:
    """Over every order of the rows, a batch in the middle of the first epoch has on average the
    measure of what had been seen by then, given the counts by then."""
    rows, size = [0, 0, 0, 1, 1, 2], 2
    sums: dict[tuple[float, ...], list[Tensor]] = {}
    for order in permutations(rows):
        made = EntityMeasure(measure, name="query")
        made.resize(3)
        for start in (0, 2):
            part = torch.tensor(order[start : start + size])
            made.count(part)
        mass = torch.zeros(3, dtype=torch.float64).index_add(0, part, made.weights(part) / size)
        sums.setdefault(tuple(made.counts[:3].tolist()), []).append(mass)
    assert len(sums) > 3
    for counts, every in sums.items():
        mean = torch.stack(every).mean(0)
        torch.testing.assert_close(mean, exact(measure, torch.tensor(counts)))


def test_an_entity_that_was_never_seen_weighs_nothing() -> None:
    made = EntityMeasure("uniform")
    assert made.weights(torch.tensor([4])).tolist() == [0.0]
    made.count(torch.tensor([1, 1]))
    assert made.weights(torch.tensor([0, 1, 99])).tolist() == [0.0, 1.0, 0.0]


def test_exact_weights_need_every_entity_that_was_seen() -> None:
    made = EntityMeasure("example")
    assert made.exact_weights(torch.tensor([0, 1])) is None
    made.count(torch.tensor([0, 2, 2, 2]))
    assert made.exact_weights(torch.tensor([0, 1])) is None
    # Entity 0 has a quarter, 2 has three, in two rows; 1 and 99 were never seen.
    weights = made.exact_weights(torch.tensor([2, 0, 2, 1, 99]))
    assert weights is not None
    assert (weights / 5).tolist() == [0.375, 0.25, 0.375, 0, 0]


def test_counts_grow_and_come_back() -> None:
    made = EntityMeasure("uniform")
    for first in (0, 3, 1000):
        made.count(torch.arange(first, first + 5))
    assert float(made.total) == 15
    assert float(made.mass) == 12 + 1  # 3 and 4 twice: 0 … 7 and 1000 … 1004
    other = EntityMeasure("uniform")
    other.count(torch.tensor([5000]))  # larger than what is loaded
    other.load_state_dict(made.state_dict())
    ids = torch.tensor([0, 3, 1003, 4999])
    assert torch.equal(other.weights(ids), made.weights(ids))


def test_a_wrong_measure_or_count_is_refused() -> None:
    cases: list[tuple[Measure, Tensor | None, str]] = [
        ("popular", None, "'uniform', 'example'"),
        (400.0, None, "0 to 16"),
        (True, None, "0 to 16"),
        (float("nan"), None, "0 to 16"),
        (torch.tensor([1.0, -1.0]), None, "not negative"),
        (torch.zeros(3), None, "not zero everywhere"),
        (torch.ones(2, 2), None, r"must be \[N\]"),
        ("uniform", torch.tensor([1.0, float("inf")]), "user_counts must be finite"),
        (torch.ones(3), torch.ones(4), "3 entities and user_counts 4"),
    ]
    for measure, counts, message in cases:
        with pytest.raises(ValueError, match=message):
            EntityMeasure(measure, counts, "user")


def test_ids_beyond_the_tables_are_refused() -> None:
    for made, ids, message in (
        (EntityMeasure("uniform"), [-1], "contain -1"),
        (EntityMeasure("uniform"), [2**40], "number the entities from 0"),
        (EntityMeasure("uniform", torch.ones(3)), [3], r"0 … 2, for they .* entity_counts"),
        (EntityMeasure(torch.ones(3)), [5], "rows of entity_measure, which has 3"),
    ):
        with pytest.raises(DataError, match=message):
            made.check(torch.tensor(ids))
    with pytest.raises(DataError, match="id 1 never occurs"):
        EntityMeasure("uniform", torch.tensor([1, 0])).count(torch.tensor([0, 1]))


def test_wrong_shapes_are_refused() -> None:
    rows, none = torch.ones(3, 4), (None, None)
    cases: list[tuple[Any, Any, tuple[Any, Any], str]] = [
        (torch.ones(3, 5), rows, none, "[batch, 4]"),
        (rows, torch.ones(2, 3, 4), none, "Flatten other dims"),
        (torch.ones(4), rows, none, "shape [4]"),
        ([[1.0] * 4], rows, none, "list"),
        (rows.long(), rows, none, "torch.int64"),
        (rows, rows, (torch.arange(2), None), "must be [3]"),
        (rows, rows, (None, torch.ones(3)), "candidate_ids"),
        (rows, rows, (torch.ones(3, 1).long(), None), "[3, 1]"),
    ]
    for query, candidate, ids, named in cases:
        with pytest.raises(ShapeError, match=re.escape(named)):
            GramianPenalty(DIM)(query, candidate, *ids)


def test_settings_that_cannot_be_are_refused() -> None:
    two = torch.ones(3, 2)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"estimator": "storm"}, "embed each batch again"),
        ({"estimator": "exact"}, "embed every entity"),
        ({"estimator": "best"}, "sogram, sagram, sampled"),
        ({"estimator": "sagram", "query_measure": 0.5}, "give query_counts"),
        ({"estimator": "sampled", "rate": 0.1}, "'sampled'"),
        ({"rate": 0.0}, "(0, 1]"),
        ({"dim": 2.5}, "dim is"),
        ({"dim": True}, "dim is"),
        ({"candidate_measure": "popular"}, "candidate_measure is 'popular'"),
        ({"query_measure": True}, "query_measure is"),
        ({"prior": float("nan")}, "prior is"),
        ({"prior": "a"}, "prior is"),
        ({"prior": (two, torch.ones(3, 1))}, "with one K"),
        ({"prior": (two, two), "query_counts": torch.ones(4)}, "one row an entity"),
    ]
    for options, named in cases:
        with pytest.raises(ValueError, match=re.escape(named)):
            GramianPenalty(**{"dim": DIM, **options})


def test_ids_are_needed_where_something_is_by_id() -> None:
    cases: list[dict[str, Any]] = [
        {"estimator": "sagram"},
        {"query_measure": 0.5},
        {"query_measure": torch.ones(QUERIES)},
        {"query_counts": torch.ones(QUERIES)},
        {"prior": (torch.ones(QUERIES, 1), torch.ones(CANDIDATES, 1))},
    ]
    for options in cases:
        with pytest.raises(TrainingError, match="query_ids"):
            GramianPenalty(DIM, **options)(*tables())


def test_ids_in_some_calls_and_none_in_others_are_refused() -> None:
    users, items = tables()
    penalty = GramianPenalty(DIM)
    penalty(users, items, torch.arange(QUERIES))  # of one side alone is well
    with pytest.raises(TrainingError, match="without query_ids, earlier ones were with"):
        penalty(users, items)
    with pytest.raises(TrainingError, match="with candidate_ids, earlier ones were without"):
        penalty(users, items, torch.arange(QUERIES), torch.arange(CANDIDATES))


def test_ids_beyond_the_tables_of_a_penalty_are_refused() -> None:
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
