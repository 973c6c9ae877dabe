"""Files of tables: `source_files` finds them, `TableStream` reads one in batches of bounded
memory."""

from __future__ import annotations

import gzip
import io
import lzma
import re
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from evergram.data.data_sets import whole_path
from evergram.data.reading.column_names import has_no_header, lacking
from evergram.errors import DataError
from evergram.file_content import refuse_open_quotation, refuse_other_content, unreadable

# A file, a folder, a glob or an address, or several.
Paths: TypeAlias = str | Path | list[str | Path] | tuple[str | Path, ...]
TEXTS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", *TEXTS)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.\-]*(::[a-z][a-z0-9+.\-]*)*://", re.IGNORECASE)
# A missing value in the name of a folder, as Hive, Spark and Arrow write it.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WILD = re.compile(r"[*?\[]")
# Rows of a batch at most; bytes of text that are parsed at once, and that a line may have.
ROWS, BLOCK = 1 << 17, 8 << 20
# The first line of a text must end within these bytes.
HEADER = 1 << 16
# Separators of cells to try if the first line lacks the one that the suffix implies.
DELIMITERS = (",", ";", "\t", "|")
# Errors of the standard library's decoders for a file that is cut or damaged; zipfile raises
# RuntimeError for a member that needs a password, or has an unknown compression.
DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile, lzma.LZMAError, RuntimeError)


@dataclass(frozen=True)
class SourceFile:
    """A file of a table.

    Args:
        name: its path or address, for errors.
        path: in its file system.
        files: fsspec's file system of an address; None for this machine's disk.
        content: of a file in memory.
    """

    name: str
    path: str
    files: Any = None
    content: bytes | None = None

    @property
    def is_text(self) -> bool:
        return self.path.lower().endswith(TEXTS)

    @property
    def is_parquet(self) -> bool:
        return self.path.lower().endswith((".parquet", ".pq"))

    @property
    def is_gzip(self) -> bool:
        return self.path.lower().endswith(".gz")

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
        if self.content is not None:
            return len(self.content)
        return int(
            Path(self.path).stat().st_size if self.files is None else self.files.size(self.path)
        )

    def open(self) -> IO[bytes]:
        if self.content is not None:
            return io.BytesIO(self.content)
        if self.files is None:
            return Path(self.path).open("rb")
        opened: IO[bytes] = self.files.open(self.path, "rb")
        return opened


def source_files(sources: Paths) -> list[SourceFile]:
    """Return the files of all sources: those of a source in order of their names."""
    files: list[SourceFile] = []
    for source in map(str, sources if isinstance(sources, list | tuple) else [sources]):
        is_one, found = _remote(source) if _ADDRESS.match(source) else _local(source)
        known = [file for file in found if file.path.lower().endswith(SUFFIXES)]
        if not known or (is_one and len(known) < len(found)):
            what = "is a file of no known format" if is_one else "holds no file of a known format"
            raise DataError(f"{source} {what}; the known ones end in: {', '.join(SUFFIXES)}.")
        files += known
    if not files:
        raise DataError("No source was named; name files, folders, globs or addresses.")
    return files


