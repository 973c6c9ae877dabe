"""The files that a source names: a file, a folder, a glob, or an address such as s3://…."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import unquote

from evergram.data.data_sets import whole_path
from evergram.errors import DataError

# A file, a folder, a glob or an address, or several.
Paths: TypeAlias = str | Path | list[str | Path] | tuple[str | Path, ...]
SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]*(::[a-z][a-z0-9+.\-]*)*://", re.IGNORECASE)
# A missing value in the name of a folder, as Hive, Spark and Arrow write it.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class SourceFile:
    """A file of a table.

    Args:
        name: its path or address, for errors.
        path: in its file system.
        files: fsspec's file system of an address; None for this machine's disk.
    """

    name: str
    path: str
    files: Any = None

    @property
    def is_text(self) -> bool:
        return self._lower.endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz"))

    @property
    def is_parquet(self) -> bool:
        return self._lower.endswith((".parquet", ".pq"))

    @property
    def is_gzip(self) -> bool:
        return self._lower.endswith(".gz")

    @property
    def delimiter(self) -> str:
        """The separator of cells that the suffix of a text implies."""
        return "\t" if ".tsv" in self._lower[-7:] else ","

    @property
    def _lower(self) -> str:
        return self.path.lower()

    @property
    def folders(self) -> dict[str, str | None]:
        """The columns in the names of the folders that it is in, such as `day=2024-05-31`: those
        between it and the next folder of another name; None for a missing value."""
        columns: dict[str, str | None] = {}
        for folder in reversed(self.path.replace("\\", "/").split("/")[:-1]):
            name, sign, value = folder.partition("=")
            if not (name and sign):
                break
            columns[unquote(name)] = None if value == _NO_VALUE else unquote(value)
        return dict(reversed(columns.items()))

    def size(self) -> int:
        """Return its bytes."""
        size = Path(self.path).stat().st_size if self.files is None else self.files.size(self.path)
        return int(size)

    def open(self) -> IO[bytes]:
        """Open it to read. Raises: OSError."""
        if self.files is None:
            return Path(self.path).open("rb")
        opened: IO[bytes] = self.files.open(self.path, "rb")
        return opened


def source_files(sources: Paths) -> list[SourceFile]:
    """Return the files of all sources: those of a source in order of their names.

    Raises: DataError: a source names no file of a known format; or fsspec, or its driver for an
        address, is not installed.
    """
    files: list[SourceFile] = []
    for source in sources if isinstance(sources, list | tuple) else [sources]:
        is_address = isinstance(source, str) and _ADDRESS.match(source)
        files += _remote_files(str(source)) if is_address else _local_files(str(source))
    if not files:
        raise DataError("No source was named; name files, folders, globs or addresses.")
    return files


def _local_files(source: str) -> list[SourceFile]:
    path = whole_path(source, Path())
    if path.is_dir():
        inside = sorted(
            p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path).parts)
        )
        return _of_known_format(source, [SourceFile(str(p), str(p)) for p in inside])
    if not path.exists() and _WILD.search(source):
        names = sorted(str(p) for p in Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        files = [SourceFile(name, name) for name in names if Path(name).is_file()]
        if not files:
            raise DataError(f"No file matches {source}; is the folder right?")
        return [_checked(file) for file in files]
    if not path.exists():
        raise DataError(f"There is no file {source}.")
    return [_checked(SourceFile(source, str(path)))]


def _remote_files(address: str) -> list[SourceFile]:
    try:
        import fsspec
    except ImportError:
        raise DataError(
            f"The source {address} is read through fsspec: pip install 'evergram[remote]'."
        ) from None
    try:
        files, path = fsspec.core.url_to_fs(address)
        scheme = address.partition("://")[0]
        if _WILD.search(path):
            names = sorted(name for name in files.glob(path) if files.isfile(name))
        elif files.isdir(path):
            names = sorted(files.find(path))
        else:
            if not files.exists(path):
                raise DataError(f"There is no file {address}.")
            return [_checked(SourceFile(address, path, files))]
    except DataError:
        raise
    except Exception as error:  # of a driver, each of which has errors of its own
        raise DataError(f"{address} cannot be opened: {str(error).rstrip('.')}.") from error
    return _of_known_format(address, [SourceFile(f"{scheme}://{n}", n, files) for n in names])


def _of_known_format(source: str, files: list[SourceFile]) -> list[SourceFile]:
    known = [file for file in files if file.path.lower().endswith(SUFFIXES)]
    if not known:
        raise DataError(
            f"{source} holds no file of a known format; the known ones end in: "
            f"{', '.join(SUFFIXES)}."
        )
    return known


def _checked(file: SourceFile) -> SourceFile:
    if not file.path.lower().endswith(SUFFIXES):
        raise DataError(
            f"{file.name} is of no known format; the known ones end in: {', '.join(SUFFIXES)}."
        )
    return file


def _hidden(parts: tuple[str, ...]) -> bool:
    """Return True for a file that other programs leave in folders of tables, as _SUCCESS."""
    return any(part.startswith((".", "_")) for part in parts)
