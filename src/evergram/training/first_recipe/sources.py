"""Say of which kind the data at a path is, and which column of a table has which role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evergram.data.files.column_names import has_no_header, lacking, suggestions
from evergram.data.loaders import READ_FROM_A_PATH
from evergram.data.prepared.prepared_record import NAME as PREPARED_RECORD
from evergram.data.tables import COLUMNS, SUFFIXES, TEXT, read_table
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError
from evergram.training.memory import memory_bytes

# A table takes a few times its file's bytes while it is read.
SHARE_OF_MEMORY = 4


@dataclass(frozen=True)
class Source:
    """The data at a path.

    Args:
        kind: as `data.kind` of a recipe.
        columns: of a table: by role, the file's own name of the column.
        guessed: those of them that nobody named.
        unread: the file's other columns.
    """

    kind: str
    columns: Mapping[str, str] = field(default_factory=dict)
    guessed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def renamed(self) -> dict[str, str]:
        """The columns that the file calls otherwise than a recipe does."""
        return {role: name for role, name in self.columns.items() if role != name}


def source_at(
    path: Path, kind: str | None = None, named: Mapping[str, str] | None = None
) -> Source:
    """Return what is at a path.

    Args:
        kind: as `data.kind`; None tells it by the name of the file, or by what is in the folder.
        named: by role, columns of a table; the others are told by their names.
    Raises: DataError: there is no such file or folder, its kind or a column cannot be told, or a
        table is too large to be read at once.
    """
    if not path.exists():
        raise DataError(f"There is no file or folder {path}; give the interactions' own path.")
    chosen = _kind_of(path) if kind is None else kind
    if chosen not in READ_FROM_A_PATH:
        raise DataError(
            f"--kind is {chosen!r}; it is one of: {', '.join(READ_FROM_A_PATH)}"
            f"{did_you_mean(chosen, READ_FROM_A_PATH)}."
        )
    if chosen != "table":
        if named:
            raise DataError(
                f"--column names columns of a table, and {path} is read as {chosen}; leave it out."
            )
        return Source(chosen)
    _refuse_too_large(path)
    names = read_table(path).column_names
    columns, guessed = columns_of(str(path), names, named or {}, text=bool(TEXT.search(path.name)))
    unread = tuple(name for name in names if name not in columns.values())
    return Source(chosen, columns, guessed, unread)


def columns_of(
    source: str, names: Sequence[str], named: Mapping[str, str], *, text: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the column of each role that a table has, and the roles that were guessed.

    Args:
        source: name of the table, for errors.
        names: its columns.
        named: by role, those that somebody named.
        text: True if the names are the first line of a text, which may be a row.
    Raises: DataError: a named column is not there; several may have a role; none may be the query
        or the candidate.
    """
    has = ", ".join(names)
    for role, name in named.items():
        if role not in COLUMNS:
            raise DataError(
                f"--column {role}=… names no role; the roles are: {', '.join(COLUMNS)}"
                f"{did_you_mean(role, COLUMNS)}."
            )
        if name not in names:
            raise DataError(
                f"{source} has no column {name!r}; its columns are: {has}"
                f"{did_you_mean(name, names)}."
            )
    if text and not named and has_no_header(names):
        raise DataError(lacking(source, {"query"}, names, {}))
    columns = {**named, **{r: r for r in COLUMNS if r in names and r not in named}}
    guessed = []
    for role, likely in suggestions(names).items():
        left = [name for name in likely if name not in columns.values()]
        if role in columns or (not left and role in ("value", "time")):
            continue
        if len(left) != 1:
            which = f"it may be {' or '.join(left)}" if left else "no column is called like one"
            raise DataError(
                f"Which column of {source} is the {role} cannot be told: {which}; its columns are: "
                f"{has}. Say it by --column {role}=NAME."
            )
        columns[role] = left[0]
        guessed.append(role)
    return {role: columns[role] for role in COLUMNS if role in columns}, tuple(guessed)


def _kind_of(path: Path) -> str:
    """Return the kind that a path's name, or a folder's content, tells."""
    if path.is_dir():
        if (path / PREPARED_RECORD).is_file():
            return "prepared"
        if any(path.glob("*.parquet")):
            return "table"
        if any(any(path.rglob(f"ratings{suffix}*")) for suffix in (".csv", ".dat")):
            return "movielens"
        raise DataError(
            f"{path} is a folder of no known kind; give a file in it, or say by --kind what it is: "
            f"{', '.join(READ_FROM_A_PATH)}."
        )
    name = path.name.lower()
    if TEXT.search(name) or name.endswith((".parquet", ".pq", ".arrow", ".feather")):
        return "table"
    if name.endswith((".txt", ".txt.gz")):
        return "adjacency_list"
    if name.endswith(".zip"):
        return "movielens"
    raise DataError(
        f"{path} is of no known format; tables end in: {SUFFIXES}. Say by --kind what else it is: "
        f"{', '.join(READ_FROM_A_PATH)}."
    )


def _refuse_too_large(path: Path) -> None:
    """Raises: DataError: a table is larger than memory can read at once."""
    files = [path] if path.is_file() else list(path.glob("*.parquet"))
    size, limit = sum(file.stat().st_size for file in files), memory_bytes() // SHARE_OF_MEMORY
    if size > limit:
        raise DataError(
            f"{path} has {size:,} bytes, and a table of more than {limit:,} is not read at once "
            f"here; write it to a folder by 'evergram prepare {path} FOLDER', and run 'evergram "
            "init FOLDER'."
        )
