"""Protocols of held-out pairs: what each marks, and how orders of models are compared."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from benchmarks.selection_protocols import (
    PROTOCOLS,
    Measured,
    newest_candidates,
    of_some_queries,
    random_pairs,
)

from evergram.data.corpus import Corpus


@pytest.fixture
def corpus() -> Corpus:
    """200 queries of 20 pairs each with 500 candidates, in shuffled order."""
    draw = torch.Generator().manual_seed(3)
    candidate = torch.stack([torch.randperm(500, generator=draw)[:20] for _ in range(200)])
    query = torch.arange(200)[:, None].expand(200, 20)
    order = torch.randperm(4000, generator=draw)
    pairs = {
        "query": query.flatten()[order].numpy(),
        "candidate": candidate.flatten()[order].numpy(),
    }
    return Corpus.of(pa.table(pairs))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocol_holds_out_a_small_share_that_its_generator_repeats(
    corpus: Corpus, protocol: str
) -> None:
    first, second = (
        PROTOCOLS[protocol](corpus, torch.Generator().manual_seed(1)) for _ in range(2)
    )
    assert first.shape == (len(corpus),)
    assert torch.equal(first, second)
    assert 0.01 < first.float().mean() < 0.2


def test_random_pairs_hold_out_a_tenth(corpus: Corpus) -> None:
    share = random_pairs(corpus, torch.Generator().manual_seed(0)).float().mean()
    assert share == pytest.approx(0.1, abs=0.02)


def test_of_some_queries_leaves_most_queries_all_their_pairs(corpus: Corpus) -> None:
    held = of_some_queries(corpus, torch.Generator().manual_seed(0))
    touched = torch.unique(corpus.column("query")[held])
    assert 20 < len(touched) < 60


def test_newest_candidates_are_the_two_highest_numbers_of_each_query(corpus: Corpus) -> None:
    held = newest_candidates(corpus, torch.Generator())
    keys = torch.tensor(corpus.candidates.vocabulary.keys.to_pylist())
    number, query = keys[corpus.column("candidate")], corpus.column("query")
    for row in range(200):
        own = query == row
        highest = sorted(number[own].tolist())[-2:]
        assert sorted(number[own & held].tolist()) == highest


def test_measured_compares_orders_and_says_what_its_choice_lacks() -> None:
    same = Measured("d", "p", [0.1, 0.2, 0.3], [0.2, 0.3, 0.4])
    other = Measured("d", "p", [0.1, 0.3, 0.2], [0.2, 0.3, 0.4])
    assert (same.kendall, same.regret) == (1.0, 0.0)
    assert other.kendall == pytest.approx(1 / 3)
    assert other.regret == pytest.approx(0.1)
