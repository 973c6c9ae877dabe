"""Find table files (`source_files`), read one in batches of bounded memory (`TableStream`), and
guess the roles of columns from their names (`guess`)."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeAlias
from unicodedata import normalize

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from evergram.data.data_sets import whole_path
from evergram.did_you_mean import did_you_mean
from evergram.errors import DataError, clause_of
from evergram.file_content import refuse_open_quotation, refuse_other_content, unreadable

# One or several files, folders, globs or addresses.
Paths: TypeAlias = str | Path | list[str | Path] | tuple[str | Path, ...]
TEXTS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", *TEXTS)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]*(::[a-z][a-z0-9+.\-]*)*://", re.IGNORECASE)
_WILD = re.compile(r"[*?\[]")
# The most rows in a batch; the bytes of text parsed at once, which also limit a line's length.
ROWS, BLOCK = 1 << 17, 8 << 20
# The largest header of a text file, in bytes.
HEADER = 1 << 16
# Delimiters to try if the header lacks the one that the suffix implies.
DELIMITERS = (",", ";", "\t", "|")
# Decoders' errors for damaged files; zipfile raises RuntimeError for a password.
DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile, lzma.LZMAError, RuntimeError)


# Usual column names in English, German, French and Spanish, in lower case, without accents,
# punctuation, and suffixes such as "id".
VARIANTS = {
    "query": "query user u customer client member visitor session reviewer reader listener viewer "
    "account person author buyer consumer source playlist kunde kunden nutzer benutzer kaufer "
    "kaeufer besteller mitglied utilisateur acheteur membre usuario cliente comprador",
    "candidate": "candidate item i movie film product article asin track song artist book isbn "
    "video show game page url document doc business place poi location sku offer ad target artikel "
    "produkt ware buch produit livre producto articulo libro pelicula",
    "value": "value rating score star stars overall count plays clicks strength label y quantity "
    "bewertung sterne wert anzahl menge quantite cantidad valor",
    "time": "time timestamp date datetime ts unixtime unixreviewtime createdat created addedat "
    "added day zeit zeitpunkt zeitstempel datum kaufdatum bestelldatum heure fecha hora",
}
# Suffixes of column names to ignore.
_SUFFIX = re.compile(r"(?<=.)(id|ids|idx|index|key|no|nr|num|number|nummer|code|uuid|name)$")


@dataclass(frozen=True)
class SourceFile:
    """A table file."""

    name: str  # the path or address, for error messages
    path: str  # the path in the file system
    files: Any = None  # the fsspec file system of an address; None for a local file
    content: bytes | None = None  # the bytes of a file in memory

    @property
    def is_text(self) -> bool:
        return self.path.lower().endswith(TEXTS)

    @property
    def is_parquet(self) -> bool:
        return self.path.lower().endswith((".parquet", ".pq"))

    @property
    def is_gzip(self) -> bool:
        return self.path.lower().endswith(".gz")

    def size(self) -> int:
        if self.content is not None:
            return len(self.content)
        is_local = self.files is None
        return int(Path(self.path).stat().st_size if is_local else self.files.size(self.path))

    def open(self) -> IO[bytes]:
        if self.content is not None:
            return io.BytesIO(self.content)
        if self.files is None:
            return Path(self.path).open("rb")
        opened: IO[bytes] = self.files.open(self.path, "rb")
        return opened


def source_files(sources: Paths) -> list[SourceFile]:
    """Return the files of all sources; the files of each folder or glob are sorted by name."""
    files: list[SourceFile] = []
    for source in map(str, sources if isinstance(sources, list | tuple) else [sources]):
        is_exact, found = _remote(source) if _ADDRESS.match(source) else _local(source)
        tables = [file for file in found if file.path.lower().endswith(SUFFIXES)]
        if not tables or (is_exact and len(tables) < len(found)):
            what = "has an unsupported format" if is_exact else "has no file in a supported format"
            raise DataError(f"{source} {what}; supported suffixes are: {', '.join(SUFFIXES)}.")
        files += tables
    if not files:
        raise DataError("No source was given; give files, folders, globs or addresses.")
    return files


def _local(source: str) -> tuple[bool, list[SourceFile]]:
    """Return True if every file must be a table (not in a folder), and the files of a source."""
    path = whole_path(source, Path())
    if path.is_file():
        return True, [SourceFile(source, str(path))]
    found, is_wild = path.rglob("*"), not path.is_dir()
    if is_wild:
        if not _WILD.search(source):
            raise DataError(f"There is no file {source}.")
        found, path = Path(path.anchor).glob(str(path.relative_to(path.anchor))), Path(path.anchor)
    # Skip the files that other programs leave in folders of tables, such as _SUCCESS.
    names = sorted(
        str(p)
        for p in found
        if p.is_file()
        and (is_wild or not any(n.startswith((".", "_")) for n in p.relative_to(path).parts))
    )
    if is_wild and not names:
        raise DataError(f"No file matches {source}; is the folder right?")
    return is_wild, [SourceFile(name, name) for name in names]


def _remote(address: str) -> tuple[bool, list[SourceFile]]:
    """Do the same for an address."""
    try:
        import fsspec
    except ImportError:
        raise DataError(
            f"Reading {address} needs fsspec: pip install 'evergram[remote]'."
        ) from None
    try:
        files, path = fsspec.core.url_to_fs(address)
        if files.isfile(path):
            return True, [SourceFile(address, path, files)]
        is_wild = _WILD.search(path)
        names = sorted(filter(files.isfile, files.glob(path)) if is_wild else files.find(path))
    except Exception as error:  # each fsspec driver raises its own types
        raise DataError(f"{address} cannot be opened: {str(error).rstrip('.')}.") from error
    if not names:
        raise DataError(f"There is no file {address}.")
    scheme = address.partition("://")[0]
    return False, [SourceFile(f"{scheme}://{name}", name, files) for name in names]


def unpacked(path: Path) -> gzip.GzipFile | BufferedReader:
    """Open a file for reading; decompress it if its name ends in .gz."""
    return gzip.GzipFile(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _unreadable_csv(source: str, error: Exception) -> DataError:
    message = clause_of(error)
    if "UTF8" in message or isinstance(error, UnicodeDecodeError):
        message = "it is not in UTF-8; save the file as UTF-8 (in Excel: CSV UTF-8)"
    elif isinstance(error, DAMAGED) and not isinstance(error, pa.ArrowException):
        message += "; if it is damaged or truncated, download or write it again"
    else:
        message += "; correct the line, and quote cells that contain the delimiter"
    return DataError(f"{source} cannot be read: {message}.")


class Table:
    """Columns that are read in batches.

    Attributes:
        name: its name in error messages.
        types: the type of each column.
        texts: the columns of a text file; they are read as strings, empty cells as null.
    """

    texts: frozenset[str] = frozenset()

    def __init__(self, name: str, schema: pa.Schema) -> None:
        names = schema.names
        refuse_repeated_names(names, name)
        self.name, self.types = name, dict(zip(names, schema.types, strict=True))

    @property
    def names(self) -> list[str]:
        return list(self.types)

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns, at most ROWS rows at a time."""


