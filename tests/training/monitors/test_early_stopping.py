"""The best epoch is kept, patience ends a run, and a person is warned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evergram.data.corpus import Vocabulary
from evergram.encoders.features import Schema
from evergram.encoders.hashed_rows import HashedRows
from evergram.evaluation.large_catalogues.metric_sample import MetricSample
from evergram.training.monitors.early_stopping import EarlyStopping, time_to_reach
from evergram.training.monitors.run_warnings import warned
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


def test_a_hash_that_gives_many_ids_one_row_is_said_for_each_table() -> None:
    ids = {side: Vocabulary(pa.array(range(1000))) for side in ("query.id", "candidate.id")}
    inputs = {"query": {"id": "query.id"}, "candidate": {"id": "candidate.id"}}
    schema = Schema(ids, inputs)
    quiet = (TrainingRecipe(), stopping([0.2, 0.1], [1, 1]), "epochs", "version 3")
    assert warned(*quiet, schema, logs=False) == []
    assert warned(*quiet, schema.with_hashed_rows(100_000), logs=False) == []
    sentences = warned(*quiet, schema.with_hashed_rows(1500), logs=False)
    shared = HashedRows(1500).shared(ids["query.id"].keys, "query.id")
    assert len(sentences) == 2
    assert f"1,000 ids in query.id, {100 * shared:.0f} % share one of 1,500 rows" in sentences[1]
