"""`TableStream`: a file of a table, of any size, read in batches of bounded memory."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from evergram.data.files.column_names import has_no_header
from evergram.data.files.decompression import DAMAGED, GzipReader
from evergram.data.prepared.sources.source_files import SourceFile
from evergram.errors import DataError
from evergram.quotation import refuse_open_quotation

# Rows of a batch at most; bytes of text that are parsed at once, and that a line may have.
ROWS, BLOCK = 1 << 17, 8 << 20
# The first line of a text must end within these bytes.
HEADER = 1 << 16
# Separators of cells to try if the first line lacks the one that the suffix implies.
DELIMITERS = (",", ";", "\t", "|")
# The types that Arrow tries for a column of text, in its order.
_TRIED = (
    *(pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s")),
    *(pa.timestamp("s"), pa.timestamp("ns"), pa.float64(), pa.string()),
)
WIDER = dict(pairwise(_TRIED))
_NARROW = re.compile(r"In CSV column #(\d+): (Row #\d+: )?CSV conversion error to")


class TableStream:
    """The columns and batches of a file.

    Args:
        file: Parquet, Arrow, CSV or TSV.
    Raises: DataError: the file is missing, empty, damaged, or has two columns of one name.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self._delimiter = file.delimiter
        self._closes_marks = False
        if file.is_text:
            self._delimiter = self._delimiter_of_first_line()
        with self._reading() as opened:
            self.schema: pa.Schema = opened.schema_arrow if file.is_parquet else opened.schema
        self._refuse_repeated_names()

    @property
    def names(self) -> list[str]:
        return list(self.schema.names)

    def batches(
        self, columns: Sequence[str], types: Mapping[str, pa.DataType] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield these columns, at most ROWS rows at a time; those of a text as strings.

        An empty cell of a text is null, and nothing else is.

        Args:
            types: of columns of a text that are no strings.
        Raises: DataError: the file is damaged; the error names the row of a text; or a quotation
            mark of a text, also in a column that is not asked for, does not close.
        """
        with self._reading(dict.fromkeys(columns, pa.string()) | dict(types or {})) as opened:
            if self.file.is_parquet:
                yield from _only(opened.iter_batches(ROWS, columns=list(columns)), columns)
            elif self.file.is_text:
                rows = 0
                for batch in _only(opened, columns):
                    rows += batch.num_rows
                    yield batch
                self._refuse_swallowed_rows(rows)
            else:
                numbers = range(opened.num_record_batches)
                yield from _only((opened.get_batch(i) for i in numbers), columns)

    def inferred_types(self) -> dict[str, pa.DataType]:
        """Return the types of a text's columns that Arrow infers of all of it, in bounded memory.

        Raises: DataError: the file is damaged.
        """
        # Of the first block; a block that does not fit its type is read again with the next one.
        types = {field.name: field.type for field in self.schema}
        while True:
            try:
                with self._reading(types) as opened:
                    for _ in opened:
                        pass
                return types
            except DataError as error:
                narrow = _NARROW.search(str(error.__cause__))
                name = self.names[int(narrow[1])] if narrow else ""
                if types.get(name) not in WIDER:
                    raise
                types[name] = WIDER[types[name]]

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
    def _reading(self, types: Mapping[str, pa.DataType] | None = None) -> Iterator[Any]:
        """Yield Arrow's reader of the file; its errors become DataErrors.

        Args:
            types: of the columns of a text to read; None reads all, of the types of its first
                block.
        """
        try:
            if not self.file.size():
                raise DataError(f"{self.file.name} is empty; it needs a header and rows.")
            with self.file.open() as stream:
                if self.file.is_parquet:
                    yield pq.ParquetFile(stream, pre_buffer=self.file.files is not None)
                elif self.file.is_text:
                    with self._csv(self._unpacked(stream), types) as reader:
                        yield reader
                elif self.file.files is None:
                    with pa.memory_map(self.file.path) as mapped:
                        yield pa.ipc.open_file(mapped)
                else:
                    yield pa.ipc.open_file(stream)
        except DataError:
            raise
        except (*DAMAGED, pa.ArrowException) as error:
            if isinstance(error, FileNotFoundError):
                raise DataError(f"There is no file {self.file.name}.") from error
            raise self._damage(self._of_one_thread(error, types)) from error

    def _of_one_thread(
        self, error: Exception, types: Mapping[str, pa.DataType] | None
    ) -> Exception:
        """Return an error of Arrow with the row of a text, which several threads do not know."""
        if not isinstance(error, pa.ArrowInvalid) or not self.file.is_text:
            return error
        try:
            with self.file.open() as stream:
                for _ in self._csv(self._unpacked(stream), types, use_threads=False):
                    pass
        except (*DAMAGED, pa.ArrowException) as of_one:
            error = of_one
        return error

    def _damage(self, error: Exception) -> DataError:
        text, where = _sentence(error), ""
        if line := re.search(r"Row #(\d+): ", text):  # counts the header
            where, text = f" row {int(line[1]) - 1}", text.replace(line[0], "")
        return DataError(f"{self.file.name}{where} cannot be read: {text}.")

    def _unpacked(self, stream: Any) -> Any:
        if not self.file.is_gzip:
            return stream
        return GzipReader(self.file.name, (stream, self.file.size()))

    def _csv(
        self,
        stream: Any,
        types: Mapping[str, pa.DataType] | None,
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
                column_types=types,
                include_columns=list(types or ()),
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

    def _refuse_repeated_names(self) -> None:
        for name in self.names:
            if self.names.count(name) > 1:
                if self.file.is_text and has_no_header(self.names):
                    raise DataError(
                        f"{self.file.name} has no header: its first line ({', '.join(self.names)}) "
                        "seems to be a row; write a line above it that names its columns."
                    )
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


def _only(batches: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield these columns of each batch, in this order, in pieces of at most ROWS rows."""
    for batch in batches:
        chosen = batch.select(list(columns))
        for start in range(0, batch.num_rows, ROWS):
            yield chosen.slice(start, ROWS)


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return "it is not in UTF-8; save the file as UTF-8" if "UTF8" in text else text
