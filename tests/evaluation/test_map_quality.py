"""The quality of maps of vectors whose answers are known."""

from __future__ import annotations

import pytest
import torch

from evergram.compatibility.second_moments import SecondMoments
from evergram.evaluation.map_quality import VectorPairs, mapping_readings


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


def test_fewer_new_dims_are_filled_up_with_zeros() -> None:
    new, old = torch.tensor([[3.0]]), torch.tensor([[3.0, 4.0]])
    held = SecondMoments(2, 1)
    held.add(old, new)
    reading = mapping_readings({}, held, VectorPairs(old, new), VectorPairs(old, new))["as_is"]
    # (3, 0) against (3, 4)
    assert reading["cosine"] == pytest.approx(0.6)
    assert reading["relative_error"] == pytest.approx(0.8)
