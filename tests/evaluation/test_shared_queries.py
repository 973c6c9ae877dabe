"""Metrics that several processes measure together; processes are simulated in threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.thread_processes import Threads, in_threads
from torch import Tensor

from evergram.collectives import ALONE
from evergram.errors import ShapeError
from evergram.evaluation import score_blocks
from evergram.evaluation.ranking import Relevance, query_metrics, rank_metrics
from evergram.evaluation.shared_queries import NOT_FINITE, measured_by_all

NAMES = ["recall@5", "ndcg@5", "map@3"]


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 4), max_size=7), size=st.integers(2, 5))
def test_each_block_is_measured_once_and_all_have_it(lengths: list[int], size: int) -> None:
    blocks = list(torch.split(torch.arange(sum(lengths)), lengths)) if lengths else []
    measured: list[int] = []

    def square(block: Tensor) -> dict[str, Tensor]:
        measured.extend(block.tolist())
        return {"square": block.double() ** 2, "third": block.double() / 3}

    names = ["square", "third"]
    alone = list(measured_by_all(square, iter(blocks), names, ALONE))
    measured.clear()
    results, processes = in_threads(
        size, lambda p: list(measured_by_all(square, iter(blocks), names, p))
    )
    assert sorted(measured) == list(range(sum(lengths)))
    for result in results:
        assert [[v.tolist() for v in block.values()] for block in result] == [
            [v.tolist() for v in block.values()] for block in alone
        ]
    assert processes[0].kinds == ["metrics"]


def ranking() -> tuple[Tensor, Tensor, Relevance]:
    """101 queries and 60 candidates, some of which are the same."""
    draw = torch.Generator().manual_seed(1)
    query, candidate = torch.randn(101, 7, generator=draw), torch.randn(60, 7, generator=draw)
    candidate[50:] = candidate[:10]
    pairs = torch.randint(0, 60, (4, 500), generator=draw)
    owners = torch.randint(0, 101, (2, 500), generator=draw)
    return query, candidate, Relevance.of(owners[0], pairs[0], owners[1], pairs[1])


@pytest.mark.parametrize("size", [2, 3])
def test_processes_have_the_numbers_of_one_bit_by_bit(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", 60 * 4 * 9)  # nine queries a block
    args = *ranking(), NAMES
    means, values = rank_metrics(*args), query_metrics(*args)
    assert 0 < means["recall@5"] < 1
    for together in in_threads(size, lambda p: rank_metrics(*args, together=p))[0]:
        assert together == means
    for shared in in_threads(size, lambda p: query_metrics(*args, together=p))[0]:
        assert all(torch.equal(shared[name], values[name]) for name in NAMES)


def test_a_score_that_is_not_finite_is_everyones_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process meets it; the others would wait for it for ever."""
    monkeypatch.setattr(score_blocks, "SCORE_BYTES", 60 * 4 * 9)
    query, candidate, relevance = ranking()
    query[relevance.queries[-1]] = torch.nan

    def sentence(process: Threads) -> str:
        with pytest.raises(ShapeError) as error:
            rank_metrics(query, candidate, relevance, NAMES, together=process)
        return str(error.value)

    assert in_threads(3, sentence)[0] == [NOT_FINITE] * 3
