"""Write a recipe with a comment on each key, in the words of docs/recipes.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergram.training.first_recipe.survey import Survey
from evergram.training.tuning.best_recipe import toml_value

# By interactions: the dim up to so many, and the most epochs. Rules of thumb; 'evergram tune'
# searches both on the data itself.
DIMS = ((20_000, 16), (200_000, 32), (20_000_000, 64))
LARGEST_DIM = 128
EPOCHS = ((1_000_000, 100), (20_000_000, 50))
FEWEST_EPOCHS = 20


@dataclass(frozen=True)
class Settings:
    """The values of a first recipe that depend on the data."""

    name: str
    data: Mapping[str, Any]
    split: Mapping[str, Any]
    dim: int
    epochs: int


def dim_of(survey: Survey) -> int:
    """Return the dim for so much data: no more than half of the smaller side's ids, at least 2."""
    dim = next((dim for most, dim in DIMS if survey.rows <= most), LARGEST_DIM)
    return max(2, min(dim, min(survey.queries, survey.candidates) // 2))


def epochs_of(survey: Survey) -> int:
    """Return the most epochs for so much data; early stopping ends most runs before."""
    return next((most for rows, most in EPOCHS if survey.rows <= rows), FEWEST_EPOCHS)


def recipe_text(settings: Settings, survey: Survey) -> str:
    """Return the recipe as TOML, without a line break at its end."""
    return "\n".join(_lines(settings, survey))


def _lines(settings: Settings, survey: Survey) -> Iterator[str]:
    path = toml_value(settings.data["path"])
    yield f"# Written by evergram init for {path}:"
    for sentence in survey.sentences():
        yield f"# {sentence}"
    yield "# docs/recipes.md explains all keys; those that are not here have defaults."
    yield f"name = {toml_value(settings.name)}"
    yield ""
    yield "[data]"
    for key, value in settings.data.items():
        about = "" if key == "path" and Path(value).is_absolute() else _ABOUT.get(key, "")
        yield f"{key} = {toml_value(value)}{about}"
    if survey.lowest_value is not None:
        yield (
            f"# minimum_value = {survey.highest_value:g}  # would leave out interactions of a "
            "smaller value"
        )
    yield ""
    yield "[split]"
    for key, value in settings.split.items():
        yield f"{key} = {toml_value(value)}{_ABOUT.get(key, '')}"
    if survey.cold_share > 0.5:
        yield (
            "# More than half of what is held out has ids that training never sees; hold out less, "
            "or describe"
        )
        yield '# ids by features and set model.kind = "two_tower".'
    yield ""
    yield "[model]"
    yield 'kind = "factorization"  # a vector for each id'
    yield f"dim = {settings.dim}  # numbers of a vector; [{settings.dim}, N]: N from version 1 on"
    yield ""
    yield "[task]"
    yield 'penalty = "auto"  # λ, the weight of the penalty on all pairs: by the size of the data'
    yield 'l2 = "auto"  # the weight of squared norms, likewise'
    yield ""
    yield "[training]"
    yield f"epochs = {settings.epochs}  # at most"
    yield "patience = 10  # ends after so many evaluations that were no better"


# Comments on keys, after their values.
_ABOUT = {
    "path": "  # relative to this file",
    "columns": "  # the file's own names",
    "weights": "  # of the rows of each event",
    "bad_rows": "  # rows that cannot be used are left out, with a warning",
    "last": "  # the latest are held out: some choose the epoch, the others are reported",
    "share": "  # of the pairs are held out: some choose the epoch, the others are reported",
}
