"""Read one table of a MySQL or MariaDB dump as Arrow batches, in constant memory.

A pattern made from the table's CREATE TABLE matches one row and captures only the wanted columns.
Rows must follow each other without a gap, so that none is skipped silently: text that the pattern
does not match is counted as a malformed row, and reading continues at the next row.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.reading.files import DAMAGED
from evergram.errors import DataError


class Window:
    """A part of a file's text that moves forward; a newline is added before and after the text.

    Args:
        path: the file; one whose name ends in `.gz` is unpacked.
        chunk: bytes to read at a time.
    Raises: DataError: the file cannot be opened, or `read_on` finds its gzip cut or damaged.
    """

    def __init__(self, path: Path, chunk: int) -> None:
        self.path = path
        self.chunk = chunk
        self.bytes: bytes = b"\n"
        self.offset: int = -1  # where the window begins in the uncompressed text
        self.ended: bool = False
        try:
            self.file: gzip.GzipFile | io.BufferedReader
            self.file = gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")
        except OSError as error:
            raise DataError(f"{path} cannot be opened: {error.strerror or error}.") from error

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def read_on(self, keep: int) -> None:
        """Drop the bytes before `keep` and read another chunk."""
        parts, size = [self.bytes[keep:]], 0
        self.offset += keep
        while size < self.chunk:
            try:
                part = self.file.read(self.chunk - size)
            except DAMAGED as error:
                why = " ".join(str(error).split()).rstrip(".")
                raise DataError(
                    f"{self.path} is cut or damaged ({why}); fetch it again."
                ) from error
            if not part:
                self.ended = True
                parts.append(b"\n")
                break
            parts.append(part)
            size += len(part)
        self.bytes = b"".join(parts)


STRING = rb"'((?:[^'\\]|\\.|'')*)'"
# As STRING, but without a step for each letter: a possessive run cannot be split another way.
FAST_STRING = rb"(?:_binary )?'%s[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+%s'"
ANY = rb"(?:NULL|[-+]?[\d.]++(?:[eE][-+]?\d++)?|0x[0-9A-Fa-f]++|" + FAST_STRING % (b"", b"") + rb")"
INTEGER = rb"(-?\d{1,18})"
TEXT = FAST_STRING % (b"(", b")")
ROW_BEGIN = rb"\s*+\("
ROW_END = rb"\)\s*+(?:,|(?=;))"

ANY_ROW = ROW_BEGIN + rb"(?:" + ANY + rb"(?:," + ANY + rb")*)?" + ROW_END
WHOLE_ROW = re.compile(ANY_ROW, re.DOTALL)
# Where a row begins after one that cannot be read, be it for a quote or a parenthesis.
NEXT_ROW = re.compile(
    rb"\)\s*(?:,(?=\s*\()|(?=;\s*\n))|,(?=" + ANY_ROW + rb")|(?=;\s*\n)", re.DOTALL
)
ESCAPE = re.compile(rb"\\(.)|''", re.DOTALL)
ESCAPED = {b"0": b"\0", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"Z": b"\x1a"}
ESCAPED |= {b"%": b"\\%", b"_": b"\\_"}  # these two keep their backslash, says MySQL


@cache
def row_pattern(
    written: tuple[str, ...], columns: tuple[tuple[str, bool, bool], ...]
) -> tuple[re.Pattern[bytes], list[str]]:
    """Return a pattern of one row and its end, and the names of the columns that it captures.

    Args:
        written: all columns of a row, in order.
        columns: (name, True for an integer, True if never NULL) of each column to capture.
    """
    wanted = {}
    for name, integer, required in columns:
        field = INTEGER if integer else TEXT
        wanted[name] = field if required else rb"(?:NULL|" + field + rb")"
    fields = [wanted.get(name, ANY) for name in written]
    pattern = re.compile(ROW_BEGIN + rb",".join(fields) + ROW_END, re.DOTALL)
    return pattern, [name for name in written if name in wanted]


def consecutive(pattern: re.Pattern[bytes], text: bytes, at: int) -> Iterator[re.Match[bytes]]:
    """Yield matches from `at` on; each begins at the end of the one before."""
    scanner = pattern.scanner(text, at)  # type: ignore[attr-defined]
    return iter(scanner.match, None)


def unescape(values: pa.Array) -> pa.Array:
    """Return binary values [n] with the escapes of the dump undone."""
    marked = pc.fill_null(
        pc.or_(pc.match_substring(values, b"\\"), pc.match_substring(values, b"''")), False
    )
    undone = [ESCAPE.sub(_undo, value) for value in values.filter(marked).to_pylist()]
    return pc.replace_with_mask(values, marked, pa.array(undone, pa.binary())) if undone else values


def _undo(match: re.Match[bytes]) -> bytes:
    letter = match[1]
    return b"'" if letter is None else ESCAPED.get(letter, letter)


CHUNK = 1 << 20
LONGEST_ROW = 1 << 16  # a longer row is malformed; none of MediaWiki's link tables comes near
LONGEST_HEAD = 1 << 12  # of an INSERT, up to its first row

REST = re.compile(rb"\s*\Z")


@dataclass
class TableReport:
    """Counts of the rows of a file that were read, and of those that were not.

    Args:
        source: the file.
        rows: rows read.
        malformed: rows left out: a wrong number of fields, a broken string, a column that is not
            of another type or NULL against the schema, text that is not UTF-8, or a row that the
            file's end cuts.
        first_malformed: the place of the first of them (its row, and its byte in the uncompressed
            text), its fault, and its beginning.
        truncated: how the text of a sound file breaks off; or "".
    """

    source: str
    rows: int = 0
    malformed: int = 0
    first_malformed: str = ""
    truncated: str = ""

    def note(self, row: int, byte: int, what: str, text: bytes) -> None:
        if not self.first_malformed:
            byte += len(text) - len(text.lstrip())  # from where the row itself begins
            shown = text.strip()[:80].decode("utf-8", "backslashreplace")
            self.first_malformed = f"row {row} (byte {byte}): {what}: {shown!r}"


class SqlTable:
    """One table of a dump.

    Args:
        path: of the file, `.sql` or `.sql.gz`.
        name: of the table.
        chunk: bytes to read at a time.
    Raises: DataError: the file cannot be opened, or has no CREATE TABLE of that name.
    """

    def __init__(self, path: Path, name: str, chunk: int = CHUNK) -> None:
        self.path = path
        self.name = name
        self.chunk = chunk
        self.report: TableReport = TableReport(str(path))
        self.columns: tuple[str, ...] = self._read_columns()

    def batches(
        self, columns: Mapping[str, pa.DataType], required: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows, about `chunk` bytes of the dump at a time, and count them in `report`.

        Args:
            columns: the types, int64 or string, of those to read.
            required: those of them in which a NULL makes the row malformed.
        Raises: DataError: the table lacks a column, or the file is cut or damaged.
        """
        self._check(self.columns, columns)
        report = TableReport(str(self.path))
        self.report = report
        # Any first words match, so that a misspelt one loses no rows. An INSERT begins a line, or
        # follows the previous statement on the same line.
        insert_into = (
            rb"(?!--|#|/\*)[^\n('\"]{0,99}?[\s`.]"
            + re.escape(self.name.encode())
            + rb"`?\s*(\([^()]*\))?\s*(?i:VALUES?)(?=[\s(])"
        )
        next_one, later_one = re.compile(insert_into), re.compile(rb"\n" + insert_into)
        with Window(self.path, self.chunk) as text:
            at, follows = 0, False
            while True:
                while not text.ended and len(text.bytes) - at < LONGEST_HEAD:
                    text.read_on(at)
                    at = 0
                insert = next_one.match(text.bytes, at) if follows else None
                if insert := insert or later_one.search(text.bytes, at):
                    names = re.findall(rb"[^`(),\s]+", insert[1] or b"")
                    written = tuple(n.decode() for n in names) or self.columns
                    self._check(written, columns)
                    at = yield from self._rows(text, insert.end(), written, columns, required)
                    follows = True
                elif text.ended:
                    ending = text.bytes[at:].rstrip().rpartition(b"\n")[2]
                    if ending and not ending.startswith((b"--", b"/*")) and ending[-1:] != b";":
                        report.truncated = "it ends inside a statement"
                    break
                else:
                    text.read_on(max(at, len(text.bytes) - LONGEST_HEAD))
                    at, follows = 0, False

    def _rows(
        self,
        text: Window,
        at: int,
        written: tuple[str, ...],
        columns: Mapping[str, pa.DataType],
        required: Collection[str],
    ) -> Generator[pa.RecordBatch, None, int]:
        """Yield the rows of one INSERT from `at` on, and return the place of its end."""
        kinds = ((n, pa.types.is_integer(t), n in required) for n, t in columns.items())
        row, captured = row_pattern(written, tuple(kinds))
        report = self.report
        while True:
            start, last = at, None
            cells: list[bytes | None] = []  # row after row
            for last in consecutive(row, text.bytes, at):
                cells += last.groups()
            if last is not None:
                at = last.end()
                fields = {name: cells[i :: len(captured)] for i, name in enumerate(captured)}
                yield self._batch(fields, columns, text, start, row)
            if text.bytes.startswith(b";", at):
                return at + 1
            if text.ended and REST.match(text.bytes, at):
                report.truncated = report.truncated or "it ends inside an INSERT, between two rows"
                return at
            if not text.ended and len(text.bytes) - at < LONGEST_ROW:
                text.read_on(at)  # perhaps only the window's end cuts this row
                at = 0
            else:
                at = self._skip(text, at)

    def _skip(self, text: Window, at: int) -> int:
        """Count the row at `at`, which is malformed, and return where the next begins."""
        report = self.report
        number = report.rows + report.malformed + 1
        report.malformed += 1
        position, beginning = text.offset + at, text.bytes[at : at + 80]
        if whole := WHOLE_ROW.match(text.bytes, at):
            report.note(number, position, "fields that the table cannot have", whole[0])
            return whole.end()
        while not (after := NEXT_ROW.search(text.bytes, at)):
            if text.ended:
                report.note(number, position, "the file ends inside this row", beginning)
                report.truncated = f"it ends inside a row, which begins at byte {position}"
                return len(text.bytes)
            text.read_on(max(at, len(text.bytes) - 16))
            at = 0
        report.note(number, position, "it cannot be read", beginning)
        return after.end()

    def _batch(
        self,
        fields: Mapping[str, list[bytes | None]],
        columns: Mapping[str, pa.DataType],
        text: Window,
        start: int,
        row: re.Pattern[bytes],
    ) -> pa.RecordBatch:
        arrays, valid = {}, None
        for name, kind in columns.items():
            array = pa.array(fields[name], pa.binary())
            if pa.types.is_string(kind):
                array = unescape(array)
                try:
                    arrays[name] = array.cast(pa.string())
                except pa.ArrowInvalid:
                    good = pa.array([v is None or _is_utf8(v) for v in array.to_pylist()])
                    valid = good if valid is None else pc.and_(valid, good)
                    arrays[name] = pc.if_else(good, array, None).cast(pa.string())
            else:
                arrays[name] = array.cast(pa.string()).cast(kind)
        batch = pa.record_batch(arrays)
        report = self.report
        if valid is not None:
            place = pc.index(valid, False).as_py()
            first = next(m for i, m in enumerate(consecutive(row, text.bytes, start)) if i == place)
            number = report.rows + report.malformed + place + 1
            report.note(number, text.offset + first.start(), "text that is not UTF-8", first[0])
            report.malformed += len(valid) - valid.true_count
            batch = batch.filter(valid)
        report.rows += batch.num_rows
        return batch

    def _read_columns(self) -> tuple[str, ...]:
        """Return the column names in CREATE TABLE, in order."""
        name = re.escape(self.name.encode())
        create = re.compile(
            rb"\n\s*CREATE TABLE (?:IF NOT EXISTS )?`?"
            + name
            + rb"`?\s*\(((?:[^;']|"
            + STRING
            + rb")*);",
            re.DOTALL,
        )
        with Window(self.path, self.chunk) as text:
            at = 0
            while not (statement := create.search(text.bytes, at)):
                if text.ended:
                    raise DataError(
                        f"{self.path} has no CREATE TABLE `{self.name}`; give the table's own "
                        "dump, as mysqldump writes it."
                    )
                text.read_on(max(0, len(text.bytes) - LONGEST_ROW))
            body = re.sub(STRING, b"", statement[1], flags=re.DOTALL)
        inner = re.compile(rb"\([^()]*\)")
        while inner.search(body):
            body = inner.sub(b"", body)
        parts = body.partition(b")")[0].split(b",")
        names = [m[1].decode() for part in parts if (m := re.match(rb"\s*`([^`]+)`", part))]
        return tuple(names)

    def _check(self, has: tuple[str, ...], columns: Mapping[str, pa.DataType]) -> None:
        for name in columns:
            if name not in has:
                raise DataError(
                    f"{self.path}: table `{self.name}` has no column {name!r}; its columns are: "
                    f"{', '.join(has) or 'none'}."
                )


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
