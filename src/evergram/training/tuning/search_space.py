"""The values that a search may give to keys of a recipe."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from evergram.errors import RecipeError
from evergram.training.recipe import Recipe

_FORMS = (
    "write KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=VALUE,VALUE,…, as in "
    "task.penalty=log:1e-2..1e2, model.dim=16..128 or model.dim=32,64,128"
)


@dataclass(frozen=True)
class KeyRange:
    """The values of one key: from `low` to `high`, both included, or one of `choices`.

    Args:
        key: of a recipe, "table.key".
        low: the least value; with `high`, None where there are choices.
        high: the largest value. The values are integers if both ends are (see
            `SearchSpace.checked`).
        log: whether the logarithm of the value is drawn evenly, not the value.
        choices: values as TOML writes them, or bare words; none where there is a range.
    """

    key: str
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    choices: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the range that a text describes: "model.dim=16..128", "task.penalty=log:0.1..10",
        "model.dim=32,64".

        Raises: RecipeError: the text is of no such form, the ends do not ascend, a range by
            logarithm does not start above 0, or a choice is missing or written twice.
        """
        key, equals, values = (part.strip() for part in text.partition("="))
        if not (key and equals and values):
            raise RecipeError(f"{text!r} names no key and its values; {_FORMS}.")
        log = values.startswith("log:")
        ends = values.removeprefix("log:")
        if ".." in ends:
            return cls._between(text, key, ends, log)
        if log:
            raise RecipeError(f"{text!r} has log: but no LOW..HIGH; {_FORMS}.")
        choices = tuple(choice.strip() for choice in values.split(","))
        if not all(choices):
            raise RecipeError(f"{text!r} has an empty choice; {_FORMS}.")
        if len(set(choices)) < len(choices):
            raise RecipeError(f"{text!r} has a choice twice; write each value once.")
        return cls(key, choices=choices)

    @classmethod
    def _between(cls, text: str, key: str, ends: str, log: bool) -> Self:
        first, _, last = ends.partition("..")
        low, high = _number(text, first), _number(text, last)
        if low >= high:
            raise RecipeError(f"{text!r} goes from {low} to {high}; write the smaller end first.")
        if log and low <= 0:
            raise RecipeError(f"{text!r} starts at {low}; a range by logarithm starts above 0.")
        return cls(key, low, high, log)

    def ends(self) -> tuple[str, ...]:
        """Return the values that bound this range, or all choices, as TOML writes them."""
        return self.choices or (repr(self.low), repr(self.high))

    @property
    def size(self) -> int | None:
        """How many different values it has; None of numbers that are not whole."""
        if self.low is None or self.high is None:
            return len(self.choices)
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return int(self.high) - int(self.low) + 1 if whole else None

    def values(self) -> Sequence[int | str]:
        """Return all values of a range with a `size`, as Optuna has them."""
        if self.low is None or self.high is None:
            return self.choices
        return range(int(self.low), int(self.high) + 1)

    def draw(self, generator: random.Random) -> str:
        """Return a value drawn evenly, by its logarithm where `log` is set, as TOML writes it."""
        if self.low is None or self.high is None:
            return generator.choice(self.choices)
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        if whole and not self.log:
            return repr(generator.randint(int(self.low), int(self.high)))
        value: float = generator.uniform(self.low, self.high)
        if self.log:
            value = math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        value = min(max(value, self.low), self.high)
        return repr(round(value)) if whole else repr(float(value))


@dataclass(frozen=True)
class SearchSpace:
    """The ranges of all keys that a search may set."""

    ranges: tuple[KeyRange, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Return the space of several texts, one a key, each as of `KeyRange.parse`.

        Raises: RecipeError: there is none, one is of no such form, or a key comes twice.
        """
        if not texts:
            raise RecipeError(f"A search needs a key to search over; {_FORMS}.")
        ranges = tuple(KeyRange.parse(text) for text in texts)
        keys = [one.key for one in ranges]
        for key in keys:
            if keys.count(key) > 1:
                raise RecipeError(f"The key {key} comes twice in the search; write it once.")
        return cls(ranges)

    def checked(self, values: Mapping[str, Any], folder: Path | None = None) -> Self:
        """Return the space for a recipe, which allows both ends of each range, and each choice.

        Ranges between integers stay ranges of integers only where the recipe's key is one.

        Args:
            values: of a recipe, as of `Recipe.of`.
            folder: where its relative paths start.
        Raises: RecipeError: a key is unknown or changes nothing, or a value is not allowed.
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
                except RecipeError:
                    ranges.append(one)
                else:
                    ranges.append(replace(one, low=float(one.low), high=float(one.high)))
            else:
                ranges.append(one)
        return replace(self, ranges=tuple(ranges))

    @property
    def size(self) -> int | None:
        """How many different values it has in all; None if they are not countable."""
        sizes = [one.size for one in self.ranges]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def all_values(self) -> Iterator[dict[str, int | str]]:
        """Yield the values of every trial that there can be; of a space with a `size`."""
        for values in itertools.product(*(one.values() for one in self.ranges)):
            yield dict(zip((one.key for one in self.ranges), values, strict=True))

    def draw(self, seed: int, trial: int) -> list[str]:
        """Return the overrides of a trial, "table.key=value" each: the same for the same seed and
        trial, whichever trials were drawn before."""
        generator = random.Random(f"{seed}/{trial}")
        return [f"{one.key}={one.draw(generator)}" for one in self.ranges]


def _number(text: str, written: str) -> float | int:
    try:
        return int(written)
    except ValueError:
        pass
    try:
        value = float(written)
    except ValueError:
        raise RecipeError(f"{text!r}: {written!r} is no number; {_FORMS}.") from None
    if not math.isfinite(value):
        raise RecipeError(f"{text!r}: {written!r} is not finite; {_FORMS}.")
    return value
