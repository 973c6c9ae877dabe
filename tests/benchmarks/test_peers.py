"""Other libraries' models are judged in one way, whatever form their scores have."""

from __future__ import annotations

import pytest
import torch
from benchmarks.peer_models import Result
from benchmarks.peers import METRICS, PEERS, judge

from evergram.data.split import Split
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe


@pytest.fixture
def split(small: Recipe) -> Split:
    return split_for(small, load_corpus(small), 0)


@pytest.mark.parametrize("rows", [7, 1000])
def test_sparse_scores_are_judged_as_dense_ones(
    split: Split, generator: torch.Generator, rows: int
) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    query, candidate = (
        torch.randn(len(side), 8, generator=generator)
        for side in (split.training.queries, split.training.candidates)
    )
    dense = judge(Result(query, candidate, 0.0), split, split.test)
    matrices = Result(sparse.csr_matrix(query.numpy()), sparse.csr_matrix(candidate.numpy()), 0.0)
    assert 0 < dense["recall@20"] < 1
    assert judge(matrices, split, split.test, rows) == pytest.approx(dense)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_fits_and_is_judged(split: Split, name: str) -> None:
    pytest.importorskip(name.split("-")[0])
    settings = {key: values[0] for key, values in PEERS[name].grids[0].items()}
    result = PEERS[name].fit(split, **settings)
    metrics = judge(result, split, split.test)
    assert result.seconds > 0
    assert all(0 < metrics[metric] < 1 for metric in METRICS)
