"""Addresses of lineages that are not folders of this machine, and where their mirrors are."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from evergram.errors import LineageError

_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]*(::[a-z][a-z0-9+.\-]*)*://", re.IGNORECASE)
# What fsspec calls this machine's own disk.
_HERE = ("file", "local")


def local_folder(place: str | Path) -> Path | None:
    """The folder that is meant; None for an address of another machine, such as `s3://…`.

    `file:///…` is a folder: it needs no mirror.
    """
    text = str(place)
    if isinstance(place, Path) or not _ADDRESS.match(text):
        return Path(place)
    parts = urlsplit(text)
    if parts.scheme.lower() not in _HERE:
        return None
    if parts.netloc not in ("", "localhost"):
        raise LineageError(
            f"{text} names the host {parts.netloc!r}; write {parts.scheme}:///FOLDER, with three "
            "slashes, for a folder of this machine."
        )
    return Path(unquote(parts.path))


def filesystem(address: str) -> tuple[Any, str]:
    """fsspec's filesystem of an address, and the path in it.

    Raises: LineageError: fsspec, or the driver of this kind of address, is not installed.
    """
    try:
        import fsspec
    except ImportError:
        raise LineageError(
            f"The lineage {address} is read through fsspec: pip install 'evergram[remote]'."
        ) from None
    try:
        found, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise LineageError(f"{address} cannot be opened: {str(error).rstrip('.')}.") from error
    return found, str(path)


def mirror_of(address: str) -> Path:
    """The folder in which a lineage of another machine is kept here."""
    return cache_folder() / "lineages" / hashlib.sha256(address.encode()).hexdigest()


def cache_folder() -> Path:
    """EVERGRAM_CACHE, or the place of this platform."""
    chosen = os.environ.get("EVERGRAM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "evergram"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "evergram" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evergram"
