"""The whole report: its figures, and a verdict only where there are judgements."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.support.two_models import QUERIES, by_two_models

from evergram.errors import DataError
from evergram.evaluation.judged.beir_files import Judgements
from evergram.evaluation.judged.judged_metrics import JudgedQueries, judged_metrics
from evergram.releasing.migration.migration_plan import plan_migration
from evergram.releasing.migration.migration_vectors import MigrationVectors
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


def test_only_judged_queries_whose_texts_are_all_here_count() -> None:
    vectors, judgements = by_two_models(1.0, 0.5)
    some = {query: judgements[query] for query in vectors.queries[:30]}
    some["q5"] = {"d5": 1, "gone": 2}
    report = plan_migration(vectors, some)
    assert (report["queries"], report["incomplete"], report["absent"]) == (29, 1, 1)
    assert len(vectors.queries) == QUERIES
    with pytest.raises(DataError, match="None of the 60 queries"):
        plan_migration(vectors, {"other": {"d1": 1}})


def test_queries_whose_texts_are_not_all_here_are_no_evidence() -> None:
    vectors, judgements = by_two_models(3.0, 0.1)
    few = {q: judgements[q] | ({} if n < 19 else {"gone": 1}) for n, q in enumerate(judgements)}
    report = plan_migration(vectors, few, WaySettings(depth=100))
    assert (report["queries"], report["verdict"]) == (19, None)
    assert report["unjudged"] == report["reasons"]
    assert "Only 19 different queries" in report["reasons"][0]
    few[vectors.queries[19]] = judgements[vectors.queries[19]]
    assert plan_migration(vectors, few, WaySettings(depth=100))["verdict"] is not None
    none_whole = {query: grades | {"gone": 1} for query, grades in judgements.items()}
    report = plan_migration(vectors, none_whole)
    assert (report["verdict"], report["incomplete"]) == (None, QUERIES)
    with pytest.raises(DataError, match="nothing would be measured"):
        plan_migration(vectors, {q: {"gone": 1} for q in vectors.queries})


def repeated(count: int, times: int) -> tuple[MigrationVectors, Judgements]:
    """Return the first queries of two models, each several times under other ids."""
    vectors, judgements = by_two_models(3.0, 0.1)
    rows = torch.arange(count).repeat(times)
    again = replace(vectors.of_queries(rows), queries=[f"r{n}" for n in range(len(rows))])
    return again, {f"r{n}": judgements[f"q{row}"] for n, row in enumerate(rows.tolist())}


def test_a_query_that_is_repeated_counts_once() -> None:
    report = plan_migration(*repeated(1, 50))
    assert (report["queries"], report["repeated"], report["verdict"]) == (1, 49, None)
    assert "Only 1 different queries" in report["unjudged"][0]
    once, thrice = (plan_migration(*repeated(30, times)) for times in (1, 3))
    assert thrice["repeated"] == 60
    for name, way in once["ways"].items():
        for measure in ("ndcg@10", "agreement@10", "beside_stay"):
            assert thrice["ways"][name][measure] == pytest.approx(way[measure]), (name, measure)


def mixed_up(vectors: MigrationVectors, *names: str) -> MigrationVectors:
    order = {name: torch.randperm(len(getattr(vectors, name))) for name in names}
    return replace(vectors, **{name: getattr(vectors, name)[order[name]] for name in names})


def swapped(vectors: MigrationVectors) -> MigrationVectors:
    return replace(vectors, old_queries=vectors.new_queries, new_queries=vectors.old_queries)


def with_two_models(vectors: MigrationVectors, name: str) -> MigrationVectors:
    """Return vectors of which every second text's, by one model, are those of a third model."""
    rows = getattr(vectors, name).clone()
    turn = torch.linalg.qr(torch.randn(len(rows.T), len(rows.T)))[0]
    rows[::2] = rows[::2] @ turn
    return replace(vectors, **{name: rows})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda v: mixed_up(v, "new"), "texts mixed up"),
        (lambda v: mixed_up(v, "new", "new_queries"), "texts mixed up"),
        (lambda v: mixed_up(v, "new_queries"), "queries were swapped"),
        (swapped, "queries were swapped"),
        (lambda v: with_two_models(v, "old"), "file of old texts holds vectors of two models"),
        (lambda v: with_two_models(v, "new"), "file of new texts holds vectors of two models"),
    ],
)
def test_files_that_cannot_be_judged_get_no_verdict(
    spoil: Callable[[MigrationVectors], MigrationVectors], said: str
) -> None:
    torch.manual_seed(0)
    vectors, judgements = by_two_models(0.3, 0.1, old_dim=24, new_dim=24, count=1000)
    assert plan_migration(vectors, judgements)["unjudged"] == []
    report = plan_migration(spoil(vectors), judgements)
    assert (report["verdict"], report["accepted"]) == (None, [])
    assert any(said in reason for reason in report["unjudged"]), report["unjudged"]
    assert report["reasons"] == report["unjudged"]


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
