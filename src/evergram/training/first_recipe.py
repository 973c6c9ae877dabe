"""A first recipe for interactions that nobody has described yet: what `evergram init` calls."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evergram.data.corpus import Corpus, FeatureSummary, summaries
from evergram.data.loaders import path_kinds
from evergram.data.prepared.files import NAME as PREPARED_RECORD
from evergram.data.prepared.prepare import machine_memory
from evergram.data.reading.column_names import (
    guess,
    has_no_header,
    lacking,
    refuse_unknown,
    suggestions,
)
from evergram.data.reading.files import (
    DELIMITERS,
    HEADER,
    SUFFIXES,
    TableStream,
    source_files,
)
from evergram.data.reading.interactions import ROLES
from evergram.data.rolling_window import date_text
from evergram.data.split import Split
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.lineage.record import is_name
from evergram.training.corpora import load_corpus, split_for
from evergram.training.pilots import expected_seconds, in_words
from evergram.training.recipe import Recipe
from evergram.training.recipe.values import toml_value

# A table takes a few times its file's bytes while it is read.
SHARE_OF_MEMORY = 4
# What to do with more than one file.
_SEVERAL = (
    "; several tables become one by 'evergram prepare FILE... FOLDER', and 'evergram init FOLDER'"
)


@dataclass(frozen=True)
class Source:
    """The data at a path: `data.kind` of a recipe, and of a table the file's own name of the column
    of each role, the roles that nobody named, and the columns that are not read."""

    kind: str
    columns: Mapping[str, str] = field(default_factory=dict)
    guessed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def renamed(self) -> dict[str, str]:
        """The columns that the file calls otherwise than a recipe does."""
        return {role: name for role, name in self.columns.items() if role != name}


def source_at(
    path: Path,
    kind: str | None = None,
    named: Mapping[str, str] | None = None,
) -> Source:
    """Return what is at a path.

    Args:
        kind: `data.kind`; None tells it by the name of the file, or by what is in the folder.
        named: by role, columns of a table; the others are told by their names.
    Raises: DataError: the path does not exist, its kind or a column cannot be told, or a table is
        too large to be read at once.
    """
    if not path.exists():
        raise DataError(
            f"There is no file or folder {path}; give the interactions' own path{_SEVERAL}."
        )
    chosen = _kind_of(path) if kind is None else kind
    if chosen not in path_kinds():
        raise DataError(
            f"--kind is {chosen!r}; it is one of: {', '.join(path_kinds())}"
            f"{did_you_mean(chosen, path_kinds())}."
        )
    if chosen != "table":
        if named:
            raise DataError(
                f"--column is of columns of a table, and {path} is read as {chosen}; leave it out."
            )
        return Source(chosen)
    _refuse_too_large(path)
    first = TableStream(source_files(path)[0])
    names = first.names
    columns, guessed = columns_of(first.name, names, named or {}, text=first.has_header_line)
    unread = tuple(name for name in names if name not in columns.values())
    return Source(chosen, columns, guessed, unread)


def columns_of(
    source: str, names: Sequence[str], named: Mapping[str, str], *, text: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the column of each role that a table has, and the roles that were guessed.

    Args:
        source: name of the table, for errors.
        names: its columns.
        named: by role, those that the user named.
        text: True if the names are the first line of a text, which may be a row.
    Raises: DataError: a column is missing, or cannot be told.
    """
    has = ", ".join(names)
    for role in named:
        if role not in ROLES:
            raise DataError(
                f"--column {role}=… names no role; the roles are: {', '.join(ROLES)}"
                f"{did_you_mean(role, ROLES)}."
            )
    refuse_unknown(source, named.values(), names)
    if text and not named and has_no_header(names):
        raise DataError(lacking(source, {"query"}, names, {}))
    columns = {**named, **{r: r for r in ROLES if r in names and r not in named}}
    guessed, untold = [], {}
    for role, likely in suggestions(names).items():
        left = [name for name in likely if name not in columns.values()]
        if role in columns or (not left and role in ("value", "time")):
            continue
        if len(left) != 1:
            untold[role] = left
            continue
        columns[role] = left[0]
        guessed.append(role)
    if untold:
        roles = " and which the ".join(untold)
        whys = "; ".join(
            f"the {role} may be {' or '.join(left)}" if left else f"no column looks like a {role}"
            for role, left in untold.items()
        )
        options = " ".join(f"--column {role}=NAME" for role in untold)
        raise DataError(
            f"Which column of {source} is the {roles} cannot be told: {whys}; its columns are: "
            f"{has}. Say it by {options}."
        )
    return {role: columns[role] for role in ROLES if role in columns}, tuple(guessed)


