"""Write a first recipe for a file or folder of interactions, for `evergram init`."""

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

# Reading a table takes a few times its file size in memory.
SHARE_OF_MEMORY = 4
# Share of the latest interactions to hold out, from this many interactions on, and below.
LATEST, MANY, LATEST_OF_FEW = "5 %", 100_000, "10 %"
# A split by time needs at least this many selection pairs, and as many test pairs.
LEAST = 30
AT_RANDOM: dict[str, Any] = {"kind": "random", "share": 0.1}
# Up to this number of interactions: the dim, and the maximum number of epochs. Rules of thumb;
# 'evergram tune' searches for better values on the data.
DIMS = ((20_000, 16), (200_000, 32), (20_000_000, 64))
LARGEST_DIM = 128
EPOCHS = ((1_000_000, 100), (20_000_000, 50))
FEWEST_EPOCHS = 20
# The softmax over all candidates is proposed for data like Gowalla and Yelp2018, where it finds far
# more than the squared loss (docs/measured.md): from this many candidates and distinct pairs, up to
# this density, and up to this many scores in an epoch.
MANY_CANDIDATES, MANY_PAIRS, SPARSE, MOST_SCORES = 10_000, 500_000, 0.005, 4_000_000_000
# What the roles are that every table must have.
_EXAMPLES = {"query": " (such as a user)", "candidate": " (such as an item)"}
# The remedy for more than one file.
_SEVERAL = "; for several tables run 'evergram prepare FILE... FOLDER', then 'evergram init FOLDER'"
# Kinds of folders: the first pattern that matches a file in the folder decides.
_FOLDERS = (
    (PREPARED_RECORD, "prepared"),
    ("**/*.parquet", "table"),
    ("**/ratings.csv*", "movielens"),
    ("**/ratings.dat*", "movielens"),
    *((f"**/*{suffix}", "table") for suffix in SUFFIXES),
)
# Kinds of files, by suffix.
_FILES = ((SUFFIXES, "table"), ((".txt", ".txt.gz"), "adjacency_list"), ((".zip",), "movielens"))


class Source(NamedTuple):
    """The data at a path: `data.kind`, and for a table the column of each role, the roles whose
    column was guessed, and the unused columns."""

    kind: str
    columns: Mapping[str, str] = {}
    guessed: Sequence[str] = ()
    unread: Sequence[str] = ()

    def sentences(self) -> Iterator[str]:
        """Yield sentences on how the data is read and what was guessed."""
        yield f"Read as {self.kind}."
        if self.columns:
            yield f"Columns: {', '.join(f'{r} is {name}' for r, name in self.columns.items())}."
        if self.guessed:
            guessed = ", ".join(self.guessed)
            yield f"Guessed from column names: {guessed}; --column ROLE=NAME chooses another."
        if self.unread:
            unread = ", ".join(name or "a column without a name" for name in self.unread)
            free = [
                f"{role}=NAME" for role in ("time", "value", "weight") if role not in self.columns
            ]
            how = f"; --column {' or '.join(free)} uses one" if free else ""
            yield f"Not used: {unread}{how}."


