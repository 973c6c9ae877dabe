"""The whole report: its figures, and a verdict only where there are judgements."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tests.support.two_models import QUERIES, by_two_models

from evergram.errors import DataError
from evergram.evaluation.judged.judged_metrics import JudgedQueries, judged_metrics
from evergram.releasing.migration.migration_plan import plan_migration
from evergram.releasing.migration.ways import WaySettings, measure_ways


def without_times(report: dict) -> str:  # type: ignore[type-arg]
    for way in report["ways"].values():
        del way["milliseconds"]
    return json.dumps(report, sort_keys=True)


def test_a_better_model_is_reindexed_and_a_worse_one_is_not_taken() -> None:
    for noises, expected in (((3.0, 0.1), "reindex"), ((0.1, 3.0), "stay")):
        vectors, judgements = by_two_models(*noises)
        report = plan_migration(vectors, judgements, WaySettings(depth=100))
        assert report["verdict"] == expected, report["reasons"]
        assert report["judged"]


def test_the_figures_are_those_of_the_rankings() -> None:
    vectors, judgements = by_two_models(1.0, 0.5)
    report = plan_migration(vectors, judgements)
    judged = JudgedQueries.of(judgements, vectors.queries, vectors.texts)
    for name, way in measure_ways(vectors, WaySettings()).items():
        ndcg = judged_metrics(way.ranked, judged)["ndcg@10"]
        measured = report["ways"][name]["ndcg@10"]
        assert measured["mean"] == pytest.approx(float(ndcg.mean()))
        assert measured["low"] <= measured["mean"] <= measured["high"]
    reindex = report["ways"]["reindex"]
    assert reindex["agreement@10"]["mean"] == 1
    assert reindex["beside_reindex"] == {"mean": 0, "low": 0, "high": 0}


def test_only_judged_queries_count() -> None:
    vectors, judgements = by_two_models(1.0, 0.5)
    some = {query: judgements[query] for query in vectors.queries[:30]}
    some["q5"] = {"gone": 2}
    report = plan_migration(vectors, some)
    assert (report["queries"], report["absent"]) == (30, 1)
    assert len(vectors.queries) == QUERIES
    with pytest.raises(DataError, match="None of the 60 queries"):
        plan_migration(vectors, {"other": {"d1": 1}})


def test_queries_without_a_judged_text_among_the_texts_are_no_evidence() -> None:
    vectors, judgements = by_two_models(3.0, 0.1)
    few = {q: judgements[q] if n < 19 else {"gone": 1} for n, q in enumerate(vectors.queries)}
    report = plan_migration(vectors, few, WaySettings(depth=100))
    assert (report["queries"], report["verdict"]) == (QUERIES, None)
    assert "Only 19 queries have a judged text" in report["reasons"][0]
    few[vectors.queries[19]] = judgements[vectors.queries[19]]
    assert plan_migration(vectors, few, WaySettings(depth=100))["verdict"] is not None
    with pytest.raises(DataError, match="nothing would be measured"):
        plan_migration(vectors, {q: {"gone": 1} for q in vectors.queries})


def test_without_judgements_there_is_no_verdict() -> None:
    vectors, _ = by_two_models(3.0, 0.1)
    report = plan_migration(vectors)
    assert (report["verdict"], report["judged"]) == (None, False)
    assert "no judgements" in report["reasons"][0]
    assert all("ndcg@10" not in way for way in report["ways"].values())


def test_the_same_seed_gives_the_same_report() -> None:
    vectors, judgements = by_two_models(1.0, 0.5)
    settings = WaySettings(pairs=0.5, seed=3)
    first = without_times(plan_migration(vectors, judgements, settings))
    torch.manual_seed(9)
    assert first == without_times(plan_migration(vectors, judgements, settings))


@pytest.mark.parametrize("file", ["old", "new", "old_queries", "new_queries"])
def test_a_model_whose_vectors_are_zeros_was_not_measured(file: str) -> None:
    vectors, judgements = by_two_models(3.0, 0.1)
    lacking = getattr(vectors, file).clone()
    lacking[: len(lacking) // 10] = 0
    report = plan_migration(replace(vectors, **{file: lacking}), judgements)
    assert report["verdict"] is None
    assert "are zeros, as failed calls of an encoder leave them" in report["reasons"][0]
    lacking[1:] = getattr(vectors, file)[1:]
    assert plan_migration(replace(vectors, **{file: lacking}), judgements)["verdict"] == "reindex"
