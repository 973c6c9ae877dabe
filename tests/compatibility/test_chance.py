"""Chance against permutations of the objects that are really made."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from evergram.compatibility.chance import beside_chance
from evergram.compatibility.second_moments import SecondMoments
from evergram.evaluation.map_quality import VectorPairs, chance_reading

ROWS = 30


def randn(seed: int, *shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def moments(old: Tensor, new: Tensor) -> SecondMoments:
    sums = SecondMoments(old.shape[1], new.shape[1])
    sums.add(old, new)
    return sums


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_chance_is_the_error_over_permutations_of_the_objects(seed: int) -> None:
    new, weight, offset = randn(seed, ROWS, 5), randn(seed + 10, 4, 5) / 3, randn(seed + 20, 4)
    old = new @ weight.T + randn(seed + 30, ROWS, 4) + 1
    chance = beside_chance(moments(old, new), weight, offset)
    mapped = new @ weight.T + offset
    own = float((mapped - old).square().sum(1).mean())
    pairs = torch.cdist(mapped, old).square()
    others = float(pairs.sum() - pairs.diag().sum()) / (ROWS * (ROWS - 1))
    power = float(old.square().sum(1).mean())
    assert chance.relative_error == pytest.approx(math.sqrt(others / power))
    assert chance.ratio == pytest.approx(math.sqrt(own / others))
    draw = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(ROWS, generator=draw) for _ in range(20_000)])
    mixed = pairs[torch.arange(ROWS), orders].mean(1)
    assert chance.deviations == pytest.approx(float((mixed.mean() - own) / mixed.std()), rel=0.05)


def test_constant_and_random_vectors_are_no_better_than_chance() -> None:
    old = randn(0, ROWS, 4) + 3
    nothing = beside_chance(moments(old, torch.ones(ROWS, 2).double()), randn(1, 4, 2))
    assert nothing.ratio == pytest.approx(1)
    assert nothing.deviations == 0
    for seed in range(50):
        new = randn(seed + 100, ROWS, 3)
        weight = torch.linalg.lstsq(new[:15], old[:15]).solution.T
        assert abs(beside_chance(moments(old[15:], new[15:]), weight).deviations) < 4.5


def test_objects_that_are_there_several_times_count_once() -> None:
    new, weight = randn(0, ROWS, 5), randn(1, 4, 5)
    old = new @ weight.T + randn(2, ROWS, 4)
    once = beside_chance(moments(old, new), weight)
    repeated = moments(old.repeat(40, 1), new.repeat(40, 1))
    again = beside_chance(repeated, weight, objects=ROWS)
    assert again.deviations == pytest.approx(once.deviations)
    assert again.ratio == pytest.approx(once.ratio)
    assert again.relative_error == pytest.approx(once.relative_error)
    assert beside_chance(repeated, weight).deviations > 6 * once.deviations


def test_one_object_gives_no_figures() -> None:
    chance = beside_chance(moments(randn(0, 1, 2), randn(1, 1, 2)), torch.eye(2))
    assert math.isnan(chance.ratio)
    assert chance.deviations == 0


def test_the_reading_of_chance_is_that_of_mixed_up_objects() -> None:
    old, new, weight = randn(0, ROWS, 4) + 2, randn(1, ROWS, 4) + 2, torch.eye(4)
    chance = beside_chance(moments(old, new), weight)
    reading = chance_reading((weight, None), chance, VectorPairs(old.float(), new.float()), 40)
    cosines = torch.nn.functional.cosine_similarity(new[:, None], old[None], dim=2)
    off = (cosines.sum() - cosines.diag().sum()) / (ROWS * (ROWS - 1))
    assert reading["cosine"] == pytest.approx(float(off), abs=1e-5)
    assert reading["relative_error"] == chance.relative_error
    assert reading["overlap@10"] == reading["overlap@10_own_queries"] == 0.25
