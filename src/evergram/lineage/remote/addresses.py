"""Addresses of lineages on other machines, and the folders in which they are mirrored here."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import platformdirs

from evergram.errors import LineageError

_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]*(::[a-z][a-z0-9+.\-]*)*://", re.IGNORECASE)
# What fsspec calls this machine's own disk.
_HERE = ("file", "local")


def local_folder(place: str | Path) -> Path | None:
    """Return the folder that a path or an address names; None for one of another machine.

    Args:
        place: a path, `file:///…`, or an fsspec address such as `s3://bucket/shop`.
    Raises: LineageError: a `file:` address names a host, or the address cannot be read.
    """
    text = str(place)
    if isinstance(place, Path) or not _ADDRESS.match(text):
        return Path(place)
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise LineageError(f"{text} is no address: {str(error).rstrip('.')}.") from None
    if parts.scheme.lower() not in _HERE:
        return None
    if parts.netloc not in ("", "localhost"):
        raise LineageError(
            f"{text} names the host {parts.netloc!r}; write {parts.scheme}:///FOLDER, with three "
            "slashes, for a folder of this machine."
        )
    return Path(unquote(parts.path))


def filesystem(address: str) -> tuple[Any, str]:
    """Return fsspec's filesystem of an address, and the path in that filesystem.

    Raises: LineageError: the address has a wildcard; or fsspec, or the driver of this kind of
        address, is not installed.
    """
    # After the host, which may be an IPv6 address in brackets; an address of http may have a query.
    path = address.partition("://")[2].partition("/")[2]
    if wild := sorted(set(path) & set("*[]" if address.startswith("http") else "*?[]")):
        raise LineageError(
            f"{address} has {' and '.join(wild)}, which stand for other characters in such "
            "addresses; give the lineage another name."
        )
    try:
        import fsspec
    except ImportError:
        raise LineageError(
            f"The lineage {address} is read through fsspec: pip install 'evergram[remote]'."
        ) from None
    try:
        files, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise LineageError(
            f"{address} cannot be opened: {str(error).rstrip('.')}; correct the address."
        ) from error
    return files, str(path)


def mirror_of(address: str) -> Path:
    """Return the folder in which a lineage of another machine is mirrored."""
    return cache_folder() / "lineages" / hashlib.sha256(address.encode()).hexdigest()


def cache_folder() -> Path:
    """Return the folder of caches: $EVERGRAM_CACHE, else the platform's place for them."""
    chosen = os.environ.get("EVERGRAM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.user_cache_path("evergram", appauthor=False)