def source_at(
    path: Path, kind: str | None = None, named: Mapping[str, str] | None = None
) -> Source:
    """Return the kind and columns of the data at a path.

    Args:
        kind: `data.kind`; None guesses it from the file name or the folder's content.
        named: columns of a table by role; the others are guessed from the column names.
    Raises: DataError: the path does not exist, its kind or a column cannot be guessed, or a table
        is too large for memory.
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
            raise DataError(f"{path} is read as {kind}, which has no columns; leave out --column.")
        return Source(kind)
    files = source_files(path)
    size, limit = sum(file.size() for file in files), machine_memory() // SHARE_OF_MEMORY
    if size > limit:
        raise DataError(
            f"{path} has {size:,} bytes, and on this machine a table must have at most {limit:,}; "
            f"run 'evergram prepare {path} FOLDER', then 'evergram init FOLDER'."
        )
    first = TableStream(files[0])
    columns, guessed = columns_of(first.name, first.names, named or {})
    return Source(kind, columns, guessed, [n for n in first.names if n not in columns.values()])


def _kind_of(path: Path) -> str:
    """Return the kind of data, guessed from a file's name or a folder's content."""
    name = path.name.lower()
    if path.is_dir():
        kinds = [kind for pattern, kind in _FOLDERS if any(path.glob(pattern))]
    else:
        kinds = [kind for endings, kind in _FILES if name.endswith(endings)]
    if not kinds:
        what = "folder" if path.is_dir() else "file"
        raise DataError(
            f"{path} is a {what} of unknown kind; tables end in {', '.join(SUFFIXES)}. Otherwise "
            f"give --kind: {', '.join(path_kinds())}{_SEVERAL}."
        )
    if name.endswith(".txt"):  # a header with a query and a candidate means a table
        with path.open("rb") as file:
            line = file.readline(HEADER).decode("utf-8-sig", errors="replace").strip()
        for separator in DELIMITERS:
            if {"query", "candidate"} <= guess(line.split(separator)).keys():
                raise DataError(
                    f"The first line of {path} names columns, so it is a table, but .txt files are "
                    "read as lines of ids; give it a name that ends in "
                    f"{'.csv' if separator in ',;' else '.tsv'}."
                )
    return kinds[0]


def columns_of(
    source: str, names: Sequence[str], named: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return a table's column for each role, and the roles whose column was guessed.

    Args:
        source: name of the table, for errors.
        named: columns by role, as the user named them.
    Raises: DataError: a named column does not exist, or a role's column cannot be guessed.
    """
    for role in named.keys() - set(ROLES):
        raise DataError(
            f"--column {role}=…: {role!r} is not a role; the roles are: {', '.join(ROLES)}"
            f"{did_you_mean(role, ROLES)}."
        )
    refuse_unknown(source, named.values(), names)
    columns = {**{role: role for role in ROLES if role in names}, **named}
    guessed, unclear = [], {}
    for role, likely in suggestions(names).items():
        left = [name for name in likely if name not in columns.values()]
        if role in columns or (not left and role in ("value", "time")):
            continue
        if len(left) == 1:
            columns[role] = left[0]
            guessed.append(role)
        else:
            why = f"may be {' or '.join(left)}" if left else "has no likely name"
            unclear[role] = f"the {role}{_EXAMPLES.get(role, '')} {why}"
    if unclear:
        raise DataError(
            f"Cannot guess all columns of {source} from their names: "
            f"{'; '.join(unclear.values())}; its columns are: {', '.join(names)} (if these are "
            "data, add a header line). Give "
            f"{' '.join(f'--column {role}=NAME' for role in unclear)}."
        )
    return {role: columns[role] for role in ROLES if role in columns}, tuple(guessed)


