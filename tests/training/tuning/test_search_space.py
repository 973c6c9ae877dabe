"""The values that a search may give to keys of a recipe."""

from __future__ import annotations

import math
import re
import statistics
from typing import Any

import pytest

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe
from evergram.training.tuning import KeyRange, SearchSpace

VALUES: dict[str, Any] = {"name": "small", "data": {"kind": "synthetic"}}


def test_a_text_is_a_range_a_range_by_logarithm_or_choices() -> None:
    assert KeyRange.parse("model.dim=16..128") == KeyRange("model.dim", 16, 128)
    assert KeyRange.parse("a.b=log:.01..1e2") == KeyRange("a.b", 0.01, 100.0, log=True)
    assert KeyRange.parse("a.b=-2..1.5") == KeyRange("a.b", -2, 1.5)
    assert KeyRange.parse("a.b = x, y") == KeyRange("a.b", choices=("x", "y"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model.dim", "names no key"),
        ("=1..2", "names no key"),
        ("a.b=", "names no key"),
        ("a.b=2..1", "smaller end first"),
        ("a.b=log:0..1", "above 0"),
        ("a.b=log:1,2", "no LOW..HIGH"),
        ("a.b=1,,2", "empty choice"),
        ("a.b=1,1", "twice"),
        ("a.b=one..2", "'one' is no number"),
        ("a.b=1..inf", "not finite"),
        ("a.b=nan..1", "not finite"),
    ],
)
def test_a_text_of_no_such_form_is_refused(text: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(problem)):
        KeyRange.parse(text)


def test_a_space_has_each_key_once_and_at_least_one() -> None:
    with pytest.raises(RecipeError, match=r"model\.dim comes twice"):
        SearchSpace.parse(["model.dim=1..2", "model.dim=3,4"])
    with pytest.raises(RecipeError, match="needs a key"):
        SearchSpace.parse([])


def test_a_trial_is_the_same_whichever_were_drawn_before() -> None:
    space = SearchSpace.parse(["model.dim=16..128", "training.epochs=1,2,3"])
    trials = [space.draw(3, trial) for trial in range(5)]
    assert space.draw(3, 4) == trials[4]
    assert len({tuple(trial) for trial in trials}) > 1
    assert [space.draw(4, trial) for trial in range(5)] != trials


def test_draws_are_even_and_by_logarithm_where_it_says_so() -> None:
    space = SearchSpace.parse(["a.whole=1..4", "a.log=log:1e-2..1e2", "a.one=x,y"])
    trials = [[one.partition("=")[2] for one in space.draw(0, trial)] for trial in range(2000)]
    whole, log, one = zip(*trials, strict=True)
    assert set(whole) == {"1", "2", "3", "4"}
    assert all(abs(whole.count(value) - 500) < 100 for value in set(whole))
    logarithms = [math.log10(float(value)) for value in log]
    assert min(logarithms) >= -2
    assert max(logarithms) <= 2
    assert abs(statistics.fmean(logarithms)) < 0.15
    assert abs(one.count("x") - 1000) < 150


def test_draws_of_a_space_are_overrides_of_a_recipe() -> None:
    space = SearchSpace.parse(["model.dim=log:16..128", "training.epochs=1,2"])
    space.checked(VALUES)
    recipe = Recipe.of(VALUES, space.draw(0, 0))
    assert recipe.training.epochs in (1, 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("model.dmi=1..2", "did you mean model.dim"), ("model.dim=0..8", "model.dim=0")],
)
def test_a_key_or_value_that_the_recipe_refuses_ends_in_a_sentence(text: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(problem)):
        SearchSpace.parse([text]).checked(VALUES)


def test_a_range_between_integers_is_of_numbers_where_the_key_takes_them() -> None:
    space = SearchSpace.parse(["task.penalty=log:1..100", "model.dim=8..16"]).checked(VALUES)
    penalty, dim = space.ranges
    assert (penalty.low, penalty.high) == (1.0, 100.0)
    assert isinstance(penalty.low, float)
    assert isinstance(dim.low, int)
