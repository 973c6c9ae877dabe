"""The best epoch and the power of counts are chosen by held-out pairs, and patience ends a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fits import (
    CPU,
    killed_and_resumed,
    split_of,
    trainer_of,
    untimed,
)
from torch.utils.flop_counter import FlopCounterMode

from evergram.data.corpus import Corpus, take_ragged
from evergram.encoders.encoder import SIDES
from evergram.evaluation import ranking
from evergram.evaluation.metric_sample import MetricSample, sample_test
from evergram.evaluation.ranking import popularity_metrics, rank_metrics
from evergram.training.build import load_corpus, with_selecting_metric
from evergram.training.fit import RunContext, Trained, fit_encoder, warned
from evergram.training.recipe import Recipe
from evergram.training.recipe.tables import AdaptiveTraining
from evergram.training.resuming import CheckpointSettings
from evergram.training.selection import (
    LEAST,
    EarlyStopping,
    dense_weights,
    epoch_work,
    expected_distinct,
    final_metrics,
    queries_to_rank,
)

METRIC = "recall@20"


def follow(values: Sequence[float], patience: int, before: EarlyStopping) -> EarlyStopping:
    """Show evaluations of epochs 1, 2, … from where `before` is, until patience runs out."""
    before.patience = patience
    for epoch in range(len(before.history) + 1, len(values) + 1):
        if before.exhausted:
            break
        before.add({"epoch": epoch, METRIC: values[epoch - 1]}, last=epoch == len(values))
    return before


def test_patience_is_counted_from_the_best() -> None:
    values = [0.1, 0.3, 0.2, 0.2, 0.4, 0.3, 0.3, 0.3, 0.5]
    stopping = follow(values, 3, EarlyStopping(METRIC))
    assert (stopping.best_epoch, stopping.best, len(stopping.history)) == (5, 0.4, 8)
    # The same value again is no better, and 0 goes on to the end.
    for values, patience, epochs in (([0.3] * 4, 2, 3), ([0.3, 0.1, 0.1, 0.1], 0, 4)):
        assert len(follow(values, patience, EarlyStopping(METRIC)).history) == epochs


def test_patience_is_not_renewed_by_noise() -> None:
    """The best is still the largest mean; patience counts from the last that is seen to be so."""
    stopping = sampled([0.0] + [0.5] * 60, EarlyStopping(METRIC, 5))
    assert len(stopping.history) <= 12
    assert stopping.reference_epoch <= stopping.best_epoch
    assert stopping.best == max(record[METRIC] for record in stopping.history)
    # Every mean by itself has an error that hides all of this, but the same queries are compared.
    assert stopping.history[-1]["standard_error"] == pytest.approx(1 / 20, rel=0.15)
    # Gains of half a standard error of a paired difference add up, and none is left out.
    error = 0.1 * math.sqrt(2 / 400)
    growing = sampled([0.5 * error * e for e in range(60)], EarlyStopping(METRIC, 10))
    assert len(growing.history) == 60


def sampled(means: Sequence[float], stopping: EarlyStopping) -> EarlyStopping:
    """Evaluate epochs by a sample of 400 of very many queries, from where `stopping` is: what a
    query is worth, what the epoch is, and a little noise of both."""
    draw = torch.Generator().manual_seed(0)
    worth = torch.randn(400, generator=draw)
    epochs = [(m + worth + 0.1 * torch.randn(400, generator=draw)).double() for m in means]
    run: Any = SimpleNamespace(seconds=0.0, evaluated=lambda record: None)
    run.parameters = lambda earlier: {"encoder|epoch": torch.tensor(run.epoch)}
    stopping.evaluate = lambda run: MetricSample(epochs[run.epoch - 1], 10**6)
    for run.epoch in range(len(stopping.history) + 1, len(epochs) + 1):
        if stopping.exhausted:
            break
        stopping.on_epoch(run, 1.0, last=run.epoch == len(epochs))
    return stopping


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(0, 12),
    st.booleans(),
)
def test_a_run_that_goes_on_ends_where_it_would_have_ended(
    values: list[float], patience: int, cut: int, samples: bool
) -> None:
    """What patience is left follows from what is saved: of all queries, and of a sample."""

    def go_on(values: list[float], stopping: EarlyStopping) -> EarlyStopping:
        return sampled(values, stopping) if samples else follow(values, patience, stopping)

    whole = go_on(values, EarlyStopping(METRIC, patience))
    again = EarlyStopping(METRIC, patience)
    again.load_state_dict(go_on(values[:cut], EarlyStopping(METRIC, patience)).state_dict())
    go_on(values, again)
    assert (again.best_epoch, again.reference_epoch) == (whole.best_epoch, whole.reference_epoch)
    assert len(again.history) == len(whole.history)


@pytest.mark.parametrize(
    ("values", "objectives", "ended", "named"),
    [
        ([0.1, 0.2], [1, 1], "epochs", "raise training.epochs (2)"),
        ([0.1, 0.2], [1, 1], "budget", "raise training.budget (7.5)"),
        ([0.1, 0.2], [1, 1], "minutes", "raise --minutes"),
        ([0.2, 0.1], [1, 1.05], "patience", None),
        ([0.2, 0.1], [1, 1.2], "patience", "rose from 1 to 1.2"),
    ],
)
def test_a_best_that_is_the_last_and_an_objective_that_rises_are_said(
    values: list[float], objectives: list[float], ended: str, named: str | None
) -> None:
    stopping = EarlyStopping(METRIC)
    for epoch, (value, objective) in enumerate(zip(values, objectives, strict=True), 1):
        stopping.add({"epoch": epoch, METRIC: value, "objective": objective}, last=epoch == 2)
    settings = AdaptiveTraining(epochs=2, budget=7.5)
    sentences = warned(settings, stopping, ended, "version 3")
    assert len(sentences) == (named is not None)
    assert all("version 3" in sentence and str(named) in sentence for sentence in sentences)


DATA = {"kind": "synthetic", "queries": 200, "candidates": 100, "interactions": 4000}


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
    work = each, fixed
    ranked, every = queries_to_rank(queries, work, share, training)
    assert min(queries, LEAST) <= ranked <= queries
    spent = ranked * each + fixed
    # Rarer evaluations leave more training to each.
    assert spent <= max(1, int(share * training)) * every
    if ranked < queries:
        # One more query, or one epoch less between two, would be too many.
        assert spent + each > int(share * training) * max(1, every - 1)
    assert queries_to_rank(queries, work, "full", training) == (queries, 1)
    at_quarter = queries_to_rank(queries, work, 0.25, training)[0]
    assert queries_to_rank(queries, work, "auto", training)[0] >= at_quarter


def test_different_entities_are_those_of_draws() -> None:
    counts = torch.tensor([0, 1, 5, 20, 100])
    draw = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(counts.double(), 30 * 4000, replacement=True, generator=draw)
    mean = sum(len(torch.unique(part)) for part in torch.split(drawn, 30)) / 4000
    assert expected_distinct(counts, 30) == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize("overrides", ["", "task.penalty=[0.0]", "model.kind=two_tower"])
def test_training_is_counted_at_no_more_than_its_products_take(overrides: str) -> None:
    """torch counts the products of a step, two operations a multiply-add, and no update of a table;
    without products of matrices there is nothing that it counts."""
    values = {"data": DATA, "model": {"dim": 32}, "training": {"batch_size": 256}}
    recipe = Recipe.of(values, overrides.split())
    corpus = load_corpus(recipe)
    run = trainer_of(recipe, corpus=corpus)
    counts = {side: corpus.counts(side) for side in SIDES}
    counted = epoch_work(run, counts, passes_over_graph=False)
    batch = next(run.sampler.epoch(0))
    run.step.begin_epoch()
    with FlopCounterMode(display=False) as counter:
        run.step(batch)
    if "penalty" in overrides:
        assert counted == len(run.sampler) * 256 * 6 * 32
        return
    counted_step = counted / len(run.sampler) - 256 * 6 * 32
    done = counter.get_total_flops() / 2
    assert 0.3 * done < counted_step <= 1.05 * done
    assert epoch_work(run, counts, passes_over_graph=True) > counted
    assert (dense_weights(run.encoder) > 0) == (run.encoder.kind == "two_tower")


def test_a_run_samples_as_its_share_allows_and_resumes_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergram.training.selection.LEAST", 20)
    training = {"evaluate_share": 0.001, "epochs": 6, "patience": 3, "batch_size": 256}
    recipe = Recipe.of({"data": {**DATA, "queries": 800}, "training": training})
    split = split_of(recipe)
    whole = fit_encoder(recipe, split, 0, RunContext(CPU))
    assert [record["epoch"] for record in whole.history] == [3, 6]
    assert all(record["standard_error"] > 0 for record in whole.history)
    assert whole.sample is not None
    assert 20 <= whole.test_queries < whole.sample.population

    def run(**kept: Any) -> Trained:
        return fit_encoder(recipe, split, 0, RunContext(CPU, **kept))

    often = CheckpointSettings(every=1)
    again, _ = killed_and_resumed(monkeypatch, run, (4, 0), tmp_path, often)
    assert torch.equal(again.query, whole.query)
    assert again.metrics == whole.metrics
    assert untimed(again.history) == untimed(whole.history)


def test_pairs_are_read_only_if_the_metric_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"kind": "synthetic", "queries": 300, "candidates": 800, "interactions": 6000}
    recipe = Recipe.of({"data": data})
    split = split_of(recipe)
    monkeypatch.delattr(Corpus, "pairs_of")
    assert with_selecting_metric(recipe, split) == (recipe, [])


def test_all_queries_are_measured_as_ever_and_a_sample_by_its_seed() -> None:
    names = [METRIC, "ndcg@5"]
    data = {"kind": "synthetic", "queries": 300, "candidates": 80, "interactions": 6000}
    split = split_of(Recipe.of({"data": data}))
    draw = torch.Generator().manual_seed(0)
    vectors = {"query": torch.randn(300, 4, generator=draw)}
    vectors["candidate"] = torch.randn(80, 4, generator=draw)
    test = ranking.test_relevance(split)
    drawn, population = sample_test(split, 40, 3)
    assert (len(drawn), population) == (40, len(test))
    rows = torch.searchsorted(test.queries, drawn.queries)
    assert torch.equal(test.queries[rows], drawn.queries)
    for name, offsets in (("targets", "target_offsets"), ("seen", "seen_offsets")):
        one, other = ((getattr(r, name), getattr(r, offsets)) for r in (test, drawn))
        assert torch.equal(take_ragged(*one, rows)[0], other[0])
    whole, *rest = final_metrics(vectors, split, names)
    assert rest == [len(test), None]
    assert whole == {
        "model": rank_metrics(vectors["query"], vectors["candidate"], test, names),
        "popularity": popularity_metrics(split.training.counts("candidate"), test, names),
    }
    assert final_metrics(vectors, split, names, len(test)) == (whole, *rest)
    (part, ranked, sample), again = (
        final_metrics(vectors, split, names, 40, seed=3) for _ in range(2)
    )
    assert sample is not None
    assert (ranked, sample.population) == (40, len(test))
    assert again[0] == part != whole
    errors = sample.as_json()["errors"]
    for model, values in part.items():
        for name, value in values.items():
            assert value == pytest.approx(whole[model][name], abs=4 * errors[model][name])


POPULAR = Recipe.of(
    {
        "data": {"kind": "synthetic", "queries": 120, "candidates": 80, "interactions": 2500},
        "model": {"dim": 6, "normalize": True},
        "task": {"kind": "softmax_all", "temperature": 0.2},
        "training": {"epochs": 4, "patience": 0},
    }
)
