"""The table of losses by data: what is drawn, and what the table says of a data set."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from benchmarks.which_loss import OBJECTIVES, Kind, Row, _drawn, table

from evergram.data.corpus import Corpus
from evergram.training.recipe import Recipe


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_draws_other_settings_each_time_and_the_same_again(objective: str) -> None:
    first, second = (list(_drawn(objective, OBJECTIVES[objective], 6)) for _ in range(2))
    assert first == second
    assert len({tuple(settings) for settings in first}) > 1
    for settings in first:
        Recipe.of({"data": {"kind": "synthetic"}, "split": {"kind": "random"}}, settings)


def test_kind_counts_pairs_by_query_and_by_candidate() -> None:
    # One candidate of two hundred has a half of all pairs, and it is the most popular hundredth
    # together with the next.
    query = [n % 50 for n in range(400)]
    candidate = [0] * 200 + list(range(200))
    draw = random.Random(0)
    order = draw.sample(range(400), 400)
    pairs = {"query": [query[n] for n in order], "candidate": [candidate[n] for n in order]}
    kind = Kind.of(Corpus.of(pa.table(pairs)))
    assert (kind.queries, kind.candidates, kind.pairs) == (50, 200, 400)
    assert kind.per_query == 8
    assert kind.top == pytest.approx((201 + 1) / 400)


def test_table_divides_by_the_better_squared_loss_of_the_same_seed() -> None:
    recalls = {key: [0.1, 0.2] for key in OBJECTIVES}
    recalls |= {"softmax, unit rows": [0.3, 0.6], "squared, solver": [0.2, 0.4]}
    shown = table([Row("d", Kind(5, 1000, 60, 7, 0.25), recalls, 0.05)])
    assert "| d | 5 × 1,000 | 60 | 7 | 25% | 1.500 ± 0.000 |" in shown
    assert "over 2 seeds" in shown
