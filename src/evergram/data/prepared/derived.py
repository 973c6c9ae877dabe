"""Files that are derived from prepared columns: the part that a rule marks, and an index by query.

They lie in a folder of their own, which may be removed at any time. Each set is written whole or
not at all, with the SHA-256 of each file, and one that is damaged is written anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergram.atomic_files import new_folder, remove_tree
from evergram.data.corpus import PairRule
from evergram.data.features import take_ragged
from evergram.data.prepared.column_file import (
    Column,
    ColumnFile,
    check_rows,
    check_sha256,
    new_column,
    release,
    sha256_of,
)
from evergram.data.prepared.record import SIDES
from evergram.errors import DataError
from evergram.file_lock import file_lock

if TYPE_CHECKING:
    from evergram.data.prepared.mapped_corpus import MappedCorpus

LOCK, DIGESTS = ".lock", "sha256.json"
INDEX, INDEXED = "by-query", ("candidate", "value", "weight")
# Pairs that are sorted at a time; the pairs of one query are always sorted together.
BUCKET = 1 << 20
Read = TypeVar("Read")
log: logging.Logger = logging.getLogger(__name__)


def read_derived(folder: Path, write: Callable[[Path], None], read: Callable[[Path], Read]) -> Read:
    """Return what a folder of derived files has; it is written if it is not there or damaged.

    One process writes at a time; another one that needs the same folder waits, and reads it.

    Args:
        write: fills an empty folder.
        read: reads the folder, whose files have their SHA-256.
    Raises: DataError: it cannot be written, as the disk is full or may not be written to.
    """
    if folder.is_dir():
        with suppress(DataError):
            _verify(folder)
            return read(folder)
    with _writing(folder):
        if folder.is_dir():
            try:
                _verify(folder)  # another process may have written it meanwhile
                return read(folder)
            except DataError as error:
                problem = str(error).partition(";")[0].rstrip(".")
                log.warning("Files beside the prepared data are written anew: %s.", problem)
            remove_tree(folder)
        with new_folder(folder) as part:
            write(part)
            digests = {path.name: sha256_of(path) for path in sorted(part.iterdir())}
            (part / DIGESTS).write_text(json.dumps(digests))
        return read(folder)


def _verify(folder: Path) -> None:
    """Read all files through. Raises: DataError: one is not as it was written."""
    path = folder / DIGESTS
    try:
        digests: dict[str, str] = json.loads(path.read_bytes())
        names = {Path(name).name: str(digest) for name, digest in digests.items()}
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise DataError(f"{path} cannot be read: {error!r}.") from error
    for name in {*names, *(path.name for path in folder.iterdir())} - {DIGESTS}:
        check_sha256(folder / name, names.get(name, "nothing"), "It is written anew.")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder around `folder`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.parent / LOCK):
            yield
    except OSError as error:
        why = error.strerror or str(error).rstrip(".")
        raise DataError(
            f"What training needs beside the prepared data cannot be written in {folder.parent}: "
            f"{why}; make room or permit writing there, or copy the prepared folder to a place "
            "that has both."
        ) from error


@dataclass(frozen=True)
class WrittenPart:
    """A part that `write_part` wrote: of each side which rows of the corpus its entities are, int64
    [N], ascending, and the interactions of each; and its columns."""

    rows: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]
    files: Mapping[str, ColumnFile]

    @classmethod
    def open(cls, corpus: MappedCorpus, folder: Path) -> WrittenPart:
        def sides(name: str) -> dict[str, Tensor]:
            return {s: torch.from_numpy(np.load(folder / f"{s}-{name}.npy")) for s in SIDES}

        names = corpus.interactions.column_names
        files = {n: ColumnFile.open(folder / f"{n}.npy") for n in names}
        return cls(sides("rows"), sides("counts"), files)


def write_part(corpus: MappedCorpus, rule: PairRule, folder: Path) -> None:
    """Write the interactions that a rule marks, in their order, in two passes over the corpus.

    As in `Corpus.restrict`, entities without an interaction among them are left out, and the others
    keep their order. The folder gets each column; and of each side the rows of the corpus that are
    kept, and their counts.

    Raises: DataError: a file of the corpus is damaged.
    """
    corpus.verify(corpus.interactions.column_names)
    counts: dict[str, Tensor] = {side: torch.zeros_like(corpus.counts(side)) for side in SIDES}
    for block in corpus.blocks():
        marks = rule(block)
        for side, rows in (("query", block.query), ("candidate", block.candidate)):
            counts[side] += torch.bincount(rows[marks], minlength=len(counts[side]))
    kept = {side: counts[side] > 0 for side in SIDES}
    if corpus.shared_ids:
        kept = dict.fromkeys(SIDES, kept["query"] | kept["candidate"])
    for side in SIDES:
        np.save(folder / f"{side}-rows.npy", torch.nonzero(kept[side]).flatten().numpy())
        np.save(folder / f"{side}-counts.npy", counts[side][kept[side]].numpy())
    new_rows = {side: (kept[side].cumsum(0) - 1).numpy() for side in SIDES}
    types = corpus.types
    with ExitStack() as stack:
        files = _new_columns(stack, folder, types, int(counts["query"].sum()))
        for block in corpus.blocks():
            marked = rule(block).numpy()
            piece = corpus.interactions.slice(block.start, len(block))
            for name, file in files.items():
                if name in new_rows:
                    old = (block.query if name == "query" else block.candidate).numpy()[marked]
                    values = new_rows[name][old].astype(types[name])
                else:
                    values = piece[name].to_numpy()[marked]
                file.write(values.tobytes())


def _new_columns(
    stack: ExitStack, folder: Path, types: Mapping[str, np.dtype[Any]], size: int
) -> dict[str, IO[bytes]]:
    return {
        name: stack.enter_context(new_column(folder / f"{name}.npy", dtype, size))
        for name, dtype in types.items()
    }


@dataclass(frozen=True)
class PairIndex:
    """The interactions of a corpus, sorted by query and then by candidate.

    Args:
        offsets: int64 [N + 1]; query a owns the interactions `offsets[a]` to `offsets[a + 1]`.
        columns: `candidate` (rows of that side), and `value` and `weight` if the corpus has them,
            [n] each, views of `mapped` files.
        distinct: the number of distinct pairs.
        candidates: the number of rows of that side.
    """

    offsets: Tensor
    columns: Mapping[str, Tensor]
    distinct: int
    candidates: int
    folder: Path
    mapped: Sequence[Column]

    @classmethod
    def open(cls, corpus: MappedCorpus, folder: Path) -> PairIndex:
        """Return the index of a corpus that `write_index` wrote."""
        counts = corpus.counts("query")
        offsets = torch.zeros(len(counts) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=offsets[1:])
        names = [name for name in corpus.types if name in INDEXED]
        files = (ColumnFile.open(folder / f"{n}.npy", int(offsets[-1])) for n in names)
        mapped = [file.mapped(at_random=True) for file in files]
        columns = {n: torch.from_numpy(column) for n, column in zip(names, mapped, strict=True)}
        distinct = int(np.load(folder / "distinct.npy"))
        return cls(offsets, columns, distinct, len(corpus.candidates), folder, mapped)

    def release(self) -> None:
        """Take the pages of its files out of this process's memory until they are read again."""
        release(self.mapped)

    def at(self, name: str, places: Tensor) -> Tensor:
        """Return a column at places of the index, int64 [m]. Raises: DataError: a row is outside
        of its side."""
        values = self.columns[name][places]
        if name == "candidate":
            self._check(values)
        return values

    def has(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Return bool [m], True for pairs of rows (int64 [m] each) that are in the corpus."""
        candidates = self.columns["candidate"]
        low, end = self.offsets[query], self.offsets[query + 1]
        high = end
        last = len(candidates) - 1
        # A binary search of every pair at once, among the candidates of its query.
        while bool((low < high).any()):
            middle = (low + high) // 2
            less = (low < high) & (candidates[middle.clamp(max=last)] < candidate)
            high = torch.where(less, high, torch.minimum(high, middle))
            low = torch.where(less, middle + 1, low)
        return (low < end) & (candidates[low.clamp(max=last)] == candidate)

    def pairs_of(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query and the candidate, int64 [m] each, of all interactions of queries.

        Args:
            queries: int64 rows, each once.
        Raises: DataError: a row is outside of its side.
        """
        candidate, offsets = take_ragged(self.columns["candidate"], self.offsets, queries)
        self._check(candidate)
        return torch.repeat_interleave(queries, offsets.diff()), candidate.long()

    def _check(self, candidate: Tensor) -> None:
        remedy = f"Remove {self.folder} and run it again; it is written anew."
        check_rows(candidate, "candidate", self.candidates, remedy)


def write_index(corpus: MappedCorpus, folder: Path) -> None:
    """Write the index of a corpus into an empty folder, in memory of some buckets.

    One pass puts each interaction into the file of a range of queries, a second one sorts each
    range by itself.
    """
    types = {n: dtype for n, dtype in corpus.types.items() if n in ("query", *INDEXED)}
    scratch = folder / "scratch"
    scratch.mkdir()
    bounds = _partition(corpus, scratch, types)
    distinct = 0
    with ExitStack() as stack:
        kept = {name: dtype for name, dtype in types.items() if name in INDEXED}
        files = _new_columns(stack, folder, kept, len(corpus))
        sources = {name: stack.enter_context((scratch / name).open("rb")) for name in types}
        for start, end in pairwise(bounds):
            bucket = {n: np.fromfile(sources[n], types[n], end - start) for n in types}
            pair = bucket["query"].astype(np.int64) * len(corpus.candidates) + bucket["candidate"]
            order = np.argsort(pair, kind="stable")
            pair = pair[order]
            distinct += int(end > start) + int((pair[1:] != pair[:-1]).sum())
            for name, file in files.items():
                file.write(bucket[name][order].tobytes())
    remove_tree(scratch)
    np.save(folder / "distinct.npy", distinct)


def _partition(
    corpus: MappedCorpus, scratch: Path, types: Mapping[str, np.dtype[Any]]
) -> list[int]:
    """Write each column ordered by ranges of queries, in the corpus's order within a range.

    Returns: the bounds of the ranges, as numbers of interactions.
    """
    counts = corpus.counts("query").numpy()
    begins = np.cumsum(counts) - counts
    bucket = (begins // BUCKET).astype(np.int32)  # of each query
    sizes = np.bincount(bucket, weights=counts).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    place: NDArray[np.int64] = bounds[:-1].copy()
    with ExitStack() as stack:
        files = {name: stack.enter_context((scratch / name).open("wb")) for name in types}
        for block in corpus.blocks():
            of_pair = bucket[block.query.numpy()]
            order = np.argsort(of_pair, kind="stable")
            ends = np.cumsum(np.bincount(of_pair, minlength=len(sizes)))
            piece = corpus.interactions.slice(block.start, len(block))
            for name, file in files.items():
                values = piece[name].to_numpy()[order]
                for number in np.unique(of_pair):
                    start = 0 if number == 0 else ends[number - 1]
                    file.seek(int(place[number]) * types[name].itemsize)
                    file.write(values[start : ends[number]].tobytes())
            place += np.diff(ends, prepend=0)
    return [int(bound) for bound in bounds]
