"""A case of bad input: what is wrong, the command that meets it, and what the answer must say."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

# What a file is made of: its bytes, its text in UTF-8, a table, or a function that makes it.
Content: TypeAlias = bytes | str | pa.Table | Callable[[Path], object]


def nothing(_: Path) -> None:
    """Make nothing: what is wrong is in the command line, or is not there."""


@dataclass(frozen=True)
class Case:
    """One kind of bad input.

    Args:
        name: the kind, as documents list it.
        command: the command line; the working directory is a copy of the good files.
        names: words of the sentence that name what is wrong; none where that is a column or a row.
        make: makes the bad input, in the working directory.
        during: what holds while the command runs, such as a port that is taken.
    """

    name: str
    command: str
    names: str
    make: Callable[[Path], object] = nothing
    during: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def arguments(self) -> list[str]:
        """The words of the command line."""
        return shlex.split(self.command)


def put(content: Content, file: str) -> Callable[[Path], None]:
    """Return a function that writes a file of this content into a folder."""

    def make(folder: Path) -> None:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif isinstance(content, pa.Table):
            write = feather.write_feather if file.endswith(".arrow") else pq.write_table
            write(content, path)
        else:
            content(path)

    return make


def tree_of(folder: Path) -> dict[str, str]:
    """Return all that is below a folder: names, and the sizes and hashes of files."""
    tree = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            tree[name] = f"-> {path.readlink()}"
        elif path.is_file():
            content = path.read_bytes()
            tree[name] = f"{len(content)} {hashlib.sha256(content).hexdigest()}"
        else:
            tree[name] = "folder" if path.is_dir() else "special"
    return tree
