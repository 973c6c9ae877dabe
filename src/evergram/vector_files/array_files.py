"""Files of vectors that hold at most integer ids themselves: .npy and safetensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from safetensors import safe_open
from torch import Tensor

from evergram.errors import DataError
from evergram.file_content import NPY_SIGN, unreadable
from evergram.ids import first_missing, ids_of_text, missing_sentence
from evergram.vector_files.base import Block, EmbeddingFile, sentence
from evergram.vector_files.provenance import (
    ID_TYPE,
    provenance_file,
    provenance_in,
    read_provenance_file,
)

INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


def companion(path: Path) -> Path:
    """Return the path of the ids beside a file without them: `NAME.ids.txt`, one a line."""
    return path.with_suffix(".ids.txt")


class PlainVectors(EmbeddingFile):
    """A file of vectors, perhaps with integer ids; text ids are in a file of their own."""

    _own: pa.Array | None = None
    has_ids: bool = False
    # True if the format itself has a place for integer ids.
    holds_integers = False

    def _set_ids(self, ids: Path | None, *, as_text: bool = False) -> None:
        """Take the ids of the file `ids`, or those inside, or those beside, or row numbers.

        Args:
            as_text: whether every line is known to be a text, whatever it looks like.
        """
        beside = companion(self.path) if ids is None else ids
        self.has_ids = ids is not None or self._own is not None or beside.is_file()
        if ids is None and (self._own is not None or not beside.is_file()):
            return
        try:
            # Programs of Windows begin a file with a mark that is no part of the first id.
            encoding = "utf-8" if as_text else "utf-8-sig"
            lines = beside.read_text(encoding=encoding).split("\n")
        except (OSError, UnicodeDecodeError) as error:
            if isinstance(error, UnicodeDecodeError):
                raise DataError(f"{beside} is no text in UTF-8; save it as UTF-8.") from error
            why = getattr(error, "strerror", None) or sentence(error)
            raise DataError(
                f"{beside} cannot be read as ids: {why}; give a text file of one id a line."
            ) from error
        if lines[-1] == "":
            lines.pop()
        if len(lines) != self.rows:
            raise DataError(
                f"{beside} has {len(lines)} ids and {self.path} {self.rows} vectors; one id a line "
                "is needed."
            )
        texts = pa.array(lines, pa.string())
        line = first_missing(texts, text_file=not as_text)
        if line >= 0:
            where = f"{beside} line {line + 1}"
            raise DataError(missing_sentence(where, "", lines[line], text_file=not as_text))
        # Beside a file that can hold integers itself, all lines are texts.
        as_text = as_text or (ids is None and self.holds_integers)
        read = texts if as_text else ids_of_text(texts)
        if pa.types.is_floating(read.type):
            raise DataError(
                f"The ids of {beside} are numbers with a decimal point, such as {lines[0]}; write "
                "integers, or texts that are no numbers."
            )
        self._own = read

    def _as_written(self, id_type: str) -> None:
        """Read the lines of ids as the type that they were written from, "int64" or "string"."""
        beside, record = companion(self.path), provenance_file(self.path)
        if self._own is None:
            raise DataError(
                f"{beside} is missing, though {self.path} was written with its ids there; restore "
                f"it, or remove {record} to take the numbers of the rows for ids."
            )
        if id_type != "int64":
            self._own = self._own.cast(pa.string())
            return
        try:
            self._own = pc.cast(self._own, pa.int64())
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{beside} has an id that is no integer, though {self.path} was written with "
                f"integers ({sentence(error)}); restore it, or remove {record} to read text."
            ) from error

    def ids(self) -> pa.Array:
        return self._own if self._own is not None else pa.array(np.arange(self.rows))

    def _read(self, size: int) -> Iterator[Block]:
        for start in range(0, self.rows, size):
            stop = min(start + size, self.rows)
            if self._own is None:
                ids = pa.array(np.arange(start, stop))
            else:
                ids = self._own.slice(start, stop - start)
            yield ids, self._slice(start, stop)

    @abstractmethod
    def _slice(self, start: int, stop: int) -> Tensor:
        """Return rows [stop − start, D]; open the file anew, so that little of it stays mapped."""


class NpyVectors(PlainVectors):
    """A .npy file, with the ids in a text file beside it."""

    def __init__(self, path: Path, ids: Path | None) -> None:
        with path.open("rb") as file:
            start = file.read(len(NPY_SIGN))
        # np.load would take the file for a zip or a pickle.
        if start != NPY_SIGN:
            raise unreadable(path, ValueError("it is no array of NumPy"), NPY_SIGN)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 2 or array.dtype.kind != "f":
            raise DataError(
                f"{path} holds {array.dtype} of shape {list(array.shape)}; floats [N, D] are "
                "needed."
            )
        super().__init__(path, *array.shape)
        record = read_provenance_file(path)
        self.provenance: dict[str, str] = provenance_in(record)
        self._dtype = np.float64 if array.dtype.itemsize == 8 else np.float32
        written = None if ids is not None else record.get(ID_TYPE)
        self._set_ids(ids, as_text=written == "string")
        if written is not None:
            self._as_written(str(written))

    def _slice(self, start: int, stop: int) -> Tensor:
        mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return torch.from_numpy(np.array(mapped[start:stop], dtype=self._dtype, order="C"))


class SafetensorsVectors(PlainVectors):
    """A safetensors file, with integer ids in a tensor or text ids in a file beside it."""

    holds_integers = True

    def __init__(self, path: Path, id_tensor: str, vector_tensor: str, ids: Path | None) -> None:
        with safe_open(path, framework="pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            flat = [name for name, shape in shapes.items() if len(shape) == 2]
            if vector_tensor in flat:
                self._tensor = vector_tensor
            elif len(flat) == 1:
                self._tensor = flat[0]
            else:
                has = ", ".join(f"{n} {s}" for n, s in shapes.items()) or "none"
                raise DataError(
                    f"{path} has no tensor {vector_tensor!r} of two dims; its tensors are: {has}; "
                    "name the right one with --vector-column."
                )
            kind = file.get_slice(self._tensor)[:0].dtype
            if not kind.is_floating_point or kind.itemsize == 1:
                raise DataError(f"{path}: tensor {self._tensor!r} holds {kind}; floats are needed.")
            self._dtype = torch.float64 if kind == torch.float64 else torch.float32
            super().__init__(path, *shapes[self._tensor])
            record = file.metadata() or {}
            self.provenance: dict[str, str] = provenance_in(record)
            if id_tensor in shapes:
                own = file.get_tensor(id_tensor)
                if own.shape != (self.rows,) or own.dtype not in INTEGERS:
                    raise DataError(
                        f"{path}: tensor {id_tensor!r} is {own.dtype} {list(own.shape)}; "
                        f"{self.rows} integers are needed."
                    )
                if own.dtype == torch.uint64 and bool((own.view(torch.int64) < 0).any()):
                    raise DataError(
                        f"{path}: tensor {id_tensor!r} has an id of 2^63 or more, which no 64-bit "
                        "integer holds; write ids as text, in a file beside it."
                    )
                self._own = pa.array(own.to(torch.int64).numpy())
        self._set_ids(ids, as_text=ids is None and record.get(ID_TYPE) == "string")

    def _slice(self, start: int, stop: int) -> Tensor:
        with safe_open(self.path, framework="pt") as file:
            rows: Tensor = file.get_slice(self._tensor)[start:stop]
        return rows.to(self._dtype)