class FirstRecipe(NamedTuple):
    """A recipe for some data, as commented TOML and as a checked `Recipe`; and a description of the
    data, as JSON (docs/commands.md) and in sentences."""

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

    It holds out the latest 5 % of interactions (10 % if there are fewer than 100,000). Without
    times, or if this gives too few pairs, it holds out a random tenth.

    Args:
        path: a file or folder, as for `data.path`.
        kind: as `data.kind`; None guesses it from the path.
        columns: columns of a table by role; the others are guessed from the column names.
        drop_bad_rows: set `data.bad_rows = "drop"`.
        folder: the recipe's future folder, to which paths are relative; None is the working
            directory.
    Raises: DataError: the data cannot be read, its kind or a column cannot be guessed, or there is
        too little of it to evaluate a model.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise DataError(
            f"The path {str(path)!r} is not valid UTF-8, which a recipe needs; rename the file."
        ) from None
    source, folder = source_at(path, kind, columns), folder or Path()
    data_path = str(path) if path.is_absolute() else os.path.relpath(path, folder)
    data: dict[str, Any] = {"kind": source.kind, "path": data_path}
    if renamed := {role: name for role, name in source.columns.items() if role != name}:
        data["columns"] = renamed
    if drop_bad_rows:
        data["bad_rows"] = "drop"
    # Keep only characters that a lineage's name may have.
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.resolve().name.split(".")[0])[:60].strip("-_")
    name = name if is_name(name) else "embeddings"

    def recipe_of(**more: Any) -> Recipe:
        return Recipe.of({"name": name, "data": data, **more}, folder=folder)

    corpus, notes = load_corpus(recipe_of()), []
    held_out: dict[str, Any] = AT_RANDOM
    split = None
    if corpus.has_times:
        by_time = {"kind": "time", "last": LATEST if len(corpus) >= MANY else LATEST_OF_FEW}
        with suppress(DataError):  # raised if there are too few pairs
            timed = split_for(recipe_of(split=by_time), corpus, 0)
            if min(len(timed.selection), len(timed.test)) >= LEAST:
                held_out, split = by_time, timed
        if split is None:
            notes.append(
                f"Pairs are held out at random although there are times, because the last "
                f"{by_time['last']} have fewer than {LEAST} new pairs to select or to test."
            )
    if split is None:
        split = split_for(recipe_of(split=AT_RANDOM), corpus, 0)
    survey = Survey.of(corpus, split)
    text = recipe_text(name, data, held_out, survey)
    if survey.for_softmax and source.kind != "prepared":
        notes.append(
            "The recipe has the softmax over all candidates: on public data of this kind it finds "
            "far more than the squared loss, and takes many times as long (docs/measured.md). For "
            "the squared loss delete the lines and the tables that are marked 'softmax'."
        )
    recipe = Recipe.of(tomllib.loads(text), folder=folder)
    chosen = {
        "split": held_out["kind"],
        "dim": recipe.model.dim_of(0),
        "epochs": recipe.training.epochs,
    }
    facts = {**source._asdict(), **asdict(survey), "cold_share": survey.cold_share, **chosen}
    return FirstRecipe(text, recipe, facts, [*source.sentences(), *survey.sentences(), *notes])


def recipe_text(
    name: str, data: Mapping[str, Any], split: Mapping[str, Any], survey: Survey
) -> str:
    """Return the recipe as TOML, without a final line break."""
    dim, epochs = (
        first_dim(survey.rows, survey.queries, survey.candidates),
        first_epochs(survey.rows),
    )
    data_lines, split_lines = [*_keys(data)], [*_keys(split)]
    if data["kind"] == "table":
        features = '# candidate_features = "FILE"'
        data_lines.append(f'{features}  # ids and features, for model.kind = "two_tower"')
    if survey.highest_value is not None:
        value = f"# minimum_value = {survey.highest_value:g}"
        data_lines.append(f"{value}  # would drop interactions with a smaller value")
    if survey.cold_share > 0.5:
        split_lines += [
            "# More than half of the held-out pairs have ids that training never sees; hold out "
            "less, or add",
            '# features of the ids and set model.kind = "two_tower".',
        ]
    line = "\n"
    # Prepared data is streamed, and the softmax reads all pairs into memory.
    softmax = survey.for_softmax and data["kind"] != "prepared"
    loss = _softmax() if softmax else _squared(epochs)
    unit = 'normalize = true  # softmax\nstart = "smooth"  # softmax\n' * softmax
    return f"""\
# Written by evergram init for {toml_value(data["path"])}:
{line.join(f"# {sentence}" for sentence in survey.sentences())}
# docs/recipes.md explains all keys; omitted keys have defaults.
name = {toml_value(name)}

[data]
{line.join(data_lines)}

[split]
{line.join(split_lines)}

[model]
kind = "factorization"  # a vector for each id
dim = {dim}  # length of the vectors; [{dim}, N] for N from version 1 on
{unit}
{loss}"""


def _squared(epochs: int) -> str:
    return f"""\
[task]
penalty = "auto"  # λ, the weight of the penalty on all pairs, chosen for this data
l2 = "auto"  # the weight of squared norms, also chosen

[training]
epochs = {epochs}  # at most
patience = 10  # stop after this many evaluations without improvement"""


