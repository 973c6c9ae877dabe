"""`Window`: a part of a file in memory that moves forward over its bytes."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

from evergram.data.files.decompression import DAMAGED, GzipReader
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
            self.file = GzipReader(path) if path.suffix == ".gz" else path.open("rb")
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
