"""Say of which kind the data at a path is, and which column of a table has which role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
from evergram.data.reading.rules import ROLES
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError

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
