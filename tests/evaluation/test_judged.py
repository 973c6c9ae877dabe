"""Judgements: their files, metrics, and bounds and intervals of means over queries."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evergram.errors import DataError
from evergram.evaluation.judged import (
    JudgedQueries,
    bootstrap,
    judged_metrics,
    mean_bound,
    paired_bootstrap,
    read_judgements,
)


def test_judgements_of_beir_and_of_trec_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    beir = "query-id\tcorpus-id\tscore\nq 1\td1\t1\nq2\td2\t0\nq2\td1\t2\n"
    (tmp_path / "qrels" / "test.tsv").write_text(beir)
    expected = {"q 1": {"d1": 1}, "q2": {"d2": 0, "d1": 2}}
    assert read_judgements(tmp_path) == expected
    trec = tmp_path / "qrels.txt"
    trec.write_text("q1 0 d1 1\nq2 0 d2 -1\n")
    assert read_judgements(trec) == {"q1": {"d1": 1}, "q2": {"d2": -1}}
    trec.write_text("\n" + beir)
    assert read_judgements(trec) == expected


def test_wrong_judgements_are_refused(tmp_path: Path) -> None:
    for content, message in [
        ("query-id\tcorpus-id\tscore\n", "has no judgements"),
        ("a\tb\t1\na\tb\n", "line 2 is"),
        ("a\tb\t1.0\na\tc\t1\n", "line 1 is"),
        ("a 0 b +1\na 0 c 1\n", "line 1 is"),
        (f"a\tb\t{'9' * 400}\n", "line 1 is"),
        ("a\tb\t1\na\tb\t2\n", "line 2 grades query 'a' and text 'b' again"),
    ]:
        path = tmp_path / "q.tsv"
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            read_judgements(path)


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
        with pytest.raises(DataError, match="nothing can be measured"):
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


@pytest.mark.parametrize(
    ("queries", "share", "loss"),
    [(20, 0.05, 1.0), (60, 0.01, 1.0), (60, 0.1, 0.3), (60, 0.5, 0.02), (200, 0.3, 0.1)],
)
def test_a_true_mean_is_denied_as_seldom_as_said(queries: int, share: float, loss: float) -> None:
    """Rare large losses and frequent small ones, with a true mean of 0: every number of losses
    that can be drawn, with its chance. 0.005 is for the draws of the bound itself."""
    denied = 0.0
    for losing in range(queries + 1):
        chance = comb(queries, losing) * share**losing * (1 - share) ** (queries - losing)
        if chance < 1e-5:
            continue
        win = share * loss / (1 - share)
        values = torch.tensor([-loss] * losing + [win] * (queries - losing)).double()
        if mean_bound(values) <= 0:
            break  # with more losses the bound is lower still
        denied += chance
    assert denied <= 0.05 + 0.005


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=40))
def test_the_bound_never_falls_where_a_value_rises(pairs: list[tuple[float, float]]) -> None:
    worse = torch.tensor([value for value, _ in pairs], dtype=torch.float64)
    better = (worse + torch.tensor([rise for _, rise in pairs], dtype=torch.float64)).clamp(max=1)
    assert mean_bound(worse) <= mean_bound(better) + 1e-12


def test_it_is_exact_where_no_query_loses_and_normal_where_many_do() -> None:
    from scipy.stats import beta, norm

    for queries in (20, 400):
        most = beta.ppf(0.95, 1, queries)  # of losses of 1, by Clopper and Pearson
        assert mean_bound(torch.zeros(queries)) == pytest.approx(-most, rel=0.05)
    draw = torch.Generator().manual_seed(0)
    values = (0.2 * torch.randn(4000, generator=draw, dtype=torch.float64)).clamp(-1, 1)
    end = float(values.mean()) + norm.ppf(0.05) * float(values.std()) / 4000**0.5
    assert mean_bound(values) == pytest.approx(end, abs=0.001)


def normal_values(seed: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_about_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    held = 0
    for seed in range(200):
        # Of a skewed value, as nDCG is: the square of a normal one, of mean 1.
        interval = bootstrap(normal_values(seed, 100).square(), seed)
        held += interval.low <= 1 <= interval.high
    # With coverage 0.92 (skewed values cost some) these ends are 4 deviations away.
    assert 168 <= held <= 199


def test_a_paired_difference_is_narrower_than_its_parts() -> None:
    hard = normal_values(1, 300)
    one, two = hard + 0.1 * normal_values(2, 300) + 0.05, hard + 0.1 * normal_values(3, 300)
    difference, alone = paired_bootstrap(one, two), bootstrap(one)
    assert difference.low > 0
    assert difference.high - difference.low < (alone.high - alone.low) / 4
    mirrored = paired_bootstrap(two, one)
    assert mirrored.low == pytest.approx(-difference.high)
