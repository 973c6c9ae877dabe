"""`TextFeatures`: features in a file of text, streamed, as `read_features` reads it whole."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from evergram.data.prepared.sources.source_files import SourceFile
from evergram.data.prepared.sources.table_stream import TableStream
from evergram.data.prepared.sources.text_columns import TextIds
from evergram.ids import INTEGER

BAG = pa.list_(pa.string())


class TextFeatures:
    """A table of features in CSV or TSV, with a column `id` and one column a feature.

    The type of a column follows from all of its cells, so the file is read more than once: for the
    types that Arrow infers, for how its numbers are written and which cells are lists of keys, and
    for its batches.

    Args:
        file: of text.
        separator: of keys; a column with it in any cell holds lists.
    Attributes:
        schema: its columns and their types; `id` of int64 or string.
    Raises: DataError: the file is damaged, or an id is missing or a number with decimals.
    """

    def __init__(self, file: SourceFile, separator: str = "|") -> None:
        self._stream, self._separator = TableStream(file), separator
        inferred = self._stream.inferred_types()
        if "id" in inferred:
            inferred["id"] = pa.string()
        # As they are written: 00017 is a key like any other.
        self._texts = [
            name
            for name, kind in inferred.items()
            if pa.types.is_string(kind) or pa.types.is_integer(kind)
        ]
        self._others = {n: kind for n, kind in inferred.items() if n not in self._texts}
        types = self._types_of_texts(
            {name for name, kind in inferred.items() if pa.types.is_integer(kind)}
        )
        self.schema: pa.Schema = pa.schema(
            [(name, (types | self._others)[name]) for name in inferred]
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows in the types of the schema. Raises: DataError: the file is damaged."""
        for batch in self._stream.batches(self._stream.names, self._others):
            columns = []
            for field, column in zip(self.schema, batch.columns, strict=True):
                if field.type == BAG:
                    column = pc.split_pattern(column, self._separator)
                columns.append(column.cast(field.type))
            yield pa.record_batch(columns, schema=self.schema)

    def _types_of_texts(self, numbers: set[str]) -> dict[str, pa.DataType]:
        """Return the types of columns that are read as texts.

        Args:
            numbers: columns that Arrow infers as integers.
        """
        types = {name: pa.string() for name in self._texts}
        ids = {name: TextIds(self._stream.file.name, name) for name in {"id"} & set(types)}
        plain, row = numbers | set(ids), 0
        for batch in self._stream.batches(self._texts) if self._texts else ():
            for name, column in zip(self._texts, batch.columns, strict=True):
                texts = pa.chunked_array([column])
                if name in ids:
                    is_integer = pa.types.is_integer(ids[name].convert(texts, row).type)
                    plain -= set() if is_integer else {name}
                elif name in plain and not _are_plain_integers(texts):
                    plain.remove(name)
                elif name not in numbers and types[name] != BAG:
                    has_bags = pc.any(pc.match_substring(texts, self._separator)).as_py()
                    types[name] = BAG if has_bags else pa.string()
            row += batch.num_rows
        for each in ids.values():
            each.finish()
        return types | (dict.fromkeys(plain, pa.int64()) if row else {})


def _are_plain_integers(texts: pa.ChunkedArray) -> bool:
    """Return True if all cells that are not empty are integers as programs print them."""
    return pc.all(pc.match_substring_regex(texts, INTEGER)).as_py() is not False
