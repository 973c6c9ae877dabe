"""`TableStream`: a file of a table, of any size, read in batches of bounded memory."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from evergram.data.reading.column_names import has_no_header, lacking
from evergram.data.reading.source_files import SourceFile
from evergram.data.reading.text_files import DAMAGED, GzipReader, unreadable_csv
from evergram.errors import DataError
from evergram.file_content import refuse_other_content, unreadable
from evergram.quotation import refuse_open_quotation

# Rows of a batch at most; bytes of text that are parsed at once, and that a line may have.
ROWS, BLOCK = 1 << 17, 8 << 20
# The first line of a text must end within these bytes.
HEADER = 1 << 16
# Separators of cells to try if the first line lacks the one that the suffix implies.
DELIMITERS = (",", ";", "\t", "|")


class TableStream:
    """The columns and batches of a file.

    The names of the folders that a file is in, such as `day=2024-05-31`, are columns, too.

    Args:
        file: Parquet, Arrow, CSV or TSV.
    Attributes:
        texts: columns of cells of text, of a file of text or the name of a folder; they are read
            as strings, and null where they are empty.
    Raises: DataError: the file is missing, empty, damaged, or has two columns of one name.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self._delimiter = file.delimiter
        self._closes_marks = False
        if file.is_text:
            if file.files is None:
                own = [b"\x1f\x8b"] if file.is_gzip else []
                refuse_other_content(Path(file.path), *own)
            self._delimiter = self._delimiter_of_first_line()
        with self._reading() as opened:
            schema: pa.Schema = opened.schema_arrow if file.is_parquet else opened.schema
            names = schema.names  # here, as they may not be in UTF-8
        self._refuse_repeated_names(names)
        self._folders = {n: v for n, v in file.folders.items() if n not in schema.names}
        self.texts = frozenset([*(schema.names if file.is_text else ()), *self._folders])
        kinds = {f.name: pa.string() if file.is_text else f.type for f in schema}
        self.types: dict[str, pa.DataType] = kinds | dict.fromkeys(self._folders, pa.string())

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.file.name

    @property
    def has_header_line(self) -> bool:
        """Whether the names of its columns may be a row."""
        return self.file.is_text

    @property
    def names(self) -> list[str]:
        return list(self.types)

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
        return pa.record_batch(
            [
                pa.repeat(pa.scalar(self._folders[name], pa.string()), batch.num_rows)
                if name in self._folders
                else batch[name]
                for name in columns
            ],
            list(columns),
        )

    def _refuse_swallowed_rows(self, rows: int) -> None:
        """Refuse a text of more lines than rows, if one of its cells took other rows in."""
        if self._closes_marks or self._lines.count <= rows + 1:  # one of them is the header
            return
        with self.file.open() as stream:
            is_plain = self.file.files is None and not self.file.is_gzip
            unpacked = None if is_plain else self._unpacked(stream)
            refuse_open_quotation(self.file.name, self._delimiter, unpacked)
        self._closes_marks = True  # what has blank lines, or cells of several, is read once for it

    @contextmanager
    def _reading(self, columns: Sequence[str] = ()) -> Iterator[Any]:
        """Yield Arrow's reader of the file; its errors become DataErrors.

        Args:
            columns: those of a text that are read.
        """
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
        except DataError:
            raise
        except (*DAMAGED, UnicodeDecodeError, pa.ArrowException) as error:
            if isinstance(error, FileNotFoundError):
                raise DataError(f"There is no file {self.file.name}; correct the path.") from error
            raise self._damage(self._of_one_thread(error, columns)) from error

    def _of_one_thread(self, error: Exception, columns: Sequence[str]) -> Exception:
        """Return an error of Arrow with the row of a text, which several threads do not know."""
        if not isinstance(error, pa.ArrowInvalid) or not self.file.is_text:
            return error
        try:
            with self.file.open() as stream:
                for _ in self._csv(self._unpacked(stream), columns, use_threads=False):
                    pass
        except (*DAMAGED, pa.ArrowException) as of_one:
            error = of_one
        return error

    def _damage(self, error: Exception) -> DataError:
        if self.file.is_text:
            return unreadable_csv(self.file.name, error)
        return unreadable(
            Path(self.file.name), error, b"PAR1" if self.file.is_parquet else b"ARROW1"
        )

    def _unpacked(self, stream: Any) -> Any:
        if not self.file.is_gzip:
            return stream
        return GzipReader(self.file.name, (stream, self.file.size()))

    def _csv(
        self,
        stream: Any,
        columns: Sequence[str],
        *,
        use_threads: bool = True,
    ) -> Any:
        self._lines = _Lines(stream)
        return csv.open_csv(
            self._lines,
            csv.ReadOptions(block_size=BLOCK, use_threads=use_threads),
            csv.ParseOptions(delimiter=self._delimiter),
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
        if self.file.delimiter in line:
            return self.file.delimiter
        return next((other for other in DELIMITERS if other in line), self.file.delimiter)

    def _refuse_repeated_names(self, names: Sequence[str]) -> None:
        for name in names:
            if names.count(name) > 1:
                if self.file.is_text and has_no_header(names):
                    raise DataError(lacking(self.file.name, {"query"}, names, {}))
                raise DataError(
                    f"{self.file.name} has two columns {name!r}; each needs a name of its own."
                )


class _Lines(io.RawIOBase):
    """A stream that counts the lines that were read of it."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream, self._ends, self._last = stream, 0, b"\n"

    @property
    def count(self) -> int:
        """Lines so far, also one without an end."""
        return self._ends + (self._last != b"\n")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part: bytes = self._stream.read(size)
        self._ends += part.count(b"\n")
        self._last = part[-1:] or self._last
        return part


class MemoryTable:
    """The columns and batches of a table in memory.

    Args:
        name: for errors.
        table: without two columns of one name.
    """

    has_header_line = False
    texts: frozenset[str] = frozenset()

    def __init__(self, table: pa.Table, name: str) -> None:
        self.name, self._table = name, table
        self.types = {field.name: field.type for field in table.schema}
        for column in table.column_names:
            if table.column_names.count(column) > 1:
                raise DataError(f"{name} has two columns {column!r}; each needs a name of its own.")

    @property
    def names(self) -> list[str]:
        return list(self.types)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns, at most ROWS rows at a time."""
        yield from self._table.select(list(columns)).to_batches(max_chunksize=ROWS)
