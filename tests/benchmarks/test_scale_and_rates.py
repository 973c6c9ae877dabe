"""What benchmarks of training draw, keep, resume and add up."""

from __future__ import annotations

import pytest
import torch
from benchmarks.training_rate import LoopStep, Model, Shape, bare_of, corpus_of

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