class TableStream(Table):
    """A Parquet, Arrow, CSV or TSV file.

    Raises: DataError: the file is missing, empty or damaged, or two columns have the same name.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file, self.name = file, file.name
        self._checked_quotes = False
        # Set to True to read CSV cells with line breaks, even across block boundaries.
        self.has_lines_in_cells: bool = False
        if file.is_text:
            if file.files is None and file.content is None:
                refuse_other_content(Path(file.path), *([b"\x1f\x8b"] if file.is_gzip else []))
            self._delimiter = self._delimiter_of_first_line()
        with self._reading() as opened:
            schema: pa.Schema = opened.schema_arrow if file.is_parquet else opened.schema
            names = schema.names  # in this block because they may not be UTF-8
        if file.is_text:
            self.texts: frozenset[str] = frozenset(names)
            schema = pa.schema([(name, pa.string()) for name in names])
        super().__init__(file.name, schema)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns, at most ROWS rows at a time.

        Raises: DataError: the file is damaged (for a text file, the error names the row), or a
            quotation mark of a text file, in any column, is not closed.
        """
        columns, rows = list(columns), 0
        with self._reading(columns) as opened:
            if self.file.is_parquet:
                yield from opened.iter_batches(ROWS, columns=columns)
            elif self.file.is_text:
                for batch in opened:
                    yield from _pieces(batch)
                    rows += batch.num_rows
                # More lines than rows: blank lines, line breaks in cells, or an open quote.
                if not self._checked_quotes and self._lines.count > rows + 1:
                    with self.file.open() as stream:
                        content = self._unpacked(stream)
                        refuse_open_quotation(self.file.name, self._delimiter, content)
                    self._checked_quotes = True
            else:
                for number in range(opened.num_record_batches):
                    yield from _pieces(opened.get_batch(number).select(columns))

    @contextmanager
    def _reading(self, columns: Sequence[str] = ()) -> Iterator[Any]:
        """Yield Arrow's reader of the file; its errors become DataErrors."""
        try:
            if not self.file.size():
                raise DataError(f"{self.file.name} is empty; it needs a header and rows.")
            with self.file.open() as stream:
                if self.file.is_parquet:
                    yield pq.ParquetFile(stream, pre_buffer=self.file.files is not None)
                elif self.file.is_text:
                    with self._csv(self._unpacked(stream), columns) as reader:
                        yield reader
                elif self.file.files is None:
                    with pa.memory_map(self.file.path) as mapped:
                        yield pa.ipc.open_file(mapped)
                else:
                    yield pa.ipc.open_file(stream)
        except FileNotFoundError as error:
            raise DataError(f"There is no file {self.file.name}; correct the path.") from error
        except (*DAMAGED, UnicodeDecodeError, pa.ArrowException) as error:
            if self.file.is_text:
                raise _unreadable_csv(self.file.name, error) from error
            signature = b"PAR1" if self.file.is_parquet else b"ARROW1"
            raise unreadable(Path(self.file.name), error, signature) from error

    def _unpacked(self, stream: Any) -> Any:
        return gzip.GzipFile(fileobj=stream) if self.file.is_gzip else stream

    def _csv(self, stream: Any, columns: Sequence[str]) -> Any:
        self._lines = _Lines(stream)
        return csv.open_csv(
            self._lines,
            csv.ReadOptions(block_size=BLOCK),
            csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=self.has_lines_in_cells),
            # Only an empty cell is null; a cell such as NaN is refused later, with its row.
            csv.ConvertOptions(
                null_values=[""],
                strings_can_be_null=True,
                column_types=dict.fromkeys(columns, pa.string()),
                include_columns=list(columns),
            ),
        )

    def _delimiter_of_first_line(self) -> str:
        try:
            with self.file.open() as stream:
                start = self._unpacked(stream).read(HEADER)
        except DAMAGED as error:
            raise _unreadable_csv(self.file.name, error) from error
        line = start.splitlines()[0].decode(errors="replace") if start.strip() else ""
        implied = "\t" if ".tsv" in self.file.path.lower()[-7:] else ","
        return next((mark for mark in (implied, *DELIMITERS) if mark in line), implied)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(start, ROWS) for start in range(0, batch.num_rows, ROWS))


