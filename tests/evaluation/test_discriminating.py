"""K of recall is lowered until a random order finds half of the targets at most."""

from __future__ import annotations

import pytest
import torch

from evergram.errors import DataError
from evergram.evaluation.discriminating import discriminating
from evergram.evaluation.ranking import Relevance


def relevance(*masked: int) -> Relevance:
    """A query for each number, which has seen so many candidates, each of them twice."""
    queries = torch.arange(len(masked))
    seen_query = torch.repeat_interleave(queries, 2 * torch.tensor(masked, dtype=torch.int64))
    seen = torch.cat([torch.zeros(0).long(), *(torch.arange(n).repeat(2) for n in masked)])
    return Relevance.of(queries, torch.full_like(queries, 14), seen_query, seen)


@pytest.mark.parametrize(
    ("name", "masked", "expected"),
    [
        ("recall@20", (0, 0), "recall@7"),  # 7/15 and not 8/15
        ("recall@15", (0, 0), "recall@7"),
        ("recall@14", (0, 0), "recall@7"),  # 14/15 are nearly all
        ("recall@13", (0, 0), "recall@13"),
        ("recall@10", (5, 5), "recall@5"),  # ten are left after masking
        ("recall@10", (5, 0), "recall@10"),  # 5/6 by chance
        ("recall@999999", (5, 5), "recall@5"),
        ("recall@3", (13, 13), "recall@1"),
        ("ndcg@20", (0, 0), "ndcg@20"),  # its order counts
        ("map@20", (0, 0), "map@20"),
    ],
)
def test_the_length_of_lists(name: str, masked: tuple[int, ...], expected: str) -> None:
    assert discriminating(name, relevance(*masked), 15) == expected
    assert discriminating(expected, relevance(*masked), 15) == expected


@pytest.mark.parametrize("name", ["recall@20", "ndcg@20"])
def test_one_candidate_that_is_left_makes_every_order_the_same(name: str) -> None:
    with pytest.raises(DataError, match="15 candidates"):
        discriminating(name, relevance(14, 14), 15)
    assert discriminating(name, relevance(), 15) == name
