"""Rankings by an index, against exact ones; and that no index is used unmeasured."""

from __future__ import annotations

import sys

import pytest
import torch
from tests.support.optional import need
from torch import Tensor

from evergram.errors import DataError, ShapeError
from evergram.evaluation.large_catalogues import candidate_index
from evergram.evaluation.large_catalogues.candidate_index import (
    CandidateIndex,
    IndexKind,
    index_metrics,
)
from evergram.evaluation.ranking import Relevance, query_metrics

need("faiss")
NAMES = ["recall@5", "ndcg@10", "map@10"]
KINDS: list[IndexKind] = ["hnsw", "ivf"]


@pytest.fixture(scope="module")
def case() -> tuple[Tensor, Tensor, Relevance]:
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 8, generator=draw)
    candidate = centres[torch.randint(20, (2000,), generator=draw)]
    candidate = candidate + 0.5 * torch.randn(2000, 8, generator=draw)
    query = candidate[:300] + 0.3 * torch.randn(300, 8, generator=draw)
    rows = torch.arange(300)
    held = torch.cat([rows, torch.randint(2000, (300,), generator=draw)])
    held[310] = -1
    seen_of = torch.randint(300, (5000,), generator=draw)
    seen = torch.randint(2000, (5000,), generator=draw)
    return query, candidate, Relevance.of(rows.repeat(2), held, seen_of, seen)


def test_an_index_that_looks_at_everything_ranks_exactly(
    case: tuple[Tensor, Tensor, Relevance], monkeypatch: pytest.MonkeyPatch
) -> None:
    query, candidate, relevance = case
    monkeypatch.setattr(candidate_index, "RECALL", 1.0)
    monkeypatch.setattr(candidate_index, "PLACES", 3000)
    index = CandidateIndex(candidate, "ivf")
    exact = query_metrics(query, candidate, relevance, NAMES)
    monkeypatch.setattr(index, "_search", lambda q, k, effort: every(index, q, k))
    values = index_metrics(query, relevance, index, NAMES)
    for name in NAMES:
        assert torch.allclose(values[name], exact[name], atol=1e-12), name


def every(index: CandidateIndex, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
    best = (query @ index.candidate.T).topk(k)
    return best.values, best.indices


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_by_an_index_are_as_near_as_its_recall(
    case: tuple[Tensor, Tensor, Relevance], kind: IndexKind
) -> None:
    query, candidate, relevance = case
    index = CandidateIndex(candidate, kind)
    values = index_metrics(query, relevance, index, NAMES)
    assert index.measured is not None
    assert 0.95 <= index.measured.recall <= 1
    assert (index.measured.k, index.measured.queries) == (10, 300)
    # The recall again, by lists of its own.
    _, places = index.search(query[relevance.queries], 10)
    truth = (query[relevance.queries] @ candidate.T).topk(10).indices
    share = sum(len(set(a) & set(b)) for a, b in zip(places.tolist(), truth.tolist(), strict=True))
    assert share / truth.numel() == pytest.approx(index.measured.recall, abs=0.01)
    exact = query_metrics(query, candidate, relevance, NAMES)
    for name in NAMES:
        assert float(values[name].mean()) == pytest.approx(float(exact[name].mean()), abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_was_not_measured_is_never_used(
    case: tuple[Tensor, Tensor, Relevance], kind: IndexKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, candidate, relevance = case
    index = CandidateIndex(candidate, kind)
    with pytest.raises(DataError, match="was not measured"):
        index.search(query, 3)
    with pytest.raises(DataError, match="there are 0"):
        index.measure(query[:0], 3)
    monkeypatch.setattr(candidate_index, "RECALL", 1.1)
    with pytest.raises(DataError, match="110% are needed"):
        index_metrics(query, relevance, index)
    assert index.measured is None
    with pytest.raises(ShapeError, match="dim 3"):
        index_metrics(torch.ones(2, 3), relevance, index)


def test_without_faiss_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(DataError, match=r"evergram\[faiss\]"):
        CandidateIndex(torch.ones(3, 2), "hnsw")