def _local(source: str) -> tuple[bool, list[SourceFile]]:
    """Return whether a source names files and no folder, and its files."""
    path = whole_path(source, Path())
    if path.is_dir():
        # Other programs leave files in folders of tables, as _SUCCESS.
        inside = sorted(
            str(p)
            for p in path.rglob("*")
            if p.is_file() and not any(n.startswith((".", "_")) for n in p.relative_to(path).parts)
        )
        return False, [SourceFile(name, name) for name in inside]
    if path.exists():
        return True, [SourceFile(source, str(path))]
    if not _WILD.search(source):
        raise DataError(f"There is no file {source}.")
    names = sorted(str(p) for p in Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    files = [SourceFile(name, name) for name in names if Path(name).is_file()]
    if not files:
        raise DataError(f"No file matches {source}; is the folder right?")
    return True, files


def _remote(address: str) -> tuple[bool, list[SourceFile]]:
    """Return the same of an address."""
    try:
        import fsspec
    except ImportError:
        raise DataError(
            f"The source {address} is read through fsspec: pip install 'evergram[remote]'."
        ) from None
    try:
        files, path = fsspec.core.url_to_fs(address)
        if _WILD.search(path):
            names = sorted(name for name in files.glob(path) if files.isfile(name))
        elif files.isdir(path):
            names = sorted(files.find(path))
        elif files.exists(path):
            return True, [SourceFile(address, path, files)]
        else:
            raise DataError(f"There is no file {address}.")
    except DataError:
        raise
    except Exception as error:  # of a driver, each of which has errors of its own
        raise DataError(f"{address} cannot be opened: {str(error).rstrip('.')}.") from error
    scheme = address.partition("://")[0]
    return False, [SourceFile(f"{scheme}://{name}", name, files) for name in names]


def unpacked(path: Path) -> gzip.GzipFile | BufferedReader:
    """Open a file that ends in .gz if it is compressed."""
    return gzip.GzipFile(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _unreadable_csv(source: str, error: Exception) -> DataError:
    message = " ".join(str(error).split()).rstrip(".")
    if "UTF8" in message or isinstance(error, UnicodeDecodeError):
        message = "it is not in UTF-8; save the file as UTF-8"
    elif isinstance(error, DAMAGED) and not isinstance(error, pa.ArrowException):
        message += "; if it is damaged or was cut short, get or write it anew"
    else:
        message += "; correct the line, and quote a cell that has the separator in it"
    return DataError(f"{source} cannot be read: {message}.")


class Table:
    """Columns that are read in batches.

    Attributes:
        name: what errors call it.
        has_header_line: whether the names of its columns may be a row.
        types: by name of a column.
        texts: columns of cells of text, of a file of text or the name of a folder; they are read
            as strings, and null where they are empty.
    """

    has_header_line = False
    texts: frozenset[str] = frozenset()

    def __init__(self, name: str, types: dict[str, pa.DataType]) -> None:
        self.name, self.types = name, types

    @property
    def names(self) -> list[str]:
        return list(self.types)

    @abstractmethod
    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns, at most ROWS rows at a time."""


class TableStream(Table):
    """A file of Parquet, Arrow, CSV or TSV; the names of its folders, such as `day=2024-05-31`, are
    columns, too.

    Raises: DataError: the file is missing, empty, damaged, or has two columns of one name.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file, self.name = file, file.name
        self.has_header_line: bool = file.is_text
        self._closes_marks = False
        on_disk = file.files is None and file.content is None
        self._plain = on_disk and not file.is_gzip
        if file.is_text:
            if on_disk:
                refuse_other_content(Path(file.path), *([b"\x1f\x8b"] if file.is_gzip else []))
            self._delimiter = self._delimiter_of_first_line()
        with self._reading() as opened:
            schema: pa.Schema = opened.schema_arrow if file.is_parquet else opened.schema
            names = schema.names  # here, as they may not be in UTF-8
        if file.is_text and len(set(names)) < len(names) and has_no_header(names):
            raise DataError(lacking(self.name, {"query"}, names, {}))
        refuse_repeated_names(names, self.name)
        self._folders = {n: v for n, v in file.folders.items() if n not in names}
        self.texts: frozenset[str] = frozenset([*(names if file.is_text else ()), *self._folders])
        types = {field.name: field.type for field in schema}
        super().__init__(file.name, types | dict.fromkeys(self.texts, pa.string()))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns, at most ROWS rows at a time.

        Raises: DataError: the file is damaged; the error names the row of a text; or a quotation
            mark of a text, also in a column that is not asked for, does not close.
        """
        own = [name for name in columns if name not in self._folders]
        # Of a file whose columns are all names of folders, its first column tells the rows.
        read = own or [next(name for name in self.names if name not in self._folders)]
        with self._reading(read) as opened:
            if self.file.is_parquet:
                batches: Any = opened.iter_batches(ROWS, columns=read)
            elif self.file.is_text:
                batches = opened
            else:
                batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
            rows = 0
            for batch in batches:
                for start in range(0, batch.num_rows, ROWS):
                    yield self._only(batch.slice(start, ROWS), columns)
                rows += batch.num_rows
            if self.file.is_text:
                self._refuse_swallowed_rows(rows)

    def _only(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Return these columns of a batch, in this order, and those of the folders."""
        cells = [
            pa.repeat(pa.scalar(self._folders[name], pa.string()), batch.num_rows)
            if name in self._folders
            else batch[name]
            for name in columns
        ]
        return pa.record_batch(cells, list(columns))

    def _refuse_swallowed_rows(self, rows: int) -> None:
        """Refuse a text with more lines than rows if a cell has swallowed other rows."""
        if self._closes_marks or self._lines.count <= rows + 1:  # one of them is the header
            return
        with self.file.open() as stream:
            unpacked = None if self._plain else self._unpacked(stream)
            refuse_open_quotation(self.file.name, self._delimiter, unpacked)
        self._closes_marks = True  # what has blank lines, or cells of several, is read once for it

    @contextmanager
    def _reading(self, columns: Sequence[str] = ()) -> Iterator[Any]:
        """Yield Arrow's reader of the file, of a text of these columns alone; its errors become
        DataErrors."""
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
            raise self._damage(error) from error

    def _damage(self, error: Exception) -> DataError:
        if self.file.is_text:
            return _unreadable_csv(self.file.name, error)
        own = b"PAR1" if self.file.is_parquet else b"ARROW1"
        return unreadable(Path(self.file.name), error, own)

    def _unpacked(self, stream: Any) -> Any:
        if not self.file.is_gzip:
            return stream
        return gzip.GzipFile(fileobj=stream)

    def _csv(self, stream: Any, columns: Sequence[str]) -> Any:
        self._lines = _Lines(stream)
        return csv.open_csv(
            self._lines,
            csv.ReadOptions(block_size=BLOCK),
            csv.ParseOptions(delimiter=self._delimiter),
            # Only an empty cell is missing; a written NaN stays one, to be refused by its row.
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
            raise self._damage(error) from error
        line = start.splitlines()[0].decode(errors="replace") if start.strip() else ""
        first = "\t" if ".tsv" in self.file.path.lower()[-7:] else ","
        return next((one for one in (first, *DELIMITERS) if one in line), first)


class _Lines(io.RawIOBase):
    """A stream that counts the lines that were read of it, also one without an end."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream, self._ends, self._last = stream, 0, b"\n"

    @property
    def count(self) -> int:
        return self._ends + (self._last != b"\n")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part: bytes = self._stream.read(size)
        self._ends += part.count(b"\n")
        self._last = part[-1:] or self._last
        return part


class MemoryTable(Table):
    """A table in memory. Raises: DataError: two columns have one name."""

    def __init__(self, table: pa.Table, name: str) -> None:
        refuse_repeated_names(table.column_names, name)
        super().__init__(name, {field.name: field.type for field in table.schema})
        # Files say nothing of which columns have no nulls, and neither does this.
        self._table = pa.table(table.columns, names=table.column_names)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._table.select(list(columns)).to_batches(max_chunksize=ROWS)


def refuse_repeated_names(names: Sequence[str], source: str) -> None:
    """Raises: DataError: two columns have one name."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise DataError(f"{source} has two columns {repeated!r}; rename one of them.")
