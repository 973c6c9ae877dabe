"""Columns of a text file, read in pieces, by the rules of `Corpus` for a whole file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.columnar.interactions import refuse_missing
from evergram.errors import DataError
from evergram.ids import INTEGER, NUMBER

# Cells of a column of numbers; a time may also be a date.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:nan|inf|infinity)$"
_TIME = _NUMBER + r"|^\d{4}-\d\d-\d\d"


class TextIds:
    """Decides, piece by piece, whether a column of ids is of integers.

    Args:
        source: name of the file, for errors.
        name: of the column.
    """

    def __init__(self, source: str, name: str) -> None:
        self._source, self._name = source, name
        self._numbers = True
        self._decimals = False
        self._first: object = None

    def convert(self, texts: pa.ChunkedArray, row: int) -> pa.ChunkedArray:
        """Return a piece as int64 if all its cells are integers as programs print them, else as it
        is.

        Args:
            row: rows of the file before the piece.
        Raises: DataError: a cell is empty or a word such as NULL.
        """
        refuse_missing(texts, self._name, self._source, text_file=True, first_row=row)
        if self._first is None:
            self._first = texts[0].as_py()
        if pc.all(pc.match_substring_regex(texts, INTEGER)).as_py():
            try:
                return texts.cast(pa.int64())
            except pa.ArrowInvalid:  # beyond 64 bits
                return texts
        self._numbers &= bool(pc.all(pc.match_substring_regex(texts, NUMBER)).as_py())
        if self._numbers and not self._decimals:
            self._decimals = bool(pc.any(pc.match_substring_regex(texts, r"[.eE]")).as_py())
        return texts

    def finish(self) -> None:
        """Check the column as a whole. Raises: DataError: its ids are numbers with decimals."""
        if self._numbers and self._decimals:
            raise DataError(
                f"{self._source} column {self._name!r} is of numbers with decimals (the first is "
                f"{self._first}); ids must be integers or strings."
            )


def numbers_of_text(
    texts: pa.ChunkedArray, name: str, source: str, row: int = 0
) -> pa.ChunkedArray:
    """Return a piece of a column as float64; an empty cell is null.

    Args:
        row: rows of the file before the piece.
    Raises: DataError: a cell is no number.
    """
    trimmed = _trimmed(texts)
    try:
        return trimmed.cast(pa.float64())
    except pa.ArrowInvalid:
        _refuse_unlike(trimmed, texts, _NUMBER, (name, source, row, "a number"))
    return pc.utf8_ltrim(trimmed, "+").cast(pa.float64())


def times_of_text(texts: pa.ChunkedArray, name: str, source: str, row: int = 0) -> pa.ChunkedArray:
    """Return a piece of a column of times as int64, float64 or a timestamp in microseconds.

    Args:
        row: rows of the file before the piece.
    Raises: DataError: a cell is neither a number nor a date, or some are numbers and some dates.
    """
    trimmed = _trimmed(texts)
    for kind in (pa.int64(), pa.float64(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return trimmed.cast(kind)
        except pa.ArrowInvalid:
            continue
    _refuse_unlike(trimmed, texts, _TIME, (name, source, row, "a number or a date"))
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            return trimmed.cast(kind)
        except pa.ArrowInvalid:
            continue
    raise DataError(
        f"{source} rows {row + 1} to {row + len(texts)}: {name} is written in several ways (the "
        f"first is {texts[0].as_py()!r}); write all times as numbers, or all as dates in ISO 8601."
    )


def _trimmed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_trim_whitespace(texts)


def _refuse_unlike(
    cells: pa.ChunkedArray,
    texts: pa.ChunkedArray,
    pattern: str,
    where: tuple[str, str, int, str],
) -> None:
    bad = pc.index(pc.match_substring_regex(cells, pattern), False).as_py()
    if bad >= 0:
        name, source, row, wanted = where
        raise DataError(
            f"{source} row {row + bad + 1}: {name} is {texts[bad].as_py()!r}; it must be {wanted}."
        )
