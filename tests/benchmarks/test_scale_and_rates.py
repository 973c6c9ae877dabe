"""What benchmarks of training draw, keep, resume and add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from benchmarks.peer_models import Result
from benchmarks.peers import judge
from benchmarks.published_peers import Tuned, tune
from benchmarks.published_splits import Kept
from benchmarks.scale_model import (
    Cluster,
    Size,
    StepRates,
    exchanged,
    gathered_batch,
    parts,
    plan,
    seconds,
    shares,
)
from benchmarks.training_rate import LoopStep, Model, Shape, bare_of, corpus_of
from benchmarks.which_loss import OBJECTIVES, _row
from hypothesis import given
from hypothesis import strategies as st
from tests.support.optional import need

from benchmarks import published_peers
from evergram.data.sampling import Batch
from evergram.data.split import Split
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe

RATES = StepRates(1e-3, 1e-7, 2e-7, 3e-7, 5e-8, 4e-8, 1e-10, 1e-11)
SIZE = Size(1000, 5000, 4, 16)


def test_each_rate_is_charged_for_what_it_is_of() -> None:
    work = parts(SIZE, RATES)
    assert work["calls"] == 1e-3
    assert work["rows read"] == pytest.approx(32 * 1e-7)
    assert work["rows moved"] == pytest.approx(32 * 2.5e-7)
    assert work["matrix products"] == pytest.approx(4 * 2 * 16 * 16 * 1e-11)
    assert seconds(SIZE, RATES) == pytest.approx(sum(work.values()))
    assert sum(shares(work).values()) == pytest.approx(1)


@given(st.integers(2, 64), st.integers(1, 10_000), st.integers(1, 64))
def test_the_gramians_exchange_does_not_know_the_batch(
    processes: int, batch: int, dim: int
) -> None:
    one, other = (exchanged(Size(10, 10, dim, size), processes) for size in (batch, 2 * batch))
    assert one["Gramians"] == other["Gramians"]
    assert other["rows"] == pytest.approx(2 * one["rows"])
    # A ring sends each of the P chunks of 2 D² floats P − 1 times, twice.
    chunk = 2 * dim * dim * 4 / processes
    assert one["Gramians"] == pytest.approx(2 * (processes - 1) * chunk)
    assert gathered_batch(Size(10, 10, dim, batch), processes) == pytest.approx(
        (processes - 1) * 2 * batch * dim * 4
    )


def test_one_process_exchanges_nothing_and_takes_its_steps_one_after_the_other() -> None:
    alone = Cluster(memory=1e9, processes=1, bandwidth=1e30)
    made = plan(SIZE, RATES, 1, alone)
    assert set(made.exchanged.values()) == {0}
    assert made.hours == pytest.approx(5000 / 16 * seconds(SIZE, RATES) / 3600)
    # Twice the machines halve an epoch, but for what they exchange.
    free = Cluster(memory=1e9, processes=1, bandwidth=1e30, network=1e30)
    assert plan(SIZE, RATES, 2, free).hours == pytest.approx(made.hours / 2)


SHAPE = Shape(30, 20, 400)


@pytest.mark.parametrize("kind", ["factorization", "two_tower"])
def test_the_bare_step_does_what_a_step_without_a_penalty_does(kind: str) -> None:
    corpus = corpus_of(SHAPE)
    loop = LoopStep(Model(kind, 4, 16), corpus, ["task.penalty=0.0"])
    bare = bare_of(loop, corpus, 5)
    batches: list[Batch] = loop.batches(5)
    loop.step.begin_epoch()
    for batch in batches:
        loop.step(batch)
        bare()
    pairs = zip(loop.step.encoder.parameters(), bare.encoder.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.fixture
def split(small: Recipe) -> Split:
    return split_for(small, load_corpus(small), 0)


def test_sparse_scores_are_judged_as_dense_ones(split: Split, generator: torch.Generator) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    query, candidate = (
        torch.randn(len(side), 8, generator=generator)
        for side in (split.training.queries, split.training.candidates)
    )
    dense = judge(Result(query, candidate, 0.0), split, split.test)
    matrices = Result(sparse.csr_matrix(query.numpy()), sparse.csr_matrix(candidate.numpy()), 0.0)
    assert 0 < dense["recall@20"] < 1
    assert judge(matrices, split, split.test, 7) == pytest.approx(dense)


need("optuna")

RANGES = {"alpha": (1.0, 200.0, "log"), "iterations": (2.0, 32.0, "whole")}


def test_a_search_that_was_interrupted_fits_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Judged:
        selection = None

    monkeypatch.setattr(published_peers, "judge", lambda result, *_: {"recall@20": result})
    fits: list[float] = []
    left = [3]

    def fit(split: Any, *, factors: int, alpha: float, iterations: int) -> float:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        fits.append(alpha)
        return -((alpha - 20) ** 2) - iterations

    peer, split = Tuned(cast("Any", fit), RANGES), cast("Split", Judged())
    kept = Kept(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        tune(peer, split, 8, kept.get, 6)
    left[0] = 100
    resumed = tune(peer, split, 8, kept.get, 6)
    assert len(fits) == 6
    fits.clear()
    assert tune(peer, split, 8, Kept(tmp_path / "anew").get, 6) == resumed
    assert len(fits) == 6


def test_nothing_is_trained_where_only_kept_results_are_wanted(tmp_path: Path) -> None:
    values = {
        "data": {"kind": "synthetic", "queries": 40, "candidates": 30, "interactions": 400},
        "split": {"kind": "random", "share": 0.2},
        "model": {"dim": 2},
    }
    short = ["training.epochs=1"]
    assert not _row("d", values, 1, range(2), tmp_path, short, trains=False).recalls
    made = _row("d", values, 1, range(2), tmp_path, short)
    assert set(made.recalls) == set(OBJECTIVES)
    assert _row("d", values, 1, range(2), tmp_path, short, trains=False) == made
