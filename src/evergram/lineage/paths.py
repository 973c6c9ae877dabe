"""Names, symbolic links and permissions in the folder of a lineage."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from evergram.atomic_files import OWNER_ALONE
from evergram.errors import IntegrityError, LineageError

# A name becomes part of addresses (`films@stable`), paths and printed lines, so no character may
# mean anything to one of these.
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
RULE = (
    "a name is made of letters (a-z, A-Z), digits, '.', '_' and '-', begins with a letter or a "
    "digit, and is no longer than 128 characters"
)

# The files and folders that this package reads and writes in a lineage's folder.
PARTS = (
    "lineage.json",
    "consumers.json",
    "versions",
    "embeddings",
    "probes",
    "stores",
    "backfills",
    ".work",
    ".lock",
)


def is_name(text: str) -> bool:
    """Say whether a text can be a name."""
    return re.fullmatch(NAME, text) is not None


def check_name(text: str, of: str) -> None:
    """Refuse a text that cannot be the name of this kind of thing. Raises: LineageError."""
    if not is_name(text):
        raise LineageError(f"{text!r} cannot be the name of {of}: {RULE}; choose another.")


def check_inside(root: Path, *paths: Path) -> None:
    """Refuse paths that symbolic links lead out of `root`, whether or not a file is there. Raises:
    IntegrityError."""
    home = os.path.realpath(root)
    for path in paths:
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(home):
            raise IntegrityError(
                f"{path} leads to {real}, outside of the lineage's folder, by a symbolic link; "
                "nothing is read or written there. Put the files themselves in its place."
            )


def check_parts(root: Path) -> None:
    """Refuse a lineage with a link out of it at its top. Raises: IntegrityError."""
    check_inside(root, *(path for name in PARTS if (path := root / name).is_symlink()))


def refuse_occupied(folder: Path, name: str) -> None:
    """Refuse a folder for a new lineage (by name) that holds other files, some of which it would
    remove; hidden files and what a killed first publication left next to its lock are allowed.

    Raises: LineageError.
    """
    if not folder.is_dir():
        return
    left = {"versions", "embeddings"} if (folder / ".lock").exists() else set()
    others = sorted(
        path.name
        for path in folder.iterdir()
        if not path.name.startswith(".")
        and path.name != "lost+found"  # of a disk of its own
        and not (path.name in left and _is_left(path))
    )
    if others:
        raise LineageError(
            f"{folder} holds other files ({others[0]}) and no lineage; give an empty folder, or a "
            f"new one such as {folder / name}."
        )


def _is_left(folder: Path) -> bool:
    """Return whether a folder holds nothing but version 0, perhaps half of it."""
    return all(path.name == "0" or path.name.startswith(".") for path in folder.iterdir())


def check_tree(root: Path, folder: Path) -> None:
    """Refuse a folder of a lineage with a link, at any depth, that leads out. Raises:
    IntegrityError."""
    check_inside(root, folder)
    check_inside(root, *(path for path in folder.rglob("*") if path.is_symlink()))


def file_mode(root: Path) -> int:
    """Return the permissions that new files of a lineage get: those of its `lineage.json`.

    Only its owner reads a new lineage; `chmod -R g+rX DIR`, once, shares it with a group.
    """
    try:
        return stat.S_IMODE((root / "lineage.json").stat().st_mode) & 0o666
    except FileNotFoundError:
        return OWNER_ALONE
