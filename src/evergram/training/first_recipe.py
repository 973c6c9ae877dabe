"""A first recipe for interactions that nobody has described yet: what `evergram init` calls."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from evergram.data.corpus import Corpus, FeatureSummary, summaries
from evergram.data.loaders import path_kinds
from evergram.data.prepared.prepare import NAME as PREPARED_RECORD
from evergram.data.prepared.prepare import machine_memory
from evergram.data.reading.files import (
    DELIMITERS,
    HEADER,
    SUFFIXES,
    TableStream,
    guess,
    refuse_unknown,
    source_files,
    suggestions,
)
from evergram.data.reading.interactions import ROLES
from evergram.data.rolling_window import date_text
from evergram.data.split import Split
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.lineage.record import is_name
from evergram.training.build import load_corpus, split_for
from evergram.training.recipe import Recipe
from evergram.training.recipe.recipe import toml_value

# A table takes a few times its file's bytes while it is read.
SHARE_OF_MEMORY = 4
# The share of the latest interactions that is held out of this many, and of fewer.
LATEST, MANY, LATEST_OF_FEW = "5 %", 100_000, "10 %"
# The fewest pairs that select, and that test, in a split by time.
LEAST = 30
AT_RANDOM = {"kind": "random", "share": 0.1}
# By interactions: the dim up to so many, and the most epochs. Rules of thumb; 'evergram tune'
# searches both on the data itself.
DIMS = ((20_000, 16), (200_000, 32), (20_000_000, 64))
LARGEST_DIM = 128
EPOCHS = ((1_000_000, 100), (20_000_000, 50))
FEWEST_EPOCHS = 20
# What to do with more than one file.
_SEVERAL = (
    "; several tables become one by 'evergram prepare FILE... FOLDER', and 'evergram init FOLDER'"
)
# What is in a folder, by the first of these patterns that it has a file of.
_FOLDERS = (
    *((PREPARED_RECORD, "prepared"), ("**/*.parquet", "table")),
    *(("**/ratings.csv*", "movielens"), ("**/ratings.dat*", "movielens")),
    *((f"**/*{suffix}", "table") for suffix in SUFFIXES),
)
# What a file is, by the end of its name.
_FILES = ((SUFFIXES, "table"), ((".txt", ".txt.gz"), "adjacency_list"), ((".zip",), "movielens"))


class Source(NamedTuple):
    """The data at a path: `data.kind` of a recipe, and of a table the file's own name of the column
    of each role, the roles that nobody named, and the columns that are not read."""

    kind: str
    columns: Mapping[str, str] = {}
    guessed: Sequence[str] = ()
    unread: Sequence[str] = ()

    def sentences(self) -> Iterator[str]:
        """Yield what the data is read as, and what was guessed, in sentences."""
        yield f"Read as {self.kind}."
        if self.columns:
            yield f"Columns: {', '.join(f'{r} is {name}' for r, name in self.columns.items())}."
        if self.guessed:
            guessed = ", ".join(self.guessed)
            yield f"Guessed by their names: {guessed}; --column ROLE=NAME names another."
        if self.unread:
            unread = ", ".join(name or "a column without a name" for name in self.unread)
            yield f"Not read: {unread}; --column time=NAME, value=NAME or weight=NAME reads one."


def source_at(
    path: Path, kind: str | None = None, named: Mapping[str, str] | None = None
) -> Source:
    """Return what is at a path.

    Args:
        kind: `data.kind`; None tells it by the name of the file, or by what is in the folder.
        named: by role, columns of a table; the others are told by their names.
    Raises: DataError: the path does not exist, its kind or a column cannot be told, or a table is
        too large to be read at once.
    """
    if not path.exists():
        raise DataError(f"There is no file or folder {path}{_SEVERAL}.")
    kind = _kind_of(path) if kind is None else kind
    if kind not in path_kinds():
        raise DataError(
            f"--kind is {kind!r}; it is one of: {', '.join(path_kinds())}"
            f"{did_you_mean(kind, path_kinds())}."
        )
    if kind != "table":
        if named:
            raise DataError(f"{path} is read as {kind}, which has no columns: --column is of none.")
        return Source(kind)
    files = source_files(path)
    size, limit = sum(file.size() for file in files), machine_memory() // SHARE_OF_MEMORY
    if size > limit:
        raise DataError(
            f"{path} has {size:,} bytes, and a table of more than {limit:,} is not read at once "
            f"here; write it to a folder by 'evergram prepare {path} FOLDER', and run 'evergram "
            "init FOLDER'."
        )
    first = TableStream(files[0])
    columns, guessed = columns_of(first.name, first.names, named or {})
    return Source(kind, columns, guessed, [n for n in first.names if n not in columns.values()])


def _kind_of(path: Path) -> str:
    """Return the kind that a path's name, or a folder's content, tells."""
    name = path.name.lower()
    if path.is_dir():
        told = [kind for pattern, kind in _FOLDERS if any(path.glob(pattern))]
    else:
        told = [kind for endings, kind in _FILES if name.endswith(endings)]
    if not told:
        what = "a folder" if path.is_dir() else "a file"
        raise DataError(
            f"{path} is {what} of no known kind; tables end in {', '.join(SUFFIXES)}. Say by "
            f"--kind what else it is: {', '.join(path_kinds())}{_SEVERAL}."
        )
    if name.endswith(".txt"):  # a first line that names a query and a candidate is of a table
        with path.open("rb") as file:
            line = file.readline(HEADER).decode("utf-8-sig", errors="replace").strip()
        for separator in DELIMITERS:
            if {"query", "candidate"} <= guess(line.split(separator)).keys():
                raise DataError(
                    f"The first line of {path} names columns, so it is a table, and .txt is for "
                    "lines of ids; give it a name that ends in "
                    f"{'.csv' if separator in ',;' else '.tsv'}."
                )
    return told[0]


def columns_of(
    source: str, names: Sequence[str], named: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the column of each role that a table has, and the roles that were guessed.

    Args:
        source: name of the table, for errors.
        names: its columns.
        named: by role, those that the user named.
    Raises: DataError: a column is missing, or cannot be told.
    """
    for role in named.keys() - set(ROLES):
        raise DataError(
            f"--column {role}=… names no role; the roles are: {', '.join(ROLES)}"
            f"{did_you_mean(role, ROLES)}."
        )
    refuse_unknown(source, named.values(), names)
    columns = {**{role: role for role in ROLES if role in names}, **named}
    guessed, untold = [], {}
    for role, likely in suggestions(names).items():
        left = [name for name in likely if name not in columns.values()]
        if role in columns or (not left and role in ("value", "time")):
            continue
        if len(left) == 1:
            columns[role] = left[0]
            guessed.append(role)
        else:
            untold[role] = f"may be {' or '.join(left)}" if left else "has no likely name"
    if untold:
        raise DataError(
            f"Not all columns of {source} can be told by their names: "
            f"{'; '.join(f'the {role} {why}' for role, why in untold.items())}; its columns are: "
            f"{', '.join(names)} (if that is a row, write a line of names above it). Say it by "
            f"{' '.join(f'--column {role}=NAME' for role in untold)}."
        )
    return {role: columns[role] for role in ROLES if role in columns}, tuple(guessed)


