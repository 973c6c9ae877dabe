"""nDCG@10 and Recall@100 beside a slow computation in exact fractions and by trying all orders."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.errors import DataError, ShapeError
from evergram.evaluation.judged.judged_metrics import JudgedQueries, judged_metrics

TEXTS = [f"d{i}" for i in range(6)]


def slow_ndcg(ranking: list[str], grades: dict[str, int]) -> float:
    """DCG of the ranking over the largest DCG of any order of the graded texts, one by one."""

    def dcg(order: tuple[str, ...]) -> float:
        total = 0.0
        for rank, text in enumerate(order[:10], 1):
            total += max(grades.get(text, 0), 0) * math.log(2) / math.log(rank + 1)
        return total

    return dcg(tuple(ranking)) / max(dcg(order) for order in itertools.permutations(grades))


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*TEXTS, "gone"]), st.integers(-1, 3), min_size=1),
    st.permutations(TEXTS),
    st.integers(1, 6),
)
def test_both_measures_equal_the_slow_ones(
    grades: dict[str, int], order: list[str], kept: int
) -> None:
    relevant = {text for text, grade in grades.items() if grade > 0}
    if not relevant:
        with pytest.raises(DataError, match="has a relevant text"):
            JudgedQueries.of({"q": grades}, ["q"], TEXTS)
        return
    if not relevant & set(TEXTS):
        with pytest.raises(DataError, match="nothing would be measured"):
            JudgedQueries.of({"q": grades}, ["q"], TEXTS)
        return
    judged = JudgedQueries.of({"q": grades}, ["q"], TEXTS)
    ranking = order[:kept]
    rows = torch.tensor([[TEXTS.index(text) for text in ranking] + [-1] * (6 - kept)])
    metrics = judged_metrics(rows, judged)
    assert float(metrics["ndcg@10"][0]) == pytest.approx(slow_ndcg(ranking, grades), abs=1e-12)
    recall = Fraction(len(relevant & set(ranking)), len(relevant))
    assert float(metrics["recall@100"][0]) == pytest.approx(float(recall), abs=1e-12)
    assert judged.absent == len(relevant - set(TEXTS))


def test_only_the_first_ten_and_the_first_hundred_count() -> None:
    texts = [str(i) for i in range(200)]
    judged = JudgedQueries.of({"q": {"10": 1, "99": 1, "100": 1}}, ["q"], texts)
    metrics = judged_metrics(torch.arange(200)[None], judged)
    assert float(metrics["ndcg@10"][0]) == 0
    assert float(metrics["recall@100"][0]) == pytest.approx(2 / 3)


def test_queries_without_judgements_are_left_out_and_rows_say_which_remain() -> None:
    judged = JudgedQueries.of({"b": {"d0": 1}, "c": {"d0": 0}}, ["a", "b", "c"], TEXTS)
    assert judged.rows.tolist() == [1]
    assert len(judged) == 1


def test_rankings_of_other_queries_are_refused() -> None:
    judged = JudgedQueries.of({"b": {"d0": 1}}, ["b"], TEXTS)
    with pytest.raises(ShapeError, match="one for each of the 1 judged queries"):
        judged_metrics(torch.zeros(2, 3, dtype=torch.int64), judged)
