"""What benchmarks of training draw, keep, resume and add up."""

from __future__ import annotations

import pytest
import torch
from benchmarks.peer_models import Result
from benchmarks.peers import judge
from benchmarks.training_rate import LoopStep, Model, Shape, bare_of, corpus_of

from evergram.data.sampling import Batch
from evergram.data.split import Split
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe

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
