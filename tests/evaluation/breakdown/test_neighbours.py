"""Nearest neighbours, against all cosines at once in float64."""

from __future__ import annotations

import pytest
import torch

from evergram.evaluation.breakdown import neighbours


@pytest.mark.parametrize("block", [7, 100])
def test_neighbours_are_those_of_all_cosines(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(neighbours, "ROWS", block)
    vectors = torch.randn(50, 4, generator=generator)
    rows = torch.tensor([3, 49, 20])
    wide = vectors.double()
    cosines = (wide @ wide.T) / (wide.norm(dim=1)[:, None] * wide.norm(dim=1))
    cosines.fill_diagonal_(-2)
    values, places = neighbours.nearest_neighbours(vectors, rows, 5)
    assert torch.equal(places, cosines[rows].argsort(descending=True)[:, :5])
    assert torch.allclose(values.double(), cosines[rows].sort(descending=True).values[:, :5])


def test_a_small_side_has_all_others() -> None:
    _, places = neighbours.nearest_neighbours(torch.eye(3), torch.tensor([1]), 5)
    assert sorted(places[0].tolist()) == [0, 2]