def _kind_of(path: Path) -> str:
    """Return the kind that a path's name, or a folder's content, tells."""
    if path.is_dir():
        if (path / PREPARED_RECORD).is_file():
            return "prepared"
        if any(path.rglob("*.parquet")):
            return "table"
        if any(any(path.rglob(f"ratings{suffix}*")) for suffix in (".csv", ".dat")):
            return "movielens"
        if any(any(path.rglob(f"*{suffix}")) for suffix in SUFFIXES):
            return "table"
        raise DataError(
            f"{path} is a folder of no known kind; give a file in it, or say by --kind what it is: "
            f"{', '.join(path_kinds())}{_SEVERAL}."
        )
    name = path.name.lower()
    if name.endswith(".txt") and (separator := _header_of_a_table(path)):
        suffix = ".csv" if separator in ",;" else ".tsv"
        raise DataError(
            f"The first line of {path} names columns, so it is a table, and .txt is for lines of "
            f"ids; give it a name that ends in {suffix}."
        )
    if name.endswith(SUFFIXES):
        return "table"
    if name.endswith((".txt", ".txt.gz")):
        return "adjacency_list"
    if name.endswith(".zip"):
        return "movielens"
    raise DataError(
        f"{path} is of no known format; tables end in: {', '.join(SUFFIXES)}. Say by --kind what "
        f"else it is: {', '.join(path_kinds())}."
    )


def _header_of_a_table(path: Path) -> str | None:
    """Return the separator of a first line that names a query and a candidate; None of others."""
    with path.open("rb") as file:
        first = file.readline(HEADER).decode("utf-8-sig", errors="replace")
    for separator in DELIMITERS:
        if {"query", "candidate"} <= guess(first.strip().split(separator)).keys():
            return separator
    return None


def _refuse_too_large(path: Path) -> None:
    """Raises: DataError: a table is larger than memory can read at once."""
    size = sum(file.size() for file in source_files(path))
    limit = machine_memory() // SHARE_OF_MEMORY
    if size > limit:
        raise DataError(
            f"{path} has {size:,} bytes, and a table of more than {limit:,} is not read at once "
            f"here; write it to a folder by 'evergram prepare {path} FOLDER', and run 'evergram "
            "init FOLDER'."
        )


# The share of the latest interactions that is held out of this many, and of fewer.
LATEST, MANY, LATEST_OF_FEW = "5 %", 100_000, "10 %"
# The fewest pairs that select, and that test, in a split by time.
LEAST = 30
AT_RANDOM = {"kind": "random", "share": 0.1}


@dataclass(frozen=True)
class FirstRecipe:
    """A recipe that fits data, as TOML with comments and checked, and what the data is."""

    text: str
    recipe: Recipe
    source: Source
    survey: Survey
    # That `train` will take, roughly.
    seconds: float
    # Why pairs are held out at random although there are times.
    split_again: str | None = None

    def sentences(self) -> Iterator[str]:
        """Yield what was seen, and what was guessed, in sentences."""
        source = self.source
        yield f"Read as {source.kind}."
        if source.columns:
            listed = ", ".join(f"{role} is {name}" for role, name in source.columns.items())
            yield f"Columns: {listed}."
        if source.guessed:
            guessed = ", ".join(source.guessed)
            yield f"Guessed by their names: {guessed}; --column ROLE=NAME names another."
        if source.unread:
            unread = ", ".join(name or "a column without a name" for name in source.unread)
            yield (f"Not read: {unread}; --column time=NAME, value=NAME or weight=NAME reads one.")
        yield from self.survey.sentences()
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
    source = source_at(path, kind, columns)
    name, where = _name_of(path), str(path)
    if not path.is_absolute():
        where = os.path.relpath(path, folder or Path())
    data: dict[str, Any] = {"kind": source.kind, "path": where}
    if source.renamed:
        data["columns"] = source.renamed
    if drop_bad_rows:
        data["bad_rows"] = "drop"

    def recipe_of(more: Mapping[str, Any]) -> Recipe:
        return Recipe.of({"name": name, "data": data, **more}, folder=folder or Path())

    corpus = load_corpus(recipe_of({}))
    held, split, split_again = _split(recipe_of, corpus)
    survey = Survey.of(corpus, split)
    text = recipe_text(name, data, held, survey)
    recipe = Recipe.of(tomllib.loads(text), folder=folder or Path())
    seconds = expected_seconds(recipe, split)
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


def _name_of(path: Path) -> str:
    """Return a name for the recipe, of the letters of the path's that a name may have."""
    stem = path.resolve().name.split(".")[0]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:60].strip("-_")
    return name if is_name(name) else "embeddings"


# By interactions: the dim up to so many, and the most epochs. Rules of thumb; 'evergram tune'
# searches both on the data itself.
DIMS = ((20_000, 16), (200_000, 32), (20_000_000, 64))
LARGEST_DIM = 128
EPOCHS = ((1_000_000, 100), (20_000_000, 50))
FEWEST_EPOCHS = 20


