"""The metrics of a version: of all test queries, and of a sample of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.support.several_processes import ended, start

from evergram.evaluation.ranking import popularity_metrics, rank_metrics
from evergram.evaluation.relevance import test_relevance as relevance_of_test
from evergram.training.corpora import load_corpus, split_for
from evergram.training.monitors.final_metrics import final_metrics
from evergram.training.recipe import Recipe

NAMES = ["recall@20", "ndcg@5"]


def test_all_queries_are_measured_as_ever_and_a_sample_by_its_seed() -> None:
    data = {"kind": "synthetic", "queries": 300, "candidates": 80, "interactions": 6000}
    recipe = Recipe.of({"data": data})
    split = split_for(recipe, load_corpus(recipe), 0)
    draw = torch.Generator().manual_seed(0)
    vectors = {"query": torch.randn(300, 4, generator=draw)}
    vectors["candidate"] = torch.randn(80, 4, generator=draw)
    test = relevance_of_test(split)
    whole = final_metrics(vectors, split, NAMES)
    assert whole.sample is None
    assert whole.queries == len(test)
    assert whole.metrics == {
        "model": rank_metrics(vectors["query"], vectors["candidate"], test, NAMES),
        "popularity": popularity_metrics(split.training.counts("candidate"), test, NAMES),
    }
    assert final_metrics(vectors, split, NAMES, len(test)) == whole
    part = final_metrics(vectors, split, NAMES, 40, seed=3)
    assert part.sample is not None
    assert (part.queries, part.sample.population) == (40, len(test))
    again = final_metrics(vectors, split, NAMES, 40, seed=3)
    assert again.metrics == part.metrics != whole.metrics
    errors = part.sample.as_json()["errors"]
    for model, values in part.metrics.items():
        for name, value in values.items():
            assert value == pytest.approx(whole.metrics[model][name], abs=4 * errors[model][name])


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Return what `tests.support.shared_evaluation` measures, by the number of processes."""
    folder = tmp_path_factory.mktemp("evaluations")
    for count in (1, 2, 3):
        out = str(folder / f"{count}.json")
        for code, output in ended(start(count, "-m", "tests.support.shared_evaluation", out)):
            assert code == 0, output
    return {n: json.loads((folder / f"{n}.json").read_text()) for n in (1, 2, 3)}


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 3])
def test_processes_measure_the_same_embeddings_bit_by_bit(
    evaluations: dict[int, Any], count: int
) -> None:
    fixed = evaluations[1]["fixed"]
    assert evaluations[count]["fixed"] == fixed
    assert fixed["whole"]["model"] != fixed["part"]["model"]
    assert fixed["sample"]["errors"]["model"]["recall@20"] > 0


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    "training", ["all queries", "a sample, patience", "towers, patience", "refit"]
)
def test_processes_select_the_epoch_of_one_by_its_numbers(
    evaluations: dict[int, Any], count: int, training: str
) -> None:
    """Parameters are the same up to rounding, so metrics are, as no two scores are that near."""
    alone, shared = evaluations[1][training], evaluations[count][training]
    for key in ("best", "ended", "sample", "metrics"):
        assert shared[key] == alone[key]
    records = zip(shared["history"], alone["history"], strict=True)
    for record, other in records:
        assert record == pytest.approx(other, rel=1e-5)
    assert ("standard_error" in alone["history"][0]) == ("sample" in training)
