"""The best epoch is kept, patience ends a run, and a person is warned."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.several_processes import ended, start
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from evergram.evaluation.large_catalogues.metric_sample import MetricSample
from evergram.evaluation.ranking import popularity_metrics, rank_metrics
from evergram.evaluation.relevance import test_relevance as relevance_of_test
from evergram.training.build import prepare
from evergram.training.callbacks import Callback
from evergram.training.checkpoints.settings import CheckpointSettings
from evergram.training.corpora import load_corpus, split_for
from evergram.training.fit import RunContext, fit_encoder
from evergram.training.loop import Trainer
from evergram.training.monitors.early_stopping import EarlyStopping, time_to_reach
from evergram.training.monitors.evaluation_work import (
    LEAST,
    EvaluationPlan,
    RankingWork,
    dense_weights,
    different,
    epoch_work,
)
from evergram.training.monitors.final_metrics import final_metrics
from evergram.training.monitors.run_warnings import warned
from evergram.training.recipe import Recipe
from evergram.training.recipe.fit_settings import FitSettings
from evergram.training.recipe.training import TrainingRecipe

METRIC = "recall@20"


def follow(values: list[float], patience: int, select_after: int = 0) -> EarlyStopping:
    """Evaluations of epochs 1, 2, … until patience runs out or there are no more values."""
    stopping = EarlyStopping(METRIC, patience, select_after)
    for epoch, value in enumerate(values, 1):
        stopping.add({"epoch": epoch, METRIC: value}, last=epoch == len(values))
        if stopping.exhausted:
            break
    return stopping


def test_patience_is_counted_from_the_best() -> None:
    stopping = follow([0.1, 0.3, 0.2, 0.2, 0.4, 0.3, 0.3, 0.3, 0.5], patience=3)
    assert (stopping.best_epoch, stopping.best, len(stopping.history)) == (5, 0.4, 8)
    # The same value again is no better.
    assert len(follow([0.3, 0.3, 0.3, 0.3], patience=2).history) == 3
    # 0 goes on to the end.
    assert len(follow([0.3, 0.1, 0.1, 0.1], patience=0).history) == 4


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_a_run_that_goes_on_ends_where_it_would_have_ended(
    values: list[float], patience: int, cut: int
) -> None:
    """All that is saved are the history and the best: what patience is left follows from them."""
    whole = follow(values, patience)
    first = follow(values[:cut], patience) if cut else EarlyStopping(METRIC, patience)
    again = EarlyStopping(METRIC, patience, 0, list(first.history), first.best, first.best_epoch)
    for epoch in range(len(first.history) + 1, len(values) + 1):
        if again.exhausted:
            break
        again.add({"epoch": epoch, METRIC: values[epoch - 1]}, last=epoch == len(values))
    assert (again.best_epoch, len(again.history)) == (whole.best_epoch, len(whole.history))


def test_the_clock_of_a_metric() -> None:
    history = [{"seconds": 2.0, "recall@20": 0.1}, {"seconds": 4.0, "recall@20": 0.3}]
    assert time_to_reach(history, "recall@20", 0.2) == 4.0
    assert time_to_reach(history, "recall@20", 0.4) is None
    assert time_to_reach(history, "recall@20", None) is None


class Run:
    """What selection needs of a trainer."""

    def __init__(self) -> None:
        self.epoch, self.seconds = 0, 0.0
        self.shown: list[Mapping[str, float]] = []

    def parameters(self, earlier: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"encoder|epoch": torch.tensor(self.epoch)}

    def evaluated(self, record: Mapping[str, float]) -> None:
        self.shown.append(record)


def sampled(epochs: Sequence[Tensor], stopping: EarlyStopping) -> EarlyStopping:
    """Evaluate epochs by these values of each query, of very many, from where `stopping` is."""
    run = Run()
    for epoch in range(len(stopping.history) + 1, len(epochs) + 1):
        if stopping.exhausted:
            break
        run.epoch = epoch
        stopping.evaluate = lambda run: MetricSample(epochs[run.epoch - 1], 10**6)
        stopping.on_epoch(run, 1.0, last=epoch == len(epochs))  # type: ignore[arg-type]
    return stopping


def noisy(means: list[float], seed: int = 0) -> list[Tensor]:
    """Values of 400 queries: what a query is worth, what the epoch is, and a little of both."""
    draw = torch.Generator().manual_seed(seed)
    worth = torch.randn(400, generator=draw)
    return [(m + worth + 0.1 * torch.randn(400, generator=draw)).double() for m in means]


def test_patience_is_not_renewed_by_noise() -> None:
    """The best is still the largest mean; patience counts from the last that is seen to be so."""
    flat = noisy([0.0] + [0.5] * 60)
    stopping = sampled(flat, EarlyStopping(METRIC, 5))
    assert len(stopping.history) <= 12
    assert stopping.reference_epoch <= stopping.best_epoch
    assert stopping.best == max(record[METRIC] for record in stopping.history)
    # Every mean by itself has an error that hides all of this, but the same queries are compared.
    assert stopping.history[-1]["standard_error"] == pytest.approx(1 / 20, rel=0.15)


def test_small_gains_add_up() -> None:
    """Each epoch gains half a standard error of a paired difference, and none is left out."""
    error = 0.1 * math.sqrt(2 / 400)
    growing = sampled(noisy([0.5 * error * e for e in range(60)]), EarlyStopping(METRIC, 10))
    assert len(growing.history) == 60


@pytest.mark.parametrize("cut", [1, 7])
def test_a_sampled_run_goes_on_from_what_is_kept(cut: int) -> None:
    epochs = noisy([0.1, 0.3, 0.3, 0.2, 0.3, 0.31, 0.3, 0.3, 0.3, 0.3, 0.3])
    whole = sampled(epochs, EarlyStopping(METRIC, 4))
    part = sampled(epochs[:cut], EarlyStopping(METRIC, 4))
    again = EarlyStopping(METRIC, 4, 0, list(part.history), part.best, part.best_epoch, part.kept)
    sampled(epochs, again)
    assert again.history == whole.history or cut == len(whole.history)
    assert again.best_epoch == whole.best_epoch
    assert again.reference_epoch == whole.reference_epoch


def stopping(values: list[float], objectives: list[float]) -> EarlyStopping:
    made = EarlyStopping("recall@20")
    for epoch, (value, objective) in enumerate(zip(values, objectives, strict=True), 1):
        record = {"epoch": epoch, "recall@20": value, "objective": objective}
        made.add(record, last=epoch == len(values))
    return made


def test_a_best_that_is_the_last_names_the_limit_that_ended_it() -> None:
    settings = TrainingRecipe(epochs=2, budget=7.5)
    (sentence,) = warned(settings, stopping([0.1, 0.2], [1, 1]), "epochs", "version 3", logs=False)
    assert sentence.startswith("version 3: the best of 2 evaluations is the last (epoch 2, ")
    assert "raise training.epochs (2)" in sentence
    (sentence,) = warned(settings, stopping([0.1, 0.2], [1, 1]), "budget", "version 3", logs=False)
    assert "raise training.budget (7.5)" in sentence
    assert warned(settings, stopping([0.2, 0.1], [1, 1]), "epochs", "version 3", logs=False) == []


def test_an_objective_that_rises_by_more_than_noise() -> None:
    settings = TrainingRecipe()
    assert warned(settings, stopping([0.2, 0.1], [1.0, 1.05]), "patience", "x", logs=False) == []
    (sentence,) = warned(settings, stopping([0.2, 0.1], [1.0, 1.2]), "patience", "x", logs=False)
    assert "rose from 1 to 1.2" in sentence


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