def recipe_text(
    name: str, data: Mapping[str, Any], split: Mapping[str, Any], survey: Survey
) -> str:
    """Return the recipe as TOML, without a line break at its end."""
    dim = next((dim for most, dim in DIMS if survey.rows <= most), LARGEST_DIM)
    # No more than half of the smaller side's ids.
    dim = max(2, min(dim, min(survey.queries, survey.candidates) // 2))
    epochs = next((most for rows, most in EPOCHS if survey.rows <= rows), FEWEST_EPOCHS)
    least, cold = [], []
    if survey.lowest_value is not None:
        value = f"# minimum_value = {survey.highest_value:g}"
        least = [f"{value}  # would leave out interactions of a smaller value"]
    if survey.cold_share > 0.5:
        cold = [
            "# More than half of what is held out has ids that training never sees; hold out less, "
            "or describe",
            '# ids by features and set model.kind = "two_tower".',
        ]
    lines = [
        f"# Written by evergram init for {toml_value(data['path'])}:",
        *(f"# {sentence}" for sentence in survey.sentences()),
        "# docs/recipes.md explains all keys; those that are not here have defaults.",
        f"name = {toml_value(name)}",
        *("", "[data]", *_keys(data), *least),
        *("", "[split]", *_keys(split), *cold),
        *("", "[model]", 'kind = "factorization"  # a vector for each id'),
        f"dim = {dim}  # numbers of a vector; [{dim}, N]: N from version 1 on",
        *("", "[task]"),
        'penalty = "auto"  # λ, the weight of the penalty on all pairs: by the size of the data',
        'l2 = "auto"  # the weight of squared norms, likewise',
        *("", "[training]"),
        f"epochs = {epochs}  # at most",
        "patience = 10  # ends after this many evaluations without a better one",
    ]
    return "\n".join(lines)


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        about = "" if key == "path" and Path(value).is_absolute() else _ABOUT.get(key, "")
        yield f"{key} = {toml_value(value)}{about}"


# Comments on keys, after their values.
_ABOUT = {
    "path": "  # relative to this file",
    "columns": "  # the file's own names",
    "bad_rows": "  # rows that cannot be used are left out, with a warning",
    "last": "  # the latest are held out: some choose the epoch, the others are reported",
    "share": "  # of the pairs are held out: some choose the epoch, the others are reported",
}


@dataclass(frozen=True)
class Survey:
    """What is in a corpus, and in its split for version 0.

    Args:
        repeats: interactions that repeat an earlier pair.
        density: distinct pairs, as a share of all pairs of a query with a candidate.
        unknown_queries, unknown_candidates: of the held-out pairs, those whose query, or else
            candidate, training never saw. The first are left out, the second are certain misses.
    """

    rows: int
    queries: int
    candidates: int
    repeats: int
    density: float
    first_time: float | None
    last_time: float | None
    lowest_value: float | None
    highest_value: float | None
    held_out: int
    unknown_queries: int
    unknown_candidates: int
    features: list[FeatureSummary] = field(default_factory=list)

    @classmethod
    def of(cls, corpus: Corpus, split: Split) -> Survey:
        """Return the survey of a corpus that is split so."""
        repeats, sides = corpus.repeats, (len(corpus.queries), len(corpus.candidates))
        first, last = corpus.time_span if corpus.has_times else (None, None)
        values = corpus.column("value") if corpus.has_values else None
        pairs = (split.selection, split.test)
        return cls(
            len(corpus),
            *sides,
            repeats=repeats,
            density=(len(corpus) - repeats) / (sides[0] * sides[1]),
            first_time=first,
            last_time=last,
            lowest_value=None if values is None else float(values.min()),
            highest_value=None if values is None else float(values.max()),
            held_out=sum(map(len, pairs)) + split.unknown_queries,
            unknown_queries=split.unknown_queries,
            unknown_candidates=sum(int((p.candidate < 0).sum()) for p in pairs),
            features=summaries(corpus.queries, corpus.candidates),
        )

    @property
    def cold_share(self) -> float:
        """The share of held-out pairs with an id that training never saw."""
        return (self.unknown_queries + self.unknown_candidates) / max(1, self.held_out)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "cold_share": self.cold_share}

    def sentences(self) -> Iterator[str]:
        """Yield what was counted, in sentences."""
        yield (
            f"{self.rows:,} interactions of {self.queries:,} queries with {self.candidates:,} "
            f"candidates: {self.density:.3%} of all pairs."
        )
        yield (f"{self.repeats:,} of them repeat an earlier pair ({self.repeats / self.rows:.1%}).")
        if self.first_time is None or self.last_time is None:
            yield "There are no times."
        else:
            yield f"Times are from {date_text(self.first_time)} to {date_text(self.last_time)}."
        if self.lowest_value is not None:
            yield f"Values are from {self.lowest_value:g} to {self.highest_value:g}."
        for feature in self.features:
            yield feature.sentence
            if feature.warning:
                yield feature.warning
        yield (
            f"Of {self.held_out:,} pairs to select and test by, {self.cold_share:.1%} have an id "
            f"that training never sees: in {self.unknown_queries:,} the query (they are left out), "
            f"in {self.unknown_candidates:,} the candidate (certain misses)."
        )