class _Lines(io.RawIOBase):
    """A stream that counts the lines read so far, including a last one without a line break."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream, self._ends, self._last = stream, 0, b"\n"

    @property
    def count(self) -> int:
        return self._ends + (self._last != b"\n")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._stream.read(size)
        self._ends += content.count(b"\n")
        self._last = content[-1:] or self._last
        return content


class MemoryTable(Table):
    """A table in memory. Raises: DataError: two columns have the same name."""

    def __init__(self, table: pa.Table, name: str) -> None:
        super().__init__(name, table.schema)
        # Drop the nullability of columns, which files do not declare either.
        self._table = pa.table(table.columns, names=table.column_names)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._table.select(list(columns)).to_batches(max_chunksize=ROWS)


def refuse_repeated_names(names: Sequence[str], source: str) -> None:
    """Raises: DataError: two columns have the same name."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(
            f"{source} has two columns {repeated!r}; rename one of them, or add a header line if a "
            "text file has none."
        )


def guess(names: Sequence[str]) -> dict[str, str]:
    """Guess from their names which columns are the query, candidate, value and time."""
    columns: dict[str, str] = {}
    for role, variants in VARIANTS.items():
        for variant in variants.split():
            matches = [n for n in names if variant in _plain(n) and n not in columns.values()]
            if matches and role not in columns:
                columns[role] = matches[0]
    return columns


def suggestions(names: Sequence[str]) -> dict[str, list[str]]:
    return {
        role: [name for name in names if _plain(name) & set(variants.split())]
        for role, variants in VARIANTS.items()
    }


def refuse_unknown(source: str, requested: Iterable[str], names: Sequence[str]) -> None:
    """Raise a DataError that lists all requested columns that `source` lacks."""
    absent = [name for name in dict.fromkeys(requested) if name not in names]
    if absent:
        listed = ", ".join(f"{name!r}{did_you_mean(name, names)}" for name in absent)
        raise DataError(
            f"{source} has no column{'s' * (len(absent) > 1)} {listed}; its columns are: "
            f"{', '.join(names)}."
        )


def missing_columns(
    table: Table, missing: Collection[str], chosen: Mapping[str, str], names: Sequence[str]
) -> str:
    """Return the message about missing columns, given by role, with suggested options."""
    first, guesses = min(missing, key=list(VARIANTS).index), guess(names)
    columns = {"query": "…", "candidate": "…"}
    columns |= {role: n for role, n in guesses.items() if n not in chosen.values()} | dict(chosen)
    entries = (f"{role} = {json.dumps(n, ensure_ascii=False)}" for role, n in columns.items())
    options = " ".join(f"--column {role}={name}" for role, name in columns.items())
    hint = ""
    if table.texts and not chosen and not guesses:
        hint = "If this is a row, add a header line above it, such as query,candidate. "
    return (
        f"{table.name} has no column {first!r}; its columns are: {', '.join(names) or 'none'}. "
        f"{hint}Give the role of each column ({options}); in a recipe, under [data], "
        f"columns = {{{', '.join(entries)}}}"
    )


def _plain(name: str) -> set[str]:
    """Return the normalized forms of a name: userid and user for "User ID"."""
    letters = re.sub(r"[^0-9a-z]", "", normalize("NFKD", name.lower()))
    return {letters, _SUFFIX.sub("", letters)}