def _softmax() -> str:
    """Return the tables of the softmax over all candidates, with settings between those of the
    recipes for Gowalla and Yelp2018."""
    return """\
[task]  # softmax
kind = "softmax_all"
temperature = 0.1
push = 1.15  # how much the sum over all candidates counts beside the pairs' scores
largest_share = 0.01  # of a query's push, for each candidate
neighbour_share = 0.15  # of a pair's pull, for candidates that the same queries met

[training]  # softmax
optimizer = "adam"
precision = "bfloat16"  # of products, where the processor can
batch_size = 16384
table_rate = 0.02
rescale_rows = true  # rows begin each epoch with norm 1
decay = 0.95
epochs = 60
patience = 0  # all epochs: the rates fall to the end
evaluate_every = 10"""


def first_dim(rows: int, queries: int, candidates: int) -> int:
    """Return the dim for this number of interactions, at most half the number of ids of a side."""
    dim = next((dim for most, dim in DIMS if rows <= most), LARGEST_DIM)
    return max(2, min(dim, min(queries, candidates) // 2))


def first_epochs(rows: int) -> int:
    """Return the most epochs for this number of interactions."""
    return next((epochs for most, epochs in EPOCHS if rows <= most), FEWEST_EPOCHS)


def _keys(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key, with a comment."""
    held_out = "held out, some to choose the epoch and the others to report metrics"
    comments = {
        "path": "" if Path(table.get("path", "")).is_absolute() else "relative to this file",
        "columns": "the file's column names",
        "bad_rows": "bad rows are left out, with a warning",
        "last": f"the latest pairs are {held_out}",
        "share": f"share of the pairs {held_out}",
    }
    for key, value in table.items():
        about = comments.get(key)
        yield f"{key} = {toml_value(value)}{f'  # {about}' if about else ''}"


@dataclass(frozen=True)
class Survey:
    """Statistics of a corpus and of its split for version 0."""

    rows: int
    queries: int
    candidates: int
    repeats: int  # interactions that repeat an earlier pair
    density: float  # distinct pairs as a share of queries × candidates
    first_time: float | None
    last_time: float | None
    lowest_value: float | None
    highest_value: float | None
    held_out: int
    # Number of held-out pairs whose query, or whose candidate, is not in the training data. The
    # first are left out; the second always count as misses.
    unknown_queries: int
    unknown_candidates: int
    features: list[FeatureSummary] = field(default_factory=list)

    @classmethod
    def of(cls, corpus: Corpus, split: Split) -> Survey:
        sides, unknown = (len(corpus.queries), len(corpus.candidates)), split.unknown_queries
        blocks = corpus.blocks() if corpus.has_values else ()
        values = [float(end) for b in blocks if b.value is not None for end in b.value.aminmax()]
        first, last = corpus.time_span if corpus.has_times else (None, None)
        pairs = (split.selection, split.test)
        return cls(
            len(corpus),
            *sides,
            corpus.repeats,
            (len(corpus) - corpus.repeats) / (sides[0] * sides[1]),
            first,
            last,
            min(values, default=None),
            max(values, default=None),
            sum(map(len, pairs)) + unknown,
            unknown,
            sum(int((p.candidate < 0).sum()) for p in pairs),
            summaries(corpus.queries, corpus.candidates),
        )

    @property
    def for_softmax(self) -> bool:
        """Whether the softmax over all candidates is the better first choice, and affordable."""
        return (
            self.candidates >= MANY_CANDIDATES
            and self.rows - self.repeats >= MANY_PAIRS
            and self.density <= SPARSE
            and self.queries * self.candidates <= MOST_SCORES
        )

    @property
    def cold_share(self) -> float:
        """The share of held-out pairs with an id that is not in the training data."""
        return (self.unknown_queries + self.unknown_candidates) / max(1, self.held_out)

    def sentences(self) -> Iterator[str]:
        """Yield the statistics as sentences."""
        yield (
            f"{self.rows:,} interactions of {self.queries:,} queries with {self.candidates:,} "
            f"candidates: {self.density:.3%} of all possible pairs."
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
            f"{self.held_out:,} pairs are held out. {self.cold_share:.1%} of them have an id that "
            f"training never sees: {self.unknown_queries:,} a new query (not tested), "
            f"{self.unknown_candidates:,} a new candidate (counted as misses)."
        )
