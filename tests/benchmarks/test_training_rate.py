"""The bare step trains the same model as the loop, and its figures are ratios of rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from benchmarks.training_rate import LoopStep, Model, Rates, Shape, bare_of, corpus_of

from benchmarks import training_rate
from evergram.data.sampling import Batch

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


def test_every_pair_of_the_corpus_names_a_row_of_the_tables() -> None:
    corpus = corpus_of(SHAPE)
    assert (len(corpus), len(corpus.queries), len(corpus.candidates)) == (400, 30, 20)


def test_rates_are_bare_over_loop_by_block() -> None:
    rates = Rates([2.0] * 5, [1.0] * 5, [4.0] * 5, [3.0] * 5, [2.0] * 5, [1.8] * 5)
    model = Model("factorization", 4, 16)
    figures = {f.column: f for f in training_rate.figures({model: rates})}
    assert figures["loop over bare step"].values == [0.5] * 5
    assert figures["loop over bare step, processor time"].values == [0.9] * 5
    assert figures["loop with penalty over its step in memory"].values == [0.75] * 5
    assert figures["loop with penalty over bare step without"].values == [0.25] * 5
    assert figures["bare step"].unit == "ms"
    assert "| 0.50 | 0.90 | 0.75 | 0.25 |" in training_rate.table({model: rates})
    slower = replace(rates, loop=[2.0, 4.0, 2.0, 4.0, 2.0])
    figures = {f.column: f for f in training_rate.figures({model: slower})}
    assert figures["loop over bare step"].spread == 0.25
