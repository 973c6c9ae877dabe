"""The values that a search may give to keys of a recipe."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe

_FORMS = (
    "write KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,VALUE,…, as in "
    "task.penalty=log:1e-2..1e2, model.dim=16..128 or model.dim=32,64,128"
)
# The default search. A softmax over all candidates needs no penalty: its temperature decides most.
OF_SOFTMAX = ("task.temperature=log:0.03..1.0", "task.push=0.8..1.5")
OF_OTHERS = ("task.penalty=log:0.01..10.0", "task.l2=log:1e-5..0.1")
# Only for a recipe that has neighbours, which take memory by the size of the catalogue.
OF_NEIGHBOURS = "task.neighbour_share=0.02..0.5"
SOFTMAX_KINDS = ("softmax_all", "softmax_clustered")
# A step of Adam is as long as the rate; other optimisers divide the rate by past gradients.
RATES = ("training.table_rate=log:0.01..1.0", "training.layer_rate=log:1e-4..0.03")
RATES_OF_ADAM = ("training.table_rate=log:0.001..0.1", RATES[1])


@dataclass(frozen=True)
class KeyRange:
    """The values of one key: from `low` to `high`, both included, or one of `choices`.

    Args:
        key: "table.key".
        low, high: integers or floats; None where there are choices.
        log: whether the search is uniform in the logarithm.
        choices: values as TOML writes them, or bare words.
    """

    key: str
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    choices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the range in a text such as "model.dim=16..128", "task.penalty=log:0.1..10" or
        "model.dim=32,64".

        Raises: RecipeError.
        """
        key, _, values = (part.strip() for part in text.partition("="))
        if not (key and values):
            raise RecipeError(f"{text!r} has no key or no values; {_FORMS}.")
        log, ends = values.startswith("log:"), values.removeprefix("log:")
        if log or ".." in ends:
            first, _, last = ends.partition("..")
            low, high = _number(text, first), _number(text, last)
            if low >= high or (log and low <= 0):
                raise RecipeError(
                    f"{text!r} goes from {low} to {high}; write the smaller end first, and start "
                    "a range by logarithm above 0."
                )
            return cls(key, low, high, log)
        choices = tuple(choice.strip() for choice in values.split(","))
        if not all(choices) or len(set(choices)) < len(choices):
            raise RecipeError(f"{text!r} has an empty choice, or one twice; {_FORMS}.")
        return cls(key, choices=choices)

    def ends(self) -> tuple[str, ...]:
        """Return the values that bound this range, or all choices, as TOML writes them."""
        return self.choices or (repr(self.low), repr(self.high))

    def values(self) -> Sequence[int | str] | None:
        """Return all values; None for a range of floats."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return range(self.low, self.high + 1)
        return self.choices or None


@dataclass(frozen=True)
class SearchSpace:
    """The ranges of all keys that a search may set."""

    ranges: tuple[KeyRange, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Return the space of several texts, each as in `KeyRange.parse`. Raises: RecipeError."""
        ranges = tuple(KeyRange.parse(text) for text in texts)
        keys = [one.key for one in ranges]
        for key in keys:
            if keys.count(key) > 1:
                raise RecipeError(f"The key {key} comes twice in the search; write it once.")
        return cls(ranges)

    def checked(self, values: Mapping[str, Any], folder: Path | None = None) -> Self:
        """Return the space for a recipe, which must allow both ends of each range and each choice.

        A range between integers becomes one of floats where the recipe's key takes floats.

        Args:
            values: of a recipe, as in `Recipe.of`.
            folder: where its relative paths start.
        Raises: RecipeError: a key is unknown or has no effect, or a value is not allowed.
        """
        ranges = []
        for one in self.ranges:
            for end in one.ends():
                override = f"{one.key}={end}"
                source = f"The search over {override}"
                Recipe.of(values, [override], folder=folder, source=source)
            if isinstance(one.low, int) and isinstance(one.high, int):
                try:
                    Recipe.of(values, [f"{one.key}={one.low + 0.5}"], folder=folder)
                    one = replace(one, low=float(one.low), high=float(one.high))
                except RecipeError:
                    pass
            ranges.append(one)
        return replace(self, ranges=tuple(ranges))

    def combinations(self, limit: int) -> list[dict[str, int | str]] | None:
        """Return the values of every possible trial; None if there are more than `limit`."""
        each = [values for one in self.ranges if (values := one.values()) is not None]
        if len(each) < len(self.ranges) or math.prod(map(len, each)) > limit:
            return None
        keys = [one.key for one in self.ranges]
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(*each)]


def default_space(recipe: Recipe) -> SearchSpace:
    """Return the default ranges of the keys that the recipe's task and model use.

    Raises: RecipeError: there are none.
    """
    texts = list(OF_SOFTMAX if recipe.task.kind in SOFTMAX_KINDS else OF_OTHERS)
    if getattr(recipe.task, "neighbour_share", 0.0):
        texts.append(OF_NEIGHBOURS)
    texts += RATES_OF_ADAM if recipe.training.optimizer == "adam" else RATES
    used = [text for text in texts if _is_used(recipe, text)]
    if not used:
        raise RecipeError(f"This recipe uses no key that is searched by default; {_FORMS}.")
    return SearchSpace.parse(used)


def _is_used(recipe: Recipe, text: str) -> bool:
    try:
        SearchSpace.parse([text]).checked(recipe.model_dump())
    except RecipeError:
        return False
    return True


def _number(text: str, written: str) -> float | int:
    for kind in (int, float):
        try:
            value = kind(written)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    raise RecipeError(f"{text!r}: {written!r} is not a finite number; {_FORMS}.")