class FirstRecipe(NamedTuple):
    """A recipe that fits data, as TOML with comments and checked; and what the data is, as JSON
    (docs/commands.md) and in sentences."""

    text: str
    recipe: Recipe
    facts: dict[str, Any]
    sentences: list[str]


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
    source, folder = source_at(path, kind, columns), folder or Path()
    where = str(path) if path.is_absolute() else os.path.relpath(path, folder)
    data: dict[str, Any] = {"kind": source.kind, "path": where}
    if renamed := {role: name for role, name in source.columns.items() if role != name}:
        data["columns"] = renamed
    if drop_bad_rows:
        data["bad_rows"] = "drop"
    # Of the letters of the path's name that a recipe's may have.
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.resolve().name.split(".")[0])[:60].strip("-_")
    name = name if is_name(name) else "embeddings"

    def recipe_of(**more: Any) -> Recipe:
        return Recipe.of({"name": name, "data": data, **more}, folder=folder)

    corpus, why = load_corpus(recipe_of()), []
    held: dict[str, Any] = AT_RANDOM
    split = None
    if corpus.has_times:
        by_time = {"kind": "time", "last": LATEST if len(corpus) >= MANY else LATEST_OF_FEW}
        with suppress(DataError):  # it has too few pairs
            timed = split_for(recipe_of(split=by_time), corpus, 0)
            if min(len(timed.selection), len(timed.test)) >= LEAST:
                held, split = by_time, timed
        if split is None:
            why.append(
                f"Pairs are held out at random, although there are times: the last "
                f"{by_time['last']} hold fewer than {LEAST} new pairs to select by, or to test by."
            )
    if split is None:
        split = split_for(recipe_of(split=AT_RANDOM), corpus, 0)
    survey = Survey.of(corpus, split)
    text = recipe_text(name, data, held, survey)
    recipe = Recipe.of(tomllib.loads(text), folder=folder)
    chosen = {
        "split": held["kind"],
        "dim": recipe.model.dim_of(0),
        "epochs": recipe.training.epochs,
    }
    facts = {**source._asdict(), **asdict(survey), "cold_share": survey.cold_share, **chosen}
    return FirstRecipe(text, recipe, facts, [*source.sentences(), *survey.sentences(), *why])


