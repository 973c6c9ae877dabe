"""How far a version is from a past one: shared neighbours, and the quality of maps."""

from __future__ import annotations

import pytest
import torch

from evergram.compatibility.closed_forms import SecondMoments
from evergram.evaluation.version_distance import VectorPairs, mapping_readings, overlap


def test_overlap_counts_shared_neighbours() -> None:
    candidate = torch.eye(4)
    query = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    other = torch.tensor([[4.0, 1.0, 2.0, 3.0]])
    # {0, 1} against {0, 3}
    assert overlap(query, candidate, other, candidate, k=2) == 0.5
    assert overlap(query, candidate, query, candidate, k=2) == 1.0
    assert overlap(query, candidate, other, candidate, k=10) == 1.0


def test_a_perfect_map_keeps_all_and_doing_nothing_what_it_does() -> None:
    draw = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=draw))[0][:4]
    new = torch.randn(400, 6, generator=draw)
    old = new @ turn.T + 1
    held = SecondMoments(4, 6)
    held.add(old[:50], new[:50])
    sides = VectorPairs(old[:50], new[:50]), VectorPairs(old[50:], new[50:])
    readings = mapping_readings({"exact": (turn, torch.ones(4))}, held, *sides)
    assert readings["exact"]["cosine"] == pytest.approx(1, abs=1e-5)
    assert readings["exact"]["relative_error"] < 1e-5
    assert readings["exact"]["overlap@10"] > 0.99
    assert readings["exact"]["overlap@10_own_queries"] > 0.99
    raw = new[:50, :4]
    cosine = torch.nn.functional.cosine_similarity(raw, old[:50]).mean()
    assert readings["as_is"]["cosine"] == pytest.approx(float(cosine), abs=1e-5)
    error = (raw - old[:50]).square().sum() / old[:50].square().sum()
    assert readings["as_is"]["relative_error"] == pytest.approx(float(error.sqrt()), rel=1e-5)
    assert readings["as_is"]["overlap@10_own_queries"] < 0.3
