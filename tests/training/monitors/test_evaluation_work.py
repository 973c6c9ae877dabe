"""How many queries an evaluation ranks follows from counted work alone; a version's metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.several_processes import ended, start
from torch.utils.flop_counter import FlopCounterMode

from evergram.evaluation.ranking import popularity_metrics, rank_metrics
from evergram.evaluation.relevance import test_relevance as relevance_of_test
from evergram.training.build import prepare
from evergram.training.callbacks import Callback
from evergram.training.checkpoints.settings import CheckpointSettings
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import Trainer
from evergram.training.monitors.evaluation_work import (
    LEAST,
    EvaluationPlan,
    RankingWork,
    dense_weights,
    different,
    epoch_work,
)
from evergram.training.monitors.final_metrics import final_metrics
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings

DATA = {"kind": "synthetic", "queries": 200, "candidates": 100, "interactions": 4000}


def trainer(**tables: dict[str, object]) -> Trainer:
    recipe = Recipe.of({"data": DATA, **tables})
    corpus = load_corpus(recipe)
    return Trainer(*prepare(FitSettings.of(recipe, corpus, 0), corpus, torch.device("cpu")))


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**9),
    st.integers(0, 10**12),
    st.integers(1, 10**16),
    st.floats(0.001, 2),
)
def test_evaluation_never_takes_more_than_its_share(
    queries: int, each: int, fixed: int, training: int, share: float
) -> None:
    work = RankingWork(queries, each, fixed)
    plan = work.plan(share, training)
    assert min(queries, LEAST) <= plan.queries <= queries
    spent = plan.queries * each + fixed
    # Rarer evaluations leave more training to each.
    assert spent <= max(1, int(share * training)) * plan.every
    if plan.queries < queries:
        # One more query, or one epoch less between two, would be too many.
        assert spent + each > int(share * training) * max(1, plan.every - 1)
    assert work.plan("full", training) == EvaluationPlan(queries)
    assert work.plan("auto", training).queries >= work.plan(0.25, training).queries


def test_different_entities_are_those_of_draws() -> None:
    counts = torch.tensor([0, 1, 5, 20, 100])
    draw = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(counts.double(), 30 * 4000, replacement=True, generator=draw)
    mean = sum(len(torch.unique(part)) for part in torch.split(drawn, 30)) / 4000
    assert different(counts, 30) == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize(
    "tables",
    [
        {"model": {"dim": 32}},
        {"model": {"dim": 32}, "task": {"penalty": [0.0]}},
        {"model": {"kind": "two_tower", "dim": 32}},
    ],
    ids=["penalty", "no penalty", "two towers"],
)
def test_training_is_counted_at_no_more_than_its_products_take(
    tables: dict[str, dict[str, object]],
) -> None:
    """torch counts the products of a step, two operations a multiply-add, and no update of a table;
    without products of matrices there is nothing that it counts."""
    run = trainer(**tables, training={"batch_size": 256})
    corpus = load_corpus(Recipe.of({"data": DATA, **tables}))
    counted = epoch_work(run, corpus, passes_over_graph=False)
    batch = next(run.sampler.epoch(0))
    run.step.begin_epoch()
    with FlopCounterMode(display=False) as counter:
        run.step(batch)
    if tables.get("task"):
        assert counted == len(run.sampler) * 256 * 6 * 32
        return
    counted_step = counted / len(run.sampler) - 256 * 6 * 32
    done = counter.get_total_flops() / 2
    assert 0.3 * done < counted_step <= 1.05 * done
    more = epoch_work(run, corpus, passes_over_graph=True)
    assert more > counted
    assert (dense_weights(run.encoder) > 0) == (run.encoder.kind == "two_tower")


@pytest.mark.parametrize("drawn", ["whole_queries", "examples"])
def test_scores_of_all_candidates_are_counted_and_never_too_many(drawn: str) -> None:
    tables: dict[str, dict[str, object]] = {
        "model": {"dim": 32, "normalize": True},
        "task": {"kind": "softmax_all", "positives": drawn},
    }
    run, corpus = trainer(**tables), load_corpus(Recipe.of({"data": DATA, **tables}))
    batches = list(run.sampler.epoch(0))
    run.step.begin_epoch()

    def added(_: object, left: list[int], right: list[int], **__: object) -> int:
        return 2 * left[0] * left[1] * right[1]

    # torch does not count the product that adds in place.
    in_place = {torch.ops.aten.addmm_: added}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        for batch in batches:
            run.step(batch)
    pairs = run.sampler.batch_size * len(batches) * 6 * 32
    counted = epoch_work(run, corpus, passes_over_graph=False) - pairs
    done = counter.get_total_flops() / 2
    assert 0 < counted <= 1.05 * done
    if drawn == "whole_queries":
        assert counted > 0.3 * done


def test_a_run_samples_as_its_share_allows_and_resumes_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed after its fourth epoch ends as one that was not."""
    monkeypatch.setattr("evergram.training.monitors.evaluation_work.LEAST", 20)
    training = {"evaluate_share": 0.001, "epochs": 6, "patience": 3, "batch_size": 256}
    recipe = Recipe.of({"data": {**DATA, "queries": 800}, "training": training})
    split = split_for(recipe, load_corpus(recipe), 0)
    context = RunContext(torch.device("cpu"))
    whole = fit_encoder(recipe, split, 0, context)
    assert [record["epoch"] for record in whole.history] == [3, 6]
    assert all(record["standard_error"] > 0 for record in whole.history)
    assert whole.sample is not None
    assert 20 <= whole.test_queries < whole.sample.population

    class Killed(Callback):
        def on_epoch_end(self, run: Trainer, last: bool) -> None:
            if run.epoch == 4:
                raise KeyboardInterrupt

    kept = replace(context, folder=tmp_path, checkpoints=CheckpointSettings(steps=1))
    with pytest.raises(KeyboardInterrupt):
        fit_encoder(recipe, split, 0, replace(kept, callbacks=[Killed()]))
    again = fit_encoder(recipe, split, 0, kept)
    assert torch.equal(again.query, whole.query)
    assert again.metrics == whole.metrics
    drop = {"seconds"}
    histories = [
        [{k: v for k, v in record.items() if k not in drop} for record in each.history]
        for each in (whole, again)
    ]
    assert histories[0] == histories[1]


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
