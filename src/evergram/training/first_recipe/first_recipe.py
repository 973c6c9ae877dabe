"""From a path to a first recipe, and to what was seen on the way."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergram.data.corpus import Corpus
from evergram.data.prepared.record import PreparedRecord
from evergram.data.split import Split
from evergram.errors import DataError
from evergram.lineage.paths import is_name
from evergram.training.corpora import load_corpus, split_for
from evergram.training.first_recipe.sources import Source, source_at
from evergram.training.first_recipe.survey import Survey
from evergram.training.pilots import expected_time, in_words
from evergram.training.recipe import Recipe
from evergram.training.tuning.best_recipe import toml_value

# The share of the latest interactions that is held out of this many, and of fewer.
LATEST, MANY, LATEST_OF_FEW = "5 %", 100_000, "10 %"
# Pairs that select, and pairs that test, of which a split by time must have so many.
LEAST = 30
AT_RANDOM = {"kind": "random", "share": 0.1}


@dataclass(frozen=True)
class FirstRecipe:
    """A recipe that fits data, and what the data is.

    Args:
        text: the recipe as TOML, with comments; `recipe`: the same, checked.
        source: the kind of the data, and its columns.
        survey: what is in it.
        seconds: that `train` will take, roughly.
        split_again: why pairs are held out at random although there are times.
    """

    text: str
    recipe: Recipe
    source: Source
    survey: Survey
    seconds: float
    split_again: str | None = None

    def sentences(self) -> Iterator[str]:
        """Yield what was seen, and what was guessed, in sentences."""
        source = self.source
        yield f"Read as {source.kind}."
        if source.columns:
            listed = ", ".join(f"{role} is {name}" for role, name in source.columns.items())
            yield f"Columns: {listed}."
        by_name = [role for role in source.guessed if role not in source.by_content]
        if by_name:
            yield f"Guessed by their names: {', '.join(by_name)}; --column ROLE=NAME names another."
        for role in source.by_content:
            yield f"Guessed by its cells: {role}; --column {role}=NAME names another."
        if source.unread:
            unread = ", ".join(name or "a column without a name" for name in source.unread)
            yield (
                f"Not read: {unread}; --column time=NAME, value=NAME or weight=NAME reads one, and "
                "--weight EVENT=NUMBER makes a weight of the name of an event."
            )
        yield from self.survey.sentences()
        if source.naive:
            yield "The times have no zone; they are read as UTC."
        took = in_words(self.seconds)
        yield f"Training takes {took} on an ordinary computer, once the data is read."
        if self.split_again:
            yield self.split_again

    def as_json(self) -> dict[str, Any]:
        source, recipe = self.source, self.recipe
        return {
            "kind": source.kind,
            "columns": dict(source.columns),
            "guessed": list(source.guessed),
            "unread": list(source.unread),
            **self.survey.as_json(),
            "split": recipe.split.kind,
            "dim": recipe.model.dim_of(0),
            "epochs": recipe.training.epochs,
            "seconds": round(self.seconds, 1),
        }


def first_recipe(
    path: Path,
    *,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    weights: Mapping[str, float] | None = None,
    folder: Path | None = None,
    drop_bad_rows: bool = False,
) -> FirstRecipe:
    """Return a recipe for the interactions at a path.

    With times the latest 5 % are held out (10 % of fewer than 100,000), else a tenth of the pairs
    at random, also where so short a time has too few pairs to judge by.

    Args:
        path: a file or folder that `data.path` of a recipe can name.
        kind: as `data.kind`; None tells it by the path.
        columns: by role, columns of a table; the others are told by their names.
        weights: by name of an event, as `data.weights`.
        drop_bad_rows: leave out the rows that cannot be used, as `data.bad_rows = "drop"`.
        folder: where the recipe will be, to which its path is relative; None for the working one.
    Raises: DataError: the data cannot be read, the kind or a column cannot be told, or there is too
        little data to judge a model by.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise DataError(
            f"The path {str(path)!r} is not in UTF-8, as a recipe must be; rename the file."
        ) from None
    source = source_at(path, kind, columns, weights)
    name, where = _name_of(path, source.kind), _path_from(folder or Path(), path)
    data: dict[str, Any] = {"kind": source.kind, "path": where}
    if source.renamed:
        data["columns"] = source.renamed
    if weights:
        data["weights"] = dict(weights)
    if drop_bad_rows:
        data["bad_rows"] = "drop"

    def recipe_of(more: Mapping[str, Any]) -> Recipe:
        values = {"name": name, "data": data, **more}
        return Recipe.of(values, folder=folder or Path())

    corpus = load_corpus(recipe_of({}))
    held, split, split_again = _split(recipe_of, corpus)
    survey = Survey.of(corpus, split)
    settings = Settings(name, data, held, dim_of(survey), epochs_of(survey))
    text = recipe_text(settings, survey)
    recipe = Recipe.of(tomllib.loads(text), folder=folder or Path())
    seconds = expected_time(recipe, split).total
    return FirstRecipe(text, recipe, source, survey, seconds, split_again)


def _split(recipe_of: Any, corpus: Corpus) -> tuple[dict[str, Any], Split, str | None]:
    """Return the table [split], the split by it, and why it is not by time if times are there."""
    if not corpus.has_times:
        return AT_RANDOM, split_for(recipe_of({"split": AT_RANDOM}), corpus, 0), None
    by_time = {"kind": "time", "last": LATEST if len(corpus) >= MANY else LATEST_OF_FEW}
    try:
        timed = split_for(recipe_of({"split": by_time}), corpus, 0)
    except DataError:
        timed = None
    if timed is not None and _judges(timed) >= LEAST:
        return by_time, timed, None
    split = split_for(recipe_of({"split": AT_RANDOM}), corpus, 0)
    if timed is not None and _judges(timed) >= _judges(split):
        return by_time, timed, None
    why = (
        f"Pairs are held out at random, although there are times: the last {by_time['last']} hold "
        f"fewer than {LEAST} new pairs to select by, or to test by."
    )
    return AT_RANDOM, split, why


def _judges(split: Split) -> int:
    """Return the pairs that select, or those that test: the fewer."""
    return min(len(split.selection), len(split.test))


def _name_of(path: Path, kind: str) -> str:
    """Return a name for the recipe, of the letters of the path's that a name may have; a prepared
    corpus has a name of its own."""
    stem = path.resolve().name.split(".")[0]
    if kind == "prepared":
        stem = PreparedRecord.load(path).name
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:60].strip("-_")
    return name if is_name(name) else "embeddings"


def _path_from(folder: Path, path: Path) -> str:
    """Return a path as a recipe in `folder` names it: relative unless it was given as absolute."""
    return str(path) if path.is_absolute() else os.path.relpath(path, folder)


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
