"""Pairs of vectors of the same objects from two files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from evergram.errors import DataError
from evergram.ids import refuse_other_form, refuse_repeats
from evergram.vector_files.open_embeddings import BLOCK, EmbeddingFile

T = TypeVar("T")


def ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items; a thread makes each ahead of its use, so one more is in memory."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, source, end)
            yield item  # type: ignore[misc]


class Pairing:
    """The objects that two files have in common, in the order of `ids`, and their two vectors.
    Vectors are read in blocks, from both files at once if the common objects are `in_order`;
    otherwise those of the smaller file are first copied to a temporary file (in $TMPDIR). It holds
    the ids of both files and eight bytes for each common object in memory."""

    def __init__(self, old: EmbeddingFile, new: EmbeddingFile) -> None:
        old_ids, new_ids = old.ids(), new.ids()
        if old_ids.type != new_ids.type:
            old_ids, new_ids = old_ids.cast(pa.string()), new_ids.cast(pa.string())
        for file, ids in ((old, old_ids), (new, new_ids)):
            refuse_repeats(ids, str(file.path))
        self._old, self._new = old, new
        self._old_leads = old.rows * old.dim > new.rows * new.dim
        lead, other = (old_ids, new_ids) if self._old_leads else (new_ids, old_ids)
        refuse_other_form(old_ids, new_ids, str(old.path), str(new.path))
        place = pc.fill_null(pc.index_in(lead, value_set=other), -1)
        place = place.to_numpy(zero_copy_only=False)
        self._kept = place >= 0
        # Rows of the other file, in the leading file's order.
        self._place = place[self._kept].astype(np.int64)
        if not len(self._place):
            raise DataError(
                f"{old.path} and {new.path} have no id in common (the first has ids such as "
                f"{old_ids[0].as_py()!r}, the second such as {new_ids[0].as_py()!r}); "
                "vectors of the same objects are needed."
            )
        self.ids: pa.Array = lead.filter(pa.array(self._kept))
        self.in_order: bool = bool((np.diff(self._place) > 0).all())
        self.only_old: int = old.rows - len(self)
        self.only_new: int = new.rows - len(self)

    def __len__(self) -> int:
        return len(self.ids)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield old [b, D_old] and new [b, D_new] of all common objects, in the order of `ids`."""
        lead, other = (self._old, self._new) if self._old_leads else (self._new, self._old)
        leading = _kept(lead, self._kept, size)
        if self.in_order:
            wanted = np.zeros(other.rows, dtype=bool)
            wanted[self._place] = True
            following = _kept(other, wanted, size)
        else:
            following = _in_order_of(other, self._place, size)
        for one, two in zip(leading, following, strict=True):
            yield (one, two) if self._old_leads else (two, one)


def _kept(file: EmbeddingFile, kept: np.ndarray, size: int) -> Iterator[Tensor]:
    """Yield the rows of a file that `kept` marks, in blocks of exactly `size` except the last."""
    waiting: list[Tensor] = []
    start = number = 0
    for _, vectors in file.blocks(size):
        mask = kept[start : start + len(vectors)]
        start += len(vectors)
        waiting.append(vectors if mask.all() else vectors[torch.from_numpy(mask)])
        number += len(waiting[-1])
        if number >= size:
            whole = torch.cat(waiting) if len(waiting) > 1 else waiting[0]
            yield whole[:size]
            waiting, number = [whole[size:]], number - size
    if number:
        yield torch.cat(waiting)


def _in_order_of(file: EmbeddingFile, rows: np.ndarray, size: int) -> Iterator[Tensor]:
    try:
        with tempfile.TemporaryFile() as spool:
            kind = np.dtype(np.float32)
            for _, vectors in file.blocks(size):
                array = vectors.numpy()
                kind = array.dtype
                spool.write(array.data)
            spool.flush()
            mapped = np.memmap(spool, dtype=kind, mode="r", shape=(file.rows, file.dim))
            for start in range(0, len(rows), size):
                yield torch.from_numpy(np.array(mapped[rows[start : start + size]]))
    except OSError as error:
        raise DataError(
            f"{file.path} is in another order, and its temporary copy in {tempfile.gettempdir()} "
            f"cannot be written: {error.strerror or error}; set TMPDIR to a folder with room."
        ) from error