def recipe_text(
    name: str, data: Mapping[str, Any], split: Mapping[str, Any], survey: Survey
) -> str:
    """Return the recipe as TOML, without a line break at its end."""
    dim = next((dim for most, dim in DIMS if survey.rows <= most), LARGEST_DIM)
    # No more than half of the smaller side's ids.
    dim = max(2, min(dim, min(survey.queries, survey.candidates) // 2))
    epochs = next((most for rows, most in EPOCHS if survey.rows <= rows), FEWEST_EPOCHS)
    data_lines, split_lines = [*_keys(data)], [*_keys(split)]
    if survey.highest_value is not None:
        value = f"# minimum_value = {survey.highest_value:g}"
        data_lines.append(f"{value}  # would leave out interactions of a smaller value")
    if survey.cold_share > 0.5:
        split_lines += [
            "# More than half of what is held out has ids that training never sees; hold out less, "
            "or describe",
            '# ids by features and set model.kind = "two_tower".',
        ]
    line = "\n"
    return f"""\
# Written by evergram init for {toml_value(data["path"])}:
{line.join(f"# {sentence}" for sentence in survey.sentences())}
# docs/recipes.md explains all keys; those that are not here have defaults.
name = {toml_value(name)}

[data]
{line.join(data_lines)}

[split]
{line.join(split_lines)}

[model]
kind = "factorization"  # a vector for each id
dim = {dim}  # numbers of a vector; [{dim}, N]: N from version 1 on

[task]
penalty = "auto"  # λ, the weight of the penalty on all pairs: by the size of the data
l2 = "auto"  # the weight of squared norms, likewise

[training]
epochs = {epochs}  # at most
patience = 10  # ends after this many evaluations without a better one"""


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines of keys, with comments after their values."""
    held_out = "are held out: some choose the epoch, the others are reported"
    comments = {
        "path": "" if Path(table.get("path", "")).is_absolute() else "relative to this file",
        "columns": "the file's own names",
        "bad_rows": "rows that cannot be used are left out, with a warning",
        "last": f"the latest {held_out}",
        "share": f"of the pairs {held_out}",
    }
    for key, value in table.items():
        about = comments.get(key)
        yield f"{key} = {toml_value(value)}{f'  # {about}' if about else ''}"


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
        sides, unknown = (len(corpus.queries), len(corpus.candidates)), split.unknown_queries
        values = corpus.column("value") if corpus.has_values else None
        first, last = corpus.time_span if corpus.has_times else (None, None)
        pairs = (split.selection, split.test)
        return cls(
            len(corpus),
            *sides,
            corpus.repeats,
            (len(corpus) - corpus.repeats) / (sides[0] * sides[1]),
            first,
            last,
            None if values is None else float(values.min()),
            None if values is None else float(values.max()),
            sum(map(len, pairs)) + unknown,
            unknown,
            sum(int((p.candidate < 0).sum()) for p in pairs),
            summaries(corpus.queries, corpus.candidates),
        )

    @property
    def cold_share(self) -> float:
        """The share of held-out pairs with an id that training never saw."""
        return (self.unknown_queries + self.unknown_candidates) / max(1, self.held_out)

    def sentences(self) -> Iterator[str]:
        """Yield what was counted, in sentences."""
        yield (
            f"{self.rows:,} interactions of {self.queries:,} queries with {self.candidates:,} "
            f"candidates: {self.density:.3%} of all pairs."
        )
        yield f"{self.repeats:,} of them repeat an earlier pair ({self.repeats / self.rows:.1%})."
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
